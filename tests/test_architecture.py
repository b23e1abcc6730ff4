"""The wall and the layers, held by reading the imports of every module."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "bench_runner"
SOURCES = sorted(PACKAGE.rglob("*.py"))


def without_types(tree: ast.AST) -> ast.AST:
    """The tree less what is imported for the type checker alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return tree


def imported(path: Path, *, at_run_time: bool = False) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    names: set[str] = set()
    tree: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(without_types(tree) if at_run_time else tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_torch_is_imported_in_the_worker_alone():
    offenders = [
        str(path.relative_to(ROOT))
        for path in [*SOURCES, *(ROOT / "benchmarks").glob("*.py")]
        if PACKAGE / "worker" not in path.parents
        and any(name.split(".")[0] in ("torch", "torchvision") for name in imported(path))
    ]
    assert offenders == []


def test_only_one_module_prints():
    offenders = []
    for path in SOURCES:
        if path == PACKAGE / "cli" / "output.py" or PACKAGE / "worker" in path.parents:
            continue
        offenders += [
            f"{path.relative_to(ROOT)}:{node.lineno}"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        ]
    assert offenders == []


def test_nothing_but_the_command_line_imports_it():
    allowed = {PACKAGE / "__main__.py", PACKAGE / "asv_environment.py"}  # asv's process has a terminal of its own
    offenders = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if PACKAGE / "cli" not in path.parents
        and path not in allowed
        and any(name.startswith("bench_runner.cli") for name in imported(path))
    ]
    assert offenders == []


def test_reports_and_analysis_start_nothing():
    offenders = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("analysis", "report")
        for path in (PACKAGE / folder).rglob("*.py")
        for name in imported(path)
        if name.split(".")[0] == "subprocess" or name.startswith(("bench_runner.launch", "bench_runner.worker"))
    ]
    assert offenders == []


def test_benchmarks_hold_names_and_parameters_only():
    """No branch, no loop, no arithmetic: a metric is one call."""
    for path in (ROOT / "benchmarks").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        logic = [
            node for node in ast.walk(tree) if isinstance(node, ast.If | ast.For | ast.While | ast.Try | ast.Lambda)
        ]
        assert logic == [], f"{path.name}:{logic[0].lineno}"


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    return {name.split(".")[0] for name in out.stdout.split()}


HEAVY = {"torch", "pandas", "numpy", "rich", "pydantic", "scipy", "plotly"}


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import benchmarks.training, benchmarks.memory, benchmarks.collectives, benchmarks.checkpoint", HEAVY),
        ("import bench_runner", {*HEAVY, "typer"}),
        ("import bench_runner.cli; bench_runner.cli.build_app()", HEAVY),
        ("import bench_runner.measure", {"torch", "pandas", "rich", "plotly"}),
        ("import bench_runner.supervisor", {*HEAVY, "psutil", "typer"}),
    ],
)
def test_what_has_to_start_quickly_imports_little(statement, unwanted):
    assert loaded_by(statement) & unwanted == set()


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_modules_import_each_other_in_a_circle():
    modules = {module_name(path) for path in SOURCES}
    graph = {module_name(path): imported(path, at_run_time=True) & modules - {module_name(path)} for path in SOURCES}
    # Packages are imported along with each of their modules; what their __init__ holds is no way back.
    for path in SOURCES:
        if path.name == "__init__.py":
            graph[module_name(path)] = set()
    circle = None
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]
    assert circle is None
