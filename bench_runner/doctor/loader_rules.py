"""What the ranks' data loaders give, judged: pure rules over one view of each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench_runner.doctor.desync import rank_list, ranks_do
from bench_runner.doctor.faults import FAULTS
from bench_runner.finding import Finding, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochView:
    """One pass of one rank.  ``ids``: of all its samples in order, None where they were too many to keep; ``digests``
    of their contents, in the same order, None where these could not be assigned to them."""

    batches: int
    samples: int
    first_size: int
    last_size: int
    first_ids: tuple[int, ...]
    ids: Sequence[int] | None
    digests: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderView:
    """One rank.  ``described`` is what ``worker.doctor_loader.describe`` says; ``error`` what ended the rank."""

    rank: int
    described: dict[str, Any]
    epochs: tuple[EpochView, ...]
    error: str | None = None
    trace: str = ""
    batches_so_far: int = 0
    stacks: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderProbe:
    """All ranks.  ``max_batches`` is 0 when every epoch was run to its end."""

    factory: str
    views: tuple[LoaderView, ...]
    timed_out: bool = False
    max_batches: int = 0
    seconds: float = 0.0


_SHARD: Final = (
    "give the loader a DistributedSampler(dataset), or the iterable data set every world_size-th sample: "
    "itertools.islice(samples, rank, None, world_size)"
)
_SHARD_WORKERS: Final = (
    "in the data set's __iter__ take get_worker_info() into account: with w workers a rank has world_size × w shards, "
    "and this one's number is rank × w + worker id"
)


def judge_loader(probe: LoaderProbe) -> list[Finding]:
    """All findings; when a rank's loader failed or did not end, the counts are not judged."""
    broken = _errors(probe) or _unfinished(probe)
    if broken:
        return broken
    rules: tuple[Callable[[LoaderProbe], list[Finding]], ...] = (
        _counts,
        _last_batches,
        _promises,
        _sharing,
        _workers_share,
        _missed,
        _order,
        _cores,
        _batch,
    )
    return [finding for rule in rules for finding in rule(probe)]


def _finding(
    name: str,
    status: Status,
    message: str,
    *,
    evidence: tuple[str, ...] = (),
    remedy: str | None = None,
    expected: str | None = None,
    actual: str | None = None,
) -> Finding:
    return Finding(
        check=f"doctor.loader.{name}",
        status=status,
        message=message,
        evidence=evidence,
        remedy=remedy,
        expected=expected,
        actual=actual,
    )


def _errors(probe: LoaderProbe) -> list[Finding]:
    failed = [view for view in probe.views if view.error is not None]
    own = [view for view in failed if "Connection closed by peer" not in (view.error or "")] or failed
    if not own:
        return []
    first = own[0]
    return [
        _finding(
            "error",
            "fail",
            f"{rank_list([view.rank for view in own])}: {first.error}",
            evidence=tuple(first.trace.strip().splitlines()[-12:]),
            remedy=f"repair the error; it comes without any training, from {probe.factory} alone",
        )
    ]


def _unfinished(probe: LoaderProbe) -> list[Finding]:
    if not probe.timed_out:
        return []
    slow = [view for view in probe.views if view.stacks or not view.epochs]
    evidence = tuple(
        f"rank {v.rank}: {v.batches_so_far} batches of epoch {len(v.epochs)} when time was up" for v in slow
    )
    stacks = tuple(slow[0].stacks.strip().splitlines()[-20:]) if slow else ()
    return [
        _finding(
            "not-finished",
            "fail",
            f"{rank_list([view.rank for view in slow])} did not end in {probe.seconds:.0f} s: stuck, endless, or slow",
            evidence=evidence + stacks,
            remedy=(
                "look at the stacks; for a large or endless data set set --max-batches, or --deadline to wait longer"
            ),
        )
    ]


def _counts(probe: LoaderProbe) -> list[Finding]:
    """Different numbers of batches: said with the batch at which the training would hang."""
    without = [view.rank for view in probe.views if any(epoch.batches == 0 for epoch in view.epochs)]
    if without:
        with_some = [view.rank for view in probe.views if view.rank not in without]
        then = f"; {rank_list(with_some)} would wait in the first batch" if with_some else ""
        remedy = "give every rank samples: fewer ranks, a smaller batch, or no drop_last for so small a data set"
        return [
            _finding("no-samples", "fail", f"{ranks_do(without, 'gets', 'get')} no sample at all{then}", remedy=remedy)
        ]
    for epoch in range(min(len(view.epochs) for view in probe.views)):
        counts = {view.rank: view.epochs[epoch].batches for view in probe.views}
        if len(set(counts.values())) > 1:
            return [_uneven(probe, epoch, counts)]
    first = probe.views[0].epochs[0]
    limited = f" (no more than {probe.max_batches} were asked for)" if first.batches == probe.max_batches else ""
    return [_finding("batches", "pass", f"every rank has {first.batches} batches in each epoch{limited}")]


def _uneven(probe: LoaderProbe, epoch: int, counts: dict[int, int]) -> Finding:
    fewest, most = min(counts.values()), max(counts.values())
    short = [rank for rank, count in counts.items() if count == fewest]
    waiting = [rank for rank, count in counts.items() if count > fewest]
    return _finding(
        "uneven-batches",
        "fail",
        f"the training would hang in batch {fewest + 1} of epoch {epoch + 1}: {rank_list(waiting)} would wait there for"
        f" {rank_list(short)}, with only {fewest}",
        expected=f"{most} batches on every rank" if probe.max_batches == 0 else "as many batches on every rank",
        actual=", ".join(f"rank {rank}: {count}" for rank, count in sorted(counts.items())[:16]),
        remedy=FAULTS["uneven-batches"].remedy,
    )


def _last_batches(probe: LoaderProbe) -> list[Finding]:
    sizes = {view.rank: view.epochs[0].last_size for view in probe.views}
    full = max(view.epochs[0].first_size for view in probe.views)
    shown = ", ".join(f"rank {rank}: {size}" for rank, size in sorted(sizes.items())[:16])
    if len({view.epochs[0].batches for view in probe.views}) > 1:
        return []
    if len(set(sizes.values())) > 1:
        message = (
            "the last batch differs in size between ranks: the average of gradients weighs their samples unequally"
        )
        remedy = "use drop_last=True, or a DistributedSampler, which makes the shards equal"
        return [_finding("last-batch-uneven", "warn", message, actual=shown, remedy=remedy)]
    last = next(iter(sizes.values()))
    if last == 1 and full > 1:
        message = "the last batch has a single sample, with which batch normalisation fails while training"
        return [_finding("last-batch-single", "warn", message, actual=shown, remedy="use drop_last=True")]
    if last < full:
        return [_finding("last-batch", "pass", f"the last batch is smaller: {last} of {full} samples, on every rank")]
    return []


def _promises(probe: LoaderProbe) -> list[Finding]:
    """``len(loader)`` against what came: schedules and progress bars rely on it."""
    wrong = [
        (view.rank, view.described.get("batches_promised"), view.epochs[0].batches)
        for view in probe.views
        if view.described.get("batches_promised") not in (None, view.epochs[0].batches)
    ]
    if not wrong or probe.max_batches:
        return []
    rank, promised, came = wrong[0]
    return [
        _finding(
            "length-wrong",
            "warn",
            f"len(loader) is not the number of batches on {rank_list([w[0] for w in wrong])}",
            expected=f"rank {rank}: {promised}",
            actual=f"rank {rank}: {came}",
            remedy=(
                "correct the data set's __len__: an iterable one must give the length of its shard, not of the whole"
            ),
        )
    ]


def _id_sets(probe: LoaderProbe) -> list[tuple[int, Counter[int]]] | None:
    """For each rank how often each sample came in the first epoch; None where the ids were not kept."""
    counted: list[tuple[int, Counter[int]]] = []
    for view in probe.views:
        ids = view.epochs[0].ids
        if ids is None:
            return None
        counted.append((view.rank, Counter(ids)))
    return counted


def _sharing(probe: LoaderProbe) -> list[Finding]:
    """Samples that several ranks see in one epoch."""
    counted = _id_sets(probe)
    if counted is None:
        return [_finding("samples", "skip", "too many samples to compare the ranks; give --max-batches")]
    ranks_of: Counter[int] = Counter(sample for _, counts in counted for sample in counts)
    shared = sum(1 for ranks in ranks_of.values() if ranks > 1)
    total = sum(counts.total() for _, counts in counted)
    summary = f"{total} samples seen, {len(ranks_of)} of them different"
    if shared == 0:
        return [_finding("samples", "pass", f"{summary}; no sample comes to two ranks")]
    padding = len(probe.views) - 1
    if total - len(ranks_of) <= padding and probe.views[0].described.get("sampler") == "DistributedSampler":
        return [_finding("samples", "pass", f"{summary}; {total - len(ranks_of)} fill up the last shards")]
    return [_overlap(probe, counted, ranks_of, summary)]


def _overlap(
    probe: LoaderProbe, counted: list[tuple[int, Counter[int]]], ranks_of: Counter[int], summary: str
) -> Finding:
    """The same index is the same sample only if its content is: each rank may have a data set of its own."""
    shared = {sample for sample, ranks in ranks_of.items() if ranks > 1}
    example = min(shared)
    where = [rank for rank, counts in counted if example in counts]
    described = probe.views[0].described
    of_map = described.get("style") == "map"
    named = f"sample {example}" if of_map else "one and the same sample"
    evidence = (f"{named} comes to {rank_list(where)}", f"sampler: {described.get('sampler')}")
    if of_map and not _contents_agree(probe, shared):
        message = f"{len(shared)} indices come to more than one rank, with different contents"
        remedy = (
            "right if each rank has data of its own, wrong if the difference is a random augmentation; then " + _SHARD
        )
        return _finding("overlap-unclear", "warn", message, actual=summary, evidence=evidence, remedy=remedy)
    whole = all(set(counts) == set(ranks_of) for _, counts in counted)
    message = f"{len(shared)} samples come to more than one rank"
    if whole:
        message = "every rank sees all samples: the data is not divided among the ranks"
    expected = "each sample on one rank"
    return _finding("overlap", "fail", message, expected=expected, actual=summary, evidence=evidence, remedy=_SHARD)


def _contents_agree(probe: LoaderProbe, shared: set[int]) -> bool:
    """Whether any sample that came to several ranks had the same content there; True where contents are not known."""
    first_seen: dict[int, tuple[int, int]] = {}
    for view in probe.views:
        epoch = view.epochs[0]
        if epoch.ids is None or epoch.digests is None:
            return True
        for sample, digest in zip(epoch.ids, epoch.digests, strict=True):
            rank, known = first_seen.setdefault(sample, (view.rank, digest))
            if sample in shared and rank != view.rank and known == digest:
                return True
    return False


def _workers_share(probe: LoaderProbe) -> list[Finding]:
    """Samples that one rank sees several times in an epoch: an iterable data set that its workers do not divide."""
    counted = _id_sets(probe) or []
    repeated = {rank: sum(1 for n in counts.values() if n > 1) for rank, counts in counted}
    ranks = [rank for rank, number in repeated.items() if number]
    described = probe.views[0].described
    if not ranks:
        return []
    rank = ranks[0]
    evidence = (f"rank {rank}: {repeated[rank]} samples come several times",)
    if described.get("style") == "iterable" and described.get("num_workers", 0) > 1:
        message = f"each of the {described['num_workers']} workers of {rank_list(ranks)} gives the same samples"
        return [_finding("duplicated-by-workers", "fail", message, evidence=evidence, remedy=_SHARD_WORKERS)]
    if described.get("sampler") == "DistributedSampler" and sum(repeated.values()) < len(probe.views):
        return []
    remedy = "if drawing with replacement is not meant, use a sampler without it"
    return [
        _finding(
            "duplicated",
            "warn",
            f"{ranks_do(ranks, 'sees', 'see')} samples several times an epoch",
            evidence=evidence,
            remedy=remedy,
        )
    ]


def _missed(probe: LoaderProbe) -> list[Finding]:
    counted = _id_sets(probe)
    described = probe.views[0].described
    length = described.get("dataset_length")
    lengths = {view.rank: view.described.get("dataset_length") for view in probe.views}
    if len(set(lengths.values())) > 1 and described.get("style") == "map" and not described.get("subset"):
        return _different_data(lengths)
    if counted is None or described.get("style") != "map" or length is None or probe.max_batches:
        return []
    missed = length - len(set().union(*(counts.keys() for _, counts in counted)))
    if missed <= 0:
        return []
    dropped = (described.get("batch_size") or 1) * len(probe.views)
    if described.get("drop_last") and missed < dropped:
        return [_finding("missed", "pass", f"{missed} of {length} samples are left out by drop_last")]
    if missed < len(probe.views):
        return [_finding("missed", "pass", f"{missed} of {length} samples are left out so that the shards are equal")]
    return [
        _finding(
            "missed",
            "warn",
            f"{missed} of {length} samples come to no rank",
            expected=f"{length} samples",
            actual=f"{length - missed}",
            remedy=_SHARD + "; with a shuffle of your own use the same seed on every rank",
        )
    ]


def _different_data(lengths: dict[int, Any]) -> list[Finding]:
    """Data sets of different lengths: either each rank has files of its own, or one lacks some."""
    shown = ", ".join(f"rank {rank}: {length}" for rank, length in sorted(lengths.items())[:16])
    remedy = "if every rank should see the same data set, compare the files that each lists; else make the parts equal"
    return [_finding("lengths-differ", "warn", "the ranks' data sets differ in length", actual=shown, remedy=remedy)]


def _order(probe: LoaderProbe) -> list[Finding]:
    """The same order every epoch although the sampler shuffles."""
    described = probe.views[0].described
    if any(len(view.epochs) < 2 or not view.epochs[0].first_ids for view in probe.views):
        return []
    same = [v.rank for v in probe.views if all(e.first_ids == v.epochs[0].first_ids for e in v.epochs)]
    if described.get("shuffles") is False:
        return [_finding("order", "pass", f"{described.get('sampler')} does not shuffle: the same order every epoch")]
    if len(same) < len(probe.views) or all(view.epochs[0].samples < 3 for view in probe.views):
        return [_finding("order", "pass", "the order changes from epoch to epoch")]
    if not described.get("has_set_epoch") and described.get("shuffles") is not True:
        return [_finding("order", "pass", "the same order every epoch; nothing here is known to shuffle")]
    at = described.get("set_epoch_at")
    called = f"the program calls set_epoch at {at}, to no effect" if at else "no line of the program calls set_epoch"
    return [
        _finding(
            "same-order",
            "warn",
            f"every epoch has the same order, although {described.get('sampler') or described.get('dataset')} shuffles",
            evidence=(
                called,
                f"rank {same[0]}'s first batch in every epoch: {list(probe.views[0].epochs[0].first_ids[:8])}",
            ),
            remedy="call loader.sampler.set_epoch(epoch) at the start of every epoch",
        )
    ]


def _cores(probe: LoaderProbe) -> list[Finding]:
    workers = [view.described.get("num_workers", 0) or 0 for view in probe.views]
    cores = probe.views[0].described.get("cores", 0)
    if sum(workers) <= cores or not cores:
        return []
    return [
        _finding(
            "workers",
            "warn",
            f"num_workers counts for each rank: {sum(workers)} loader processes on {cores} cores",
            expected=f"at most {max(1, cores // len(probe.views))} workers a rank on this machine",
            actual=f"{max(workers)} workers × {len(workers)} ranks",
            remedy=f"set num_workers={max(1, cores // len(probe.views))} on a machine with {cores} cores",
        )
    ]


def _batch(probe: LoaderProbe) -> list[Finding]:
    sizes = [view.epochs[0].first_size for view in probe.views]
    if not all(sizes):
        return []
    per_device = f"{sizes[0]}" if len(set(sizes)) == 1 else f"{min(sizes)} to {max(sizes)}"
    return [_finding("batch", "pass", f"batch: {per_device} per device, {sum(sizes)} over {len(sizes)} ranks")]
