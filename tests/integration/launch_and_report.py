"""Run a stand-in launch in a process of its own: ``python launch_and_report.py DIRECTORY LAUNCH_ID FAULTS_JSON``."""

import json
import sys
from pathlib import Path

from bench_runner.launch import run
from tests.integration.launching import make_plan

plan = make_plan(Path(sys.argv[1]), json.loads(sys.argv[3]), launch_id=sys.argv[2])
kept = []
try:
    results = run(plan, lambda result: kept.append(result.outcome))
except KeyboardInterrupt:
    print("interrupted", kept)
    sys.exit(130)
print([result.outcome for result in results])
