"""What sampling costs the run that is being watched, with a fake NVML of 8 devices.

    python -m tests.evaluate.sampling_cost

One process computes in steps of about 20 ms while the sampler of another does its work once a second, as in a real
run, and ten and fifty times a second.  Printed as a Markdown table: the sampler's processor time per second, and the
median step with and without it, over alternating rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.fakes.driver import FakeDriver

ROUNDS = 5
SECONDS = 6.0
PERIODS = (1.0, 0.1, 0.02)
# What a call of the real library takes at least; the fake alone would answer in no time.
CALL_MICROSECONDS = 20
CALLS = ("ClockInfo", "PowerUsage", "UtilizationRates", "MemoryInfo", "CurrentClocksThrottleReasons",
         "TotalEnergyConsumption", "Temperature")  # fmt: skip

SAMPLE = """
import json, sys, time
from bench_runner.machine.sampling import Sampler
begin = time.time()
with Sampler(period_seconds={period}) as sampler:
    started = sampler.cpu_seconds
    time.sleep({seconds})
summary = sampler.window(begin, time.time())
print(json.dumps({{"cpu": sampler.cpu_seconds - started, "samples": summary.devices[0].samples,
                  "devices": len(summary.devices)}}))
"""

WORK = """
import json, sys, time
steps, end = [], time.monotonic() + {seconds}
while time.monotonic() < end:
    begin = time.perf_counter()
    sum(i * i for i in range(200_000))
    steps.append(time.perf_counter() - begin)
print(json.dumps(steps))
"""


def work(seconds: float) -> subprocess.Popen[str]:
    """The process that is being measured."""
    code = WORK.format(seconds=seconds)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def steps_of(process: subprocess.Popen[str]) -> list[float]:
    """Its step times, when it has ended."""
    output, _ = process.communicate()
    return [float(step) for step in json.loads(output)]


def round_of(environment: dict[str, str], period: float) -> tuple[float, float, float]:
    """Median step without and with sampling, and the sampler's processor time per second."""
    alone = median(steps_of(work(SECONDS)))
    code = SAMPLE.format(period=period, seconds=SECONDS)
    sampler = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    watched = median(steps_of(work(SECONDS)))
    output, _ = sampler.communicate()
    answer = json.loads(output)
    return alone, watched, answer["cpu"] / SECONDS


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        driver = FakeDriver(Path(folder), 8)
        for call in CALLS:
            driver.delay(f"nvmlDeviceGet{call}", CALL_MICROSECONDS)
        environment = {**driver.environment(), "PYTHONPATH": str(Path.cwd())}
        print("| period s | step alone ms | step watched ms | change % (median of rounds) | sampler CPU ms/s |")
        print("|---|---|---|---|---|")
        for period in PERIODS:
            rounds = [round_of(environment, period) for _ in range(ROUNDS)]
            alone, watched = median(r[0] for r in rounds), median(r[1] for r in rounds)
            change = median(100 * (r[1] / r[0] - 1) for r in rounds)
            cpu = median(r[2] for r in rounds)
            print(f"| {period:g} | {alone * 1e3:.2f} | {watched * 1e3:.2f} | {change:+.2f} | {cpu * 1e3:.2f} |")


if __name__ == "__main__":
    main()
