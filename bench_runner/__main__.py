"""``python -m bench_runner`` is the command ``bench-runner``."""

import sys

from bench_runner.cli import main

if __name__ == "__main__":
    sys.exit(main())
