"""Measuring over several nodes: who takes part, node 0's hub, the other nodes, and what a launch sees of them."""
