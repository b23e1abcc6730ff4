"""``run``, ``verify`` and ``gate`` as Slurm jobs: the script as data, the job's life, one task on each node."""
