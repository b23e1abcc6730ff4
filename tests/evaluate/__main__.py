"""``make evaluate``: measure the suite itself, table by table.

python -m tests.evaluate                all of it, printed
python -m tests.evaluate fidelity …     only these
python -m tests.evaluate --write        docs/evaluation.md made anew
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from bench_runner.machine.host import cpu_model

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "evaluation.md"
NOT_EVALUATIONS = {"__init__", "__main__", "bare", "bare_launch", "generated"}


def evaluations() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_EVALUATIONS)


def section(name: str) -> str:
    """Run one evaluation; its table under a heading, with the command that makes it again."""
    command = [sys.executable, "-m", f"tests.evaluate.{name}"]
    done = subprocess.run(command, cwd=HERE.parent.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout}{done.stderr}")
    return f"## {name.replace('_', ' ').capitalize()}\n\n`python -m tests.evaluate.{name}`\n\n{done.stdout.strip()}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *evaluations()], default=[])
    parser.add_argument("--write", action="store_true", help="make docs/evaluation.md anew")
    arguments = parser.parse_args()
    where = (
        f"Measured on {len(os.sched_getaffinity(0))} cores of {cpu_model()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, on {datetime.now(UTC):%Y-%m-%d}; figures are whatever they are."
    )
    parts = []
    for name in arguments.names or evaluations():
        parts.append(section(name))
        print(parts[-1], flush=True)
    if arguments.write:
        PAGE.write_text(
            "# Evaluation of the suite itself\n\nMade by `make evaluate`. " + where + "\n\n" + "\n".join(parts)
        )


if __name__ == "__main__":
    main()
