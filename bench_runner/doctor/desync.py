"""Which fault explains where the ranks stand: pure, over one view of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bench_runner.doctor.stacks import Wait, enclosing_loops, rank_guard

Condition = Literal["running", "left", "failed"]
_COMMUNICATION: Final = frozenset(
    ("collective", "barrier", "gradients", "model-construction", "process-group", "shutdown")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """What is known of one rank.  ``left``: it ended without an error; ``failed``: it ended with one, and ``wait`` is
    where it then stood; ``wait`` is None where no stack could be had.  ``worker_lines`` are where its data loader's
    worker processes stand."""

    rank: int
    condition: Condition
    wait: Wait | None = None
    worker_lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.wait is not None:
            return f"rank {self.rank}: in {self.wait}"
        return f"rank {self.rank}: " + ("ended without an error" if self.condition == "left" else "no stack")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The name of the fault, one sentence, and the lines that show it."""

    fault: str
    message: str
    evidence: tuple[str, ...]


def rank_list(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0, 1, 2`` (shortened when there are many)."""
    ordered = sorted(ranks)
    shown = ", ".join(map(str, ordered[:8])) + (f", … ({len(ordered)} in all)" if len(ordered) > 8 else "")
    return f"rank{'s' if len(ordered) != 1 else ''} {shown}"


def ranks_do(ranks: Sequence[int], singular: str, plural: str) -> str:
    """``rank 1 waits`` or ``ranks 0, 1 wait``."""
    return f"{rank_list(ranks)} {singular if len(ranks) == 1 else plural}"


def diagnose(
    views: Sequence[RankView],
    sources: Mapping[str, str],
    *,
    world_size: int | None = None,
    evidence: tuple[str, ...] = (),
) -> Diagnosis:
    """Name the fault behind ranks that do not move.  ``sources``: a file's name to its text, as far as it is there."""
    lines = tuple(str(view) for view in sorted(views, key=lambda view: view.rank)) + evidence
    for rule in (_loader, _missing, _guarded, _straggler, _left, _apart, _together):
        found = rule(views, sources, world_size)
        if found is not None:
            return Diagnosis(fault=found[0], message=found[1], evidence=(*lines, *found[2]))
    return Diagnosis(
        fault="hang-unexplained", message="nothing moves, and the stacks do not say what for", evidence=lines
    )


_Found = tuple[str, str, tuple[str, ...]]


def _waiting(views: Sequence[RankView]) -> list[tuple[RankView, Wait]]:
    return [(view, view.wait) for view in views if view.wait is not None]


def _communicating(views: Sequence[RankView]) -> list[tuple[RankView, Wait]]:
    return [(view, wait) for view, wait in _waiting(views) if wait.kind in _COMMUNICATION]


def _loader(views: Sequence[RankView], _sources: Mapping[str, str], _world: int | None) -> _Found | None:
    stuck = [view for view, wait in _waiting(views) if wait.kind == "loader"]
    if not stuck:
        return None
    workers = tuple(f"rank {view.rank}'s loader worker: {line}" for view in stuck for line in view.worker_lines)
    return (
        "loader-stuck",
        f"{ranks_do([v.rank for v in stuck], 'waits', 'wait')} for a data loader, the others for that",
        workers,
    )


def _missing(views: Sequence[RankView], _sources: Mapping[str, str], world_size: int | None) -> _Found | None:
    starting = [view.rank for view, wait in _waiting(views) if wait.kind == "process-group"]
    known = {view.rank for view in views}
    absent = sorted(set(range(world_size)) - known) if world_size is not None and world_size <= 1 << 16 else []
    elsewhere = [v.rank for v, w in _waiting(views) if w.kind == "elsewhere"]
    if not starting or elsewhere:
        return None
    who = (
        f"{rank_list(absent)} did not come" if absent else "the world size is larger than the number of ranks that came"
    )
    return "rank-missing", f"{ranks_do(starting, 'waits', 'wait')} in the start of the process group; {who}", ()


def _guarded(views: Sequence[RankView], sources: Mapping[str, str], _world: int | None) -> _Found | None:
    for view, wait in _communicating(views):
        if wait.kind not in ("collective", "barrier"):
            continue
        others = [v for v in views if v.rank != view.rank and (v.wait is None or v.wait.place != wait.place)]
        for frame in wait.frames:
            guard = rank_guard(sources.get(frame.file, ""), frame.line)
            if guard and others:
                message = f"rank {view.rank} waits in {wait.operation}, which stands under `if {guard}:` ({frame})"
                return "rank-0-only-collective", message, ()
    return None


def _straggler(views: Sequence[RankView], _sources: Mapping[str, str], _world: int | None) -> _Found | None:
    elsewhere = [
        (view, wait) for view, wait in _waiting(views) if wait.kind == "elsewhere" and view.condition == "running"
    ]
    if not elsewhere or not _communicating(views):
        return None
    _view, wait = elsewhere[0]
    ranks = ranks_do([v.rank for v, _ in elsewhere], "is", "are")
    return "straggler", f"{ranks} busy with something else ({wait}), and the others wait for that", ()


def _left(views: Sequence[RankView], _sources: Mapping[str, str], _world: int | None) -> _Found | None:
    left = [view.rank for view in views if view.condition == "left"]
    waiting = [view.rank for view, _ in _communicating(views)]
    if not left or not waiting:
        return None
    message = f"{rank_list(left)} ended without an error while {rank_list(waiting)} still had steps to do"
    return "uneven-batches", message, ()


def _apart(views: Sequence[RankView], sources: Mapping[str, str], _world: int | None) -> _Found | None:
    communicating = _communicating(views)
    if len({(wait.kind, wait.place) for _, wait in communicating}) < 2:
        return None
    loops = {view.rank: _loops_of(wait, sources) for view, wait in communicating}
    behind = _left_in_loop(communicating, loops)
    if behind:
        ahead = [view.rank for view, _ in communicating if view.rank not in behind]
        message = (
            f"{ranks_do(behind, 'still waits', 'still wait')} in a step of a loop that {ranks_do(ahead, 'has', 'have')}"
            " left: fewer steps there, in this loop or in one before it"
        )
        return "uneven-batches", message, ()
    return "collective-mismatch", "the ranks wait in different collectives", ()


def _loops_of(wait: Wait, sources: Mapping[str, str]) -> frozenset[tuple[str, int]]:
    """The loops that a rank is in, over all its frames, each as (file, first line)."""
    return frozenset(
        (frame.file, first)
        for frame in wait.frames
        for first, _ in enclosing_loops(sources.get(frame.file, ""), frame.line)
    )


def _left_in_loop(
    communicating: Sequence[tuple[RankView, Wait]], loops: Mapping[int, frozenset[tuple[str, int]]]
) -> list[int]:
    """Ranks in a loop that some other rank has left; without sources, those in a step while others are past it."""
    past = {view.rank for view, wait in communicating if wait.kind in ("barrier", "shutdown", "collective")}
    in_step = [view.rank for view, wait in communicating if wait.kind == "gradients"]
    if any(loops.values()):
        behind = [view.rank for view, _ in communicating if any(loops[view.rank] - other for other in loops.values())]
        in_both = [rank for rank in behind if rank in in_step]  # two loops one after the other: the step's is the first
        if in_both and len(behind) == len(communicating):
            behind = in_both
    else:
        behind = in_step if past else []
    return behind if len(behind) < len(communicating) else []


def _together(views: Sequence[RankView], _sources: Mapping[str, str], world_size: int | None) -> _Found | None:
    waits = _waiting(views)
    if not waits or len({(wait.kind, wait.place) for _, wait in waits}) > 1:
        return None
    kind = waits[0][1].kind
    complete = len(waits) == (world_size if world_size is not None else len(views)) and len(waits) > 1
    if complete and kind in _COMMUNICATION | {"device"}:
        return "device-or-link", f"all ranks wait in {waits[0][1]}: none is behind", ()
    return None
