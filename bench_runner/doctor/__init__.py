"""Faults of training jobs on several devices: probes that gather, rules that judge, and the names of the faults."""
