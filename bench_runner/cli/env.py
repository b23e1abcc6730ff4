"""``bench-runner env``: create, diff, export, prune."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench_runner.cli import output
from bench_runner.errors import EXIT_FINDINGS, EXIT_NOT_CARRIED_OUT, EXIT_OK, UsageError

CREATE_SCHEMA = "bench-runner/env-create/1"
PRUNE_SCHEMA = "bench-runner/env-prune/1"


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Create, compare, export and clean up environments.", no_args_is_help=True)
    group.command(name="create")(create)
    group.command(name="diff")(diff)
    group.command(name="export")(export)
    group.command(name="prune")(prune)
    app.add_typer(group, name="env")


def create(
    prefix: Annotated[Path, typer.Argument(help="Folder to create; packages carry its path, it cannot be moved.")],
    lock: Annotated[Path, typer.Option(help="The lock file.")] = Path("conda-lock.yml"),
    channel_url: Annotated[
        list[str] | None,
        typer.Option(help="In place of the lock's channels: URL, folder or NAME=URL; may be given several times."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Take everything from the package cache.")] = False,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Package cache. Default: $BENCH_RUNNER_CACHE_DIR, else the user's cache folder.")
    ] = None,
    validate_cache: Annotated[
        bool, typer.Option("--validate-cache", help="Check every cached file by its hash first.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Create an environment from a lock file; neither conda nor pip is needed.

    Example: bench-runner env create /opt/bench --channel-url file:///mnt/conda-forge
    """
    from bench_runner.cli.progress import progress_for
    from bench_runner.environment.channels import parse_mirror
    from bench_runner.environment.install import create_environment, locked_packages
    from bench_runner.environment.lockfile import read_lock
    from bench_runner.environment.supply import BuildOptions, default_cache_dir, default_mirrors

    mirrors = tuple(parse_mirror(text) for text in channel_url) if channel_url else default_mirrors()
    options = BuildOptions(
        mirrors=mirrors, offline=offline, cache_dir=cache_dir or default_cache_dir(), validate_cache=validate_cache
    )
    read = read_lock(lock)
    with progress_for() as progress:
        built = create_environment(read, prefix, options, progress)
    place = prefix.absolute()
    packages = len(locked_packages(read))
    if as_json:
        output.emit_json(
            {
                "schema": CREATE_SCHEMA,
                "prefix": str(place),
                "lock_sha256": read.sha256,
                "packages": packages,
                "built": built,
            }
        )
    else:
        output.emit_text(f"{place}: {packages} packages, {'built' if built else 'was complete already'}")
        output.emit_text(f"Check it: bench-runner verify --only environment --prefix {place} --lock {lock}")
    return EXIT_OK


def diff(
    left: Annotated[str, typer.Argument(help="Prefix, lock, export, or run record (FILE.jsonl or FILE.jsonl:LINE).")],
    right: Annotated[str, typer.Argument(help="The same.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Show what differs between two environments, what matters first; exit code 1 if anything does.

    Example: bench-runner env diff conda-lock.yml /opt/bench
    """
    from bench_runner.environment.diff import compare_sides, to_document
    from bench_runner.environment.sides import read_side
    from bench_runner.report.environments import diff_text

    found = compare_sides(read_side(left), read_side(right))
    if as_json:
        output.emit_json(to_document(found))
    else:
        output.emit_text(diff_text(found))
    return EXIT_OK if found.same else EXIT_FINDINGS


def export(
    prefix: Annotated[Path | None, typer.Argument(help="Default: the environment that runs this program.")] = None,
    out: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="An export is JSON in any case.")] = False,  # noqa: ARG001
) -> int:
    """Write down all that is installed, also by pip or uv, to compare it later or elsewhere.

    Example: bench-runner env export -o before.json
    """
    import json
    import sys

    from bench_runner.environment.export import export_prefix, to_document
    from bench_runner.report.files import write_text

    document = to_document(export_prefix(prefix or Path(sys.prefix)))
    if out is None:
        output.emit_json(document)
    else:
        write_text(out, json.dumps(document, indent=2, ensure_ascii=True) + "\n")
        output.note(f"written: {out}")
    return EXIT_OK


def prune(
    root: Annotated[Path, typer.Option(help="The tree with asv.conf.json and the locks.")] = Path(),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Remove locked environments under .asv/env that belong to no lock in the tree any more.

    Example: bench-runner env prune --dry-run
    """
    from bench_runner.environment.lockfile import read_lock
    from bench_runner.environment.prefix import ENVIRONMENTS
    from bench_runner.environment.prune import list_environments, remove

    locks = frozenset(read_lock(path).sha256 for path in sorted(root.glob("conda-lock*.yml")))
    if not locks:
        raise UsageError(f"--root {root}: no conda-lock*.yml there, so nothing tells old environments from new")
    found = list_environments(root / ENVIRONMENTS, locks)
    removable = [e for e in found if e.state in ("old", "unfinished")]
    removed = removable if dry_run else [e for e in removable if remove(e)]
    kept = [e for e in found if e not in removed]
    if as_json:
        entries = {
            name: [{"path": str(e.path), "state": e.state, "size_bytes": e.size_bytes} for e in chosen]
            for name, chosen in (("removed", removed), ("kept", kept))
        }
        output.emit_json({"schema": PRUNE_SCHEMA, "dry_run": dry_run, **entries})
    else:
        for environment in removed:
            word = "would remove" if dry_run else "removed"
            output.emit_text(f"{word} {environment.path} ({environment.state}, {environment.size_bytes / 1e6:.1f} MB)")
        for environment in kept:
            output.emit_text(f"kept {environment.path} ({environment.state})")
        if not found:
            output.emit_text(f"no locked environments in {root / ENVIRONMENTS}")
    return EXIT_NOT_CARRIED_OUT if len(removed) < len(removable) else EXIT_OK
