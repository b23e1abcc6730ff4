"""The command line: parses, calls, prints, and alone decides exit codes.

One module per command.  Each defines plain functions, imports what it needs inside them (``--help`` must stay quick)
and is registered in ``COMMANDS``.  A function returns the exit code; errors are raised as BenchRunnerError.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import typer

from bench_runner.cli import output
from bench_runner.errors import EXIT_NOT_CARRIED_OUT, EXIT_USAGE, BenchRunnerError, UsageError

COMMANDS: Final = (
    "run",
    "report",
    "doctor",
    "env",
    "compare",
    "baseline",
    "noise",
    "verify",
    "gate",
    "fleet",
    "predict",
    "slurm",
)
"""Modules of this package; each has ``register(app: typer.Typer) -> None``."""

_ClickException: Final[Any] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
_INTERRUPTED: Final = 130


def build_app() -> typer.Typer:
    """The typer application with every command registered."""
    app = typer.Typer(
        name="bench-runner",
        help="Benchmark and verify PyTorch on several GPUs: run, verify, compare, gate, doctor.",
        rich_markup_mode=None,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def root() -> None:
        """Benchmark and verify PyTorch on several GPUs."""

    for name in COMMANDS:
        import_module(f"bench_runner.cli.{name}").register(app)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``--debug`` anywhere before ``--`` shows tracebacks."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    debug = "--debug" in arguments[:end] or bool(os.environ.get("BENCH_RUNNER_DEBUG"))
    arguments = [a for i, a in enumerate(arguments) if a != "--debug" or i > end]
    as_json = "--json" in arguments[:end]
    output.survive_closed_streams()
    try:
        _refuse_empty(arguments[:end])
        code = build_app()(args=arguments, prog_name="bench-runner", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except BenchRunnerError as error:
        return _fail(error, error.exit_code, as_json=as_json, debug=debug)
    except _ClickException as error:
        return _fail(error, EXIT_USAGE, as_json=as_json, debug=debug, text=error.format_message())
    except (typer.Abort, KeyboardInterrupt):
        output.note("bench-runner: interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (``| head``): no error of ours; keep the interpreter from flushing again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _INTERRUPTED
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        text = f"{error.strerror or error}{where}"
        return _fail(error, EXIT_NOT_CARRIED_OUT, as_json=as_json, debug=debug, text=text)
    except Exception as error:  # noqa: BLE001 - a defect of ours must never look like a finding or a regression
        text = f"internal error: {type(error).__name__}: {error}; run it again with --debug and report what it shows"
        return _fail(error, EXIT_NOT_CARRIED_OUT, as_json=as_json, debug=debug, text=text)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """An empty argument comes from a shell variable that is not set, and would be taken for the working directory."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            where = argument or f"'' after {before}" if before or argument else "''"
            raise UsageError(f"{where}: an empty value; is a shell variable not set?")


def _fail(error: BaseException, code: int, *, as_json: bool, debug: bool, text: str | None = None) -> int:
    message = text or str(error) or type(error).__name__
    if debug:
        output.note("".join(traceback.format_exception(error)))
    if as_json:
        try:
            output.emit_json({"schema": "bench-runner/error/1", "error": message, "exit_code": code})
        except OSError as broken:
            message = f"{message} (and standard output: {broken.strerror})"
    output.error(message)
    return code
