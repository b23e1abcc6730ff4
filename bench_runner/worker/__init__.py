"""The torch side.  Started by torchrun as ``python -m bench_runner.worker``; no other package imports torch."""
