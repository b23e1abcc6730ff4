from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench_runner import cli, store
from tests.test_report_html import HOSTILE, session

pytest.importorskip("matplotlib", reason="plots as files need matplotlib")


@pytest.mark.slow
def test_every_figure_becomes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.write([*session(), *session(session_id="old", day=1)], tmp_path / "results", label="x")
    arguments = ["--results", str(tmp_path / "results"), "--session", "all", "--plots", str(tmp_path / "plots")]
    assert cli.main(["report", *arguments]) == 0
    files = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert files == [
        "box-01-training-mlp-fp32-batch-8-per-device-efficiency.png",
        "box-01-training-mlp-fp32-batch-8-per-device-throughput.png",
        "box-02-parts-of-a-step-mlp-fp32-batch-8-per-device-phases.png",
        "box-03-memory-dataparallel-on-2-mlp-fp32-batch-8-per-devi-memory.png",
        "box-04-memory-ddp-on-2-mlp-fp32-batch-8-per-device-memory.png",
        "box-05-all-reduce-over-gloo-busbw.png",
        "box-05-all-reduce-over-gloo-latency.png",
        "box-06-history-mlp-fp32-batch-8-per-device-history.png",
    ]
    assert all((tmp_path / "plots" / name).read_bytes().startswith(b"\x89PNG") for name in files)
    assert "wrote 8 plots" in capsys.readouterr().err


def test_names_make_harmless_files_and_plain_titles(tmp_path: Path) -> None:
    store.write(session(HOSTILE + "$x_1$")[:2], tmp_path / "results", label="x")
    arguments = ["--results", str(tmp_path / "results"), "--plots", str(tmp_path / "plots"), "--plot-format", "svg"]
    assert cli.main(["report", *arguments]) == 0
    paths = list((tmp_path / "plots").iterdir())
    assert len(paths) == 4
    assert all(path.name.startswith("script-alert-1-script-x_1-x") for path in paths)
    assert all(ElementTree.parse(path).getroot().tag.endswith("svg") for path in paths)


def test_bad_place_and_format_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.write(session(), tmp_path / "results", label="x")
    (tmp_path / "file").write_text("")
    for arguments, code in ((["--plots", str(tmp_path / "file")], 3), (["--plot-format", "gif"], 2)):
        assert cli.main(["report", "--results", str(tmp_path / "results"), *arguments]) == code
        assert capsys.readouterr().err.count("\n") == 1
