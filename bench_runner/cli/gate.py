"""``bench-runner gate``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bench_runner.cli import output
from bench_runner.errors import EXIT_FINDINGS, EXIT_INCONCLUSIVE, EXIT_OK, UnreadableError, UsageError

if TYPE_CHECKING:
    from bench_runner.comparing import Compared
    from bench_runner.finding import Finding
    from bench_runner.gate import GateResult
    from bench_runner.record import RunRecord
    from bench_runner.sides import Side

LAUNCHES: Final = 5


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="gate")(gate)


def gate(
    baseline: Annotated[str, typer.Option(help="The frozen baseline to hold this machine against.")],
    threshold: Annotated[
        float | None, typer.Option(help="The change that matters, in percent. Default: 5; 10 between machines.")
    ] = None,
    launches: Annotated[int, typer.Option(help="Launches to measure at first.")] = LAUNCHES,
    max_minutes: Annotated[
        float | None, typer.Option(help="Add launches until the answer is clear or so much time is over.")
    ] = None,
    candidate: Annotated[
        str | None, typer.Option(help="Judge these results (as in compare) instead of measuring now.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="What to measure. Default: the profile that the baseline was measured with.")
    ] = None,
    env: Annotated[str, typer.Option(help="auto, locked or existing: the environment to measure in.")] = "auto",
    machine: Annotated[str | None, typer.Option(help="Name for this machine's results.")] = None,
    do_verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Verify before measuring.")] = True,
    prefix: Annotated[Path | None, typer.Option(help="The environment to verify, as in verify.")] = None,
    lock: Annotated[Path | None, typer.Option(help="The lock to verify against, as in verify.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the result as JUnit XML too.")] = None,
    results: Annotated[Path, typer.Option(help="Folder with results and baselines.")] = Path("results"),
    prolog: Annotated[bool, typer.Option("--prolog", help="Print one line, fit for a drain reason.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Verify, measure and compare with a frozen baseline: one verdict.

    Exit codes: 0 pass, 1 fail, 4 inconclusive: the change that was asked for cannot be seen with these launches.

    Example: bench-runner gate --baseline before-driver-580 --threshold 5 --max-minutes 30 --junit gate.xml
    """
    from bench_runner.gate import Steps, pass_gate

    if prolog and as_json:
        raise UsageError("--prolog and --json: choose one of the two")
    _check(launches, max_minutes, candidate)
    before = _baseline(baseline, results)
    steps = Steps(
        verify=_verifier(prefix, lock) if do_verify else None,
        run=None if candidate else _runner(profile or _profile(before), env, machine, results),
        compare=_comparer(before, candidate, results, threshold),
        clock=time.monotonic,
    )
    result = pass_gate(steps, launches=launches, max_minutes=max_minutes)
    _show(result, baseline, prolog=prolog, as_json=as_json, verified=do_verify)
    if junit is not None:
        from bench_runner.report.files import write_text
        from bench_runner.report.junit import junit_xml

        write_text(junit, junit_xml(result, baseline))
        output.note(f"bench-runner: wrote {junit}")
    return {"pass": EXIT_OK, "fail": EXIT_FINDINGS, "inconclusive": EXIT_INCONCLUSIVE}[result.verdict]


def _check(launches: int, max_minutes: float | None, candidate: str | None) -> None:
    if not 1 <= launches <= 1000:
        raise UsageError(f"--launches {launches}: must be from 1 to 1000")
    if max_minutes is not None and not 0 < max_minutes <= 100_000:
        raise UsageError(f"--max-minutes {max_minutes:g}: must be a positive number of minutes")
    if candidate and max_minutes is not None:
        raise UsageError("--candidate and --max-minutes: stored results cannot be measured for longer; leave one out")


def _baseline(name: str, results: Path) -> Side:
    from bench_runner.sides import select

    side = select(f"baseline:{name}", results)
    if side.unreadable:
        raise UnreadableError(f"baseline {name} is damaged: {side.unreadable[0]}; freeze it again from its results")
    return side


def _profile(before: Side) -> str:
    """The profile that the baseline was measured with, its name or its file; UsageError if there is not one."""
    from bench_runner.profile import BUILT_IN, keep_text
    from bench_runner.session import FOLDER, default_root

    used = {(record.profile, record.profile_text) for record in before.records if record.profile is not None}
    names = sorted({name for name, _ in used})
    if len(names) != 1:
        told = f"was measured with {', '.join(names)}" if names else "does not say its profile"
        raise UsageError(f"{before.selector}: {told}; name one with --profile")
    texts = {text for _, text in used}
    if len(texts) != 1:
        raise UsageError(
            f"{before.selector}: was measured with {len(texts)} versions of {names[0]}; name one: --profile"
        )
    text = texts.pop()
    if text is not None:
        return str(keep_text(names[0], text, default_root() / FOLDER / "profiles"))
    if names[0] not in BUILT_IN:
        raise UsageError(
            f"{before.selector}: was measured with the profile {names[0]} of a file that it does not hold; "
            f"name it, --profile {names[0]}.toml"
        )
    return names[0]


def _verifier(prefix: Path | None, lock: Path | None) -> Callable[[], Sequence[Finding]]:
    def run() -> Sequence[Finding]:
        from bench_runner.cli.verify import lock_for
        from bench_runner.environment.verify import verify_environment
        from bench_runner.machine.verify import machine_findings

        place = (prefix or Path(sys.prefix)).absolute()
        output.note(f"bench-runner: verifying {place}")
        environment = verify_environment(place, lock_for(place, lock), "full").findings
        return [*environment, *machine_findings(str(place / "bin" / "python"))]

    return run


def _runner(profile: str, env: str, machine: str | None, results: Path) -> Callable[[int], Sequence[RunRecord]]:
    from bench_runner.cli.run import ENVIRONMENTS
    from bench_runner.profile import load
    from bench_runner.session import RunRequest, default_root, run_session

    if env not in ENVIRONMENTS:
        raise UsageError(f"--env {env}: must be one of {', '.join(ENVIRONMENTS)}")
    root, loaded = default_root(), load(profile)
    if (root / "results").absolute() != results.absolute():
        raise UsageError(f"--results {results}: what is measured now goes to {root / 'results'}; start there")

    def run(launches: int) -> Sequence[RunRecord]:
        request = RunRequest(
            root=root,
            profile=loaded,
            environment=env,  # type: ignore[arg-type]
            machine=machine,
            launches=launches,
            fresh=True,
        )
        return run_session(request, output.note).records

    return run


def _comparer(
    before: Side, candidate: str | None, results: Path, threshold: float | None
) -> Callable[[Sequence[RunRecord], float], Compared]:
    from bench_runner.cli.compare import fraction
    from bench_runner.comparing import compare_sides
    from bench_runner.sides import Side, select

    asked = fraction(threshold)
    chosen = select(candidate, results) if candidate else None

    def compare(records: Sequence[RunRecord], share: float) -> Compared:
        now = chosen if chosen is not None else Side(selector="this run", records=tuple(records))
        return compare_sides(before, now, results, threshold=asked, share=share)

    return compare


def _show(result: GateResult, baseline: str, *, prolog: bool, as_json: bool, verified: bool) -> None:
    from bench_runner.report.formats import encodable
    from bench_runner.report.gate import gate_document, gate_text, prolog_line

    if as_json:
        output.emit_json(gate_document(result, baseline, verified=verified))
    elif prolog:
        output.emit_text(encodable(prolog_line(result, baseline), sys.stdout.encoding))
    else:
        output.emit_text(encodable(gate_text(result, baseline), sys.stdout.encoding))
    for line in () if result.compared is None else result.compared.unreadable:
        output.note(f"bench-runner: not read: {line}")
