"""The doctor's reading of logs: recorded ones, made-up ones, damaged ones."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_runner.cli import main
from bench_runner.doctor.document import fault_of
from bench_runner.doctor.log_rules import judge_logs
from bench_runner.doctor.log_times import stamp_in
from bench_runner.doctor.logfile import LogText, rank_in_name, read_log, text_log
from bench_runner.doctor.logs import summarise
from bench_runner.doctor.signatures import SIGNATURES, matching, signature_named
from bench_runner.errors import UnreadableError
from bench_runner.finding import Finding

LOGS = Path(__file__).parent / "data" / "doctor" / "logs"
FAULTY = Path(__file__).parent / "faulty"


def judged(*texts: str, world_size: int | None = None) -> list[Finding]:
    return judge_logs(summarise([text_log(f"log{i}", text) for i, text in enumerate(texts)]), world_size=world_size)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("checkpoint_device0", "checkpoint-device"),
        ("different_model", "different-model"),
        ("healthy", None),
        ("loader_stuck", "straggler"),
        ("nan_on_one_rank", "loss-not-finite"),
        ("port_taken", "port-taken"),
        ("rank_dies", "rank-died"),
        ("rank_killed", "rank-died"),
        ("rank_missing", "rank-missing"),
        ("straggler", "straggler"),
        ("uneven_loader", "uneven-batches"),
        ("uneven_then_exit", "uneven-batches"),
        ("unused_parameters", "unused-parameters"),
        ("nccl_transport", "device-or-link"),
        ("nccl_uneven", "uneven-batches"),
        ("nccl_straggler", "straggler"),
        ("nccl_mismatch", "collective-mismatch"),
    ],
)
def test_recorded_log_gets_its_verdict(name: str, fault: str | None) -> None:
    findings = judge_logs(summarise([read_log(LOGS / f"{name}.log")]))
    assert fault_of(findings) == fault
    assert all(finding.evidence for finding in findings if finding.status == "fail")


@pytest.mark.parametrize(
    ("name", "fault"),
    [("rank0_barrier", "rank-0-only-collective"), ("uneven_then_validation", "uneven-batches")],
)
def test_with_the_program_at_hand_its_blocks_decide(name: str, fault: str) -> None:
    source = (FAULTY / f"{name}.py").read_text()
    findings = judge_logs(summarise([read_log(LOGS / f"{name}.log")]), {f"/srv/train/{name}.py": source})
    assert fault_of(findings) == fault


def test_dying_rank_and_first_traceback_are_named() -> None:
    (finding,) = judge_logs(summarise([read_log(LOGS / "rank_dies.log")]))
    assert "rank 1" in finding.message
    assert "sample 1003 is truncated" in finding.message
    assert any("rank_dies.py:13 in read_sample" in line for line in finding.evidence)


def test_lagging_rank_of_nccl_is_named_and_no_longer_timeout_advised() -> None:
    (finding,) = judge_logs(summarise([read_log(LOGS / "nccl_uneven.log")]))
    assert "rank 2 is behind, at collective 1207 of 1208" in finding.message
    (silent,) = judge_logs(summarise([read_log(LOGS / "nccl_straggler.log")]))
    assert silent.message.startswith("rank 2 never came")
    for name in ("nccl_transport", "nccl_straggler", "nccl_uneven"):
        for found in judge_logs(summarise([read_log(LOGS / f"{name}.log")])):
            assert "raise" not in (found.remedy or "")


def test_world_size_tells_a_silent_last_rank() -> None:
    text = (LOGS / "nccl_transport.log").read_text()
    (finding,) = judged(text, world_size=5)
    assert finding.check == "doctor.log.straggler"
    assert finding.message.startswith("rank 4 never came")


def test_one_rank_alone_is_no_ground_for_a_verdict() -> None:
    one = (LOGS / "nccl_transport.log").read_text().splitlines()[0]
    assert fault_of(judged(one, world_size=1)) == "hang-unexplained"


def test_ranks_in_files_of_their_own_are_read_together() -> None:
    lines = (LOGS / "nccl_uneven.log").read_text().splitlines(keepends=True)
    findings = judged("".join(lines[:4]), "".join(lines[4:]))
    assert "rank 2 is behind" in findings[0].message


def test_rendezvous_that_waited_says_missing_rank_and_not_network() -> None:
    text = "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.\n"
    assert fault_of(judged(text)) == "rank-missing"


def test_nan_names_the_rank_that_showed_it_first() -> None:
    (finding,) = judge_logs(summarise([read_log(LOGS / "nan_on_one_rank.log")]))
    assert finding.message.startswith("rank 1 first")


@pytest.mark.parametrize(
    "line",
    [
        "loss: 0.0031 inference took 2 s",
        "Downloading nanogpt weights, loss weights nano",
        "val loss infrequently improves",
        "loss = 12.5, info: lr=1e-4",
        "using gpu 3, port 29500, 8/8 clients joined the chat",
    ],
)
def test_innocent_lines_are_no_signature(line: str) -> None:
    assert list(matching(line)) == []
    assert fault_of(judged(line)) is None


EXAMPLES = {
    "port-taken": "RuntimeError: The server socket has failed to listen: errno: 98 - Address already in use",
    "unused-parameters": (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
    ),
    "different-model": (
        "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 4 params, while rank 1 has 6"
    ),
    "checkpoint-device": (
        "RuntimeError: Attempting to deserialize object on CUDA device 3 but torch.cuda.device_count() is 1"
    ),
    "rank-missing": "Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
    "out-of-memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    "shared-memory": (
        "ERROR: Unexpected bus error encountered in worker. It might be due to insufficient shared memory (shm)."
    ),
    "loader-worker-died": "RuntimeError: DataLoader worker (pid(s) 4711, 4712) exited unexpectedly",
    "collective-mismatch": "Detected mismatch between collectives on ranks. Rank 0 is running collective: ...",
    "interface": "NCCL WARN Bootstrap : no socket interface found",
    "duplicate-device": "NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000",
    "barrier-device": (
        "using GPU 0 as device used by this process is currently unknown. This can potentially cause a hang"
    ),
    "locked-memory": "NCCL WARN Call to ibv_reg_mr failed",
    "nccl-library": "ImportError: libtorch_cuda.so: undefined symbol: ncclCommRegister",
    "mkl-pin": "ImportError: libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent",
    "numpy-abi": "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1.0",
    "driver-too-old": "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    "architecture-missing": "CUDA error: no kernel image is available for execution on the device",
    "fabric": "Error 802: system not yet initialized",
    "torchvision-mismatch": "RuntimeError: operator torchvision::nms does not exist",
    "cudnn-library": "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (8, 9, 7)",
    "device-lost": "NVRM: GPU at 0000:3b:00.0 has fallen off the bus.",
    "device-fault": "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711",
    "fork-after-device": "RuntimeError: Cannot re-initialize CUDA in forked subprocess.",
    "loss-not-finite": "epoch 3 step 17 loss: nan",
    "collective-timeout": "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE",
    "gloo-timeout": "Timed out waiting 1800000ms for recv operation to complete",
    "peer-gone": "Connection closed by peer [127.0.0.1]:14247",
}


def test_every_signature_has_an_example_and_matches_it() -> None:
    assert set(EXAMPLES) == {signature.name for signature in SIGNATURES}
    for name, line in EXAMPLES.items():
        assert name in [signature.name for signature in matching(line)]
        assert signature_named(name).remedy


def test_unknown_signature_is_an_error() -> None:
    with pytest.raises(KeyError):
        signature_named("no-such")


def test_huge_log_is_read_at_both_ends_only(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    with path.open("wb") as file:
        file.write(b"RuntimeError: Address already in use\n")
        file.seek(300 << 20)  # a hole: no disk is used
        file.write(b"\nloss: nan\n")
    log = read_log(path, largest_bytes=1 << 16)
    assert log.skipped_bytes > 299 << 20
    findings = judge_logs(summarise([log]))
    assert {f.check for f in findings} >= {"doctor.log.port-taken", "doctor.log.loss-not-finite", "doctor.log.not-read"}


def test_foreign_bytes_endless_lines_and_control_characters_are_read(tmp_path: Path) -> None:
    path = tmp_path / "odd.log"
    path.write_bytes(b"\xff\xfe\x00loss\r" + b"x" * 1_000_000 + b"\r\n\x1b[2Jloss: nan \x80\n")
    assert fault_of(judge_logs(summarise([read_log(path)]))) == "loss-not-finite"


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo"])
def test_no_file_is_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(UnreadableError, match="x: "):
        read_log(path)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank_3.log", 3),
        ("job-rank12.txt", 12),
        ("attempt_0/1/stderr.log", 1),
        ("crank7.log", None),
        ("train.log", None),
        ("logs/stderr.log", None),
    ],
)
def test_rank_from_the_name(name: str, rank: int | None) -> None:
    assert rank_in_name(Path(name)) == rank


_WORDS = st.sampled_from(
    [
        *EXAMPLES.values(),
        "Traceback (most recent call last):",
        '  File "/a/b.py", line 3, in f',
        "    x()",
        "ValueError: x",
        "[rank0]: ",
        "[rank1]:",
        "3: ",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : -9 (pid: 3) ",
        "-- Process 1 terminated",
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(_WORDS | st.text(max_size=40), max_size=3).map(" ".join), max_size=30))
def test_any_text_gets_findings_with_remedies(lines: list[str]) -> None:
    findings = judged("\n".join(lines))
    assert findings
    for finding in findings:
        assert finding.check.startswith("doctor.log.")
        assert finding.status in ("pass", "skip") or finding.remedy


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=2000), st.integers(min_value=2, max_value=500))
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, data: bytes, largest: int) -> None:
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(data)
    log = read_log(path, largest_bytes=largest)
    assert isinstance(log, LogText)
    assert judge_logs(summarise([log]))


TRACE = """{at} ERROR training failed
Traceback (most recent call last):
  File "/srv/train/train.py", line {line}, in main
    step()
{error}
"""


def rank_log(rank: int, error: str, at: str = "", name: str | None = None) -> LogText:
    text = TRACE.format(at=at, line=10 + rank, error=error)
    return replace(text_log(name or f"logs/rank_{rank}.log", text), rank=rank)


def judged_files(*logs: LogText, world_size: int | None = None) -> list[Finding]:
    return judge_logs(summarise(logs), world_size=world_size)


def test_every_ranks_first_error_is_told_and_the_first_in_time_named() -> None:
    later = rank_log(0, "ValueError: zero", "2026-11-30 20:14:25,500")
    first = rank_log(1, "KeyError: 'one'", "2026-11-30 20:14:25,100")
    (finding,) = judged_files(later, first)
    assert finding.message.startswith("rank 1 failed first: KeyError: 'one'; rank 0 has an error of its own")
    assert any("rank 0, logs/rank_0.log:2: ValueError: zero" in line for line in finding.evidence)


def test_without_times_no_order_is_made_up() -> None:
    (finding,) = judged_files(rank_log(0, "ValueError: zero"), rank_log(1, "KeyError: 'one'"))
    assert "first:" not in finding.message
    assert "no times say which came first" in finding.message
    assert any("KeyError" in line for line in finding.evidence)


def test_launchers_times_order_what_the_lines_do_not() -> None:
    report = text_log(
        "torchrun.log",
        "".join(
            f"  time      : 2026-11-30_20:14:{second}\n  rank      : {rank} (local_rank: 0)\n  exitcode  : 1 (pid: 5)\n"
            for rank, second in ((0, 30), (1, 20))
        ),
    )
    findings = judged_files(rank_log(0, "ValueError: zero"), rank_log(1, "KeyError: 'one'"), report)
    assert findings[0].message.startswith("rank 1 failed first")


def test_error_of_another_rank_stands_beside_a_known_cause() -> None:
    known = rank_log(0, "torch.OutOfMemoryError: CUDA out of memory.", "2026-11-30 20:14:25")
    own = rank_log(1, "ValueError: one", "2026-11-30 20:14:20")
    checks = [finding.check for finding in judged_files(known, own)]
    assert checks == ["doctor.log.rank-died", "doctor.log.out-of-memory"]
    late = rank_log(1, "ValueError: one", "2026-11-30 20:14:30")
    assert [finding.check for finding in judged_files(known, late)] == checks[::-1]


def test_rank_whose_log_is_not_here_is_named_and_not_accused() -> None:
    lines = (LOGS / "nccl_straggler.log").read_text().splitlines()
    files = [
        replace(
            text_log(f"rank_{rank}.log", "\n".join(line for line in lines if line.startswith(f"[rank{rank}]"))),
            rank=rank,
        )
        for rank in (0, 1, 3)
    ]
    findings = judged_files(*files)
    by_check = {finding.check: finding for finding in findings}
    assert "rank 2 is not among these files" in by_check["doctor.log.ranks-not-here"].message
    assert "doctor.log.straggler" not in by_check
    assert "cannot be told" in by_check["doctor.log.hang-unexplained"].message


def test_world_size_in_a_log_tells_that_the_last_ranks_are_not_here() -> None:
    files = [replace(text_log(f"rank{r}.log", f"world_size=4, rank {r} begins"), rank=r) for r in (0, 1)]
    findings = judged_files(*files)
    assert [finding.status for finding in findings] == ["warn", "pass"]
    assert "ranks 2, 3 are not among" in findings[0].message
    assert judged_files(*files, world_size=2)[0].status == "pass"


@pytest.mark.parametrize(
    ("logs", "word"),
    [
        (
            [rank_log(1, "E: x", name="a/rank1.log"), rank_log(1, "E: x", name="b/rank1.log"), rank_log(0, "E: x")],
            "rank 1 has",
        ),
        (
            [replace(text_log("rank_1.log", "[rank0]: a\n[rank0]: b"), rank=1), rank_log(0, "E: x")],
            "lines are of rank 0",
        ),
        (
            [replace(text_log(f"rank_{n}.log", f"world size: {n + 2}"), rank=n) for n in (0, 1)],
            "names a world size of 2",
        ),
        ([replace(text_log(f"rank_{n}.log", "world size: 2"), rank=n) for n in (0, 1, 2)], "rank 2 cannot be"),
    ],
)
def test_logs_that_contradict_each_other(logs: list[LogText], word: str) -> None:
    (finding,) = [f for f in judged_files(*logs) if f.check == "doctor.log.ranks-conflict"]
    assert any(word in line for line in finding.evidence)


def test_streams_of_one_rank_are_no_conflict() -> None:
    logs = [replace(text_log(f"attempt_0/{r}/{n}.log", "fine"), rank=r) for r in (0, 1) for n in ("stdout", "stderr")]
    assert [finding.status for finding in judged_files(*logs)] == ["pass"]


@pytest.mark.parametrize("data", [b"", b"\n \n", b"\x1f\x8b\x08" + bytes(range(256)), bytes(range(256)) * 8])
def test_empty_and_binary_logs_are_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes) -> None:
    path, other = tmp_path / "rank_0.log", tmp_path / "rank_1.log"
    path.write_bytes(data)
    assert main(["doctor", "log", str(path)]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "nothing to judge" in said.err
    other.write_text("RuntimeError: Address already in use\n")
    assert main(["doctor", "log", str(path), str(other), "--json"]) == 1
    assert "doctor.log.nothing-to-judge" in capsys.readouterr().out


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80))
def test_any_text_has_a_time_or_none(text: str) -> None:
    stamp = stamp_in(text)
    assert stamp is None or len(stamp) == 3


def test_times_of_the_usual_forms() -> None:
    assert stamp_in("2026-11-30 20:14:25,500 INFO x") == stamp_in("2026-11-30T20:14:25.5") == (11, 30, 72865.5)
    assert stamp_in("[E1104 09:13:20.612345678 ProcessGroupNCCL.cpp:633]") == (11, 4, 33200.612345678)
