"""What asv sees: names, parameters and units.  How things are measured stands in bench_runner/."""

import sys
from pathlib import Path

# asv drops PYTHONPATH for its benchmark processes.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
