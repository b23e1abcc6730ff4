"""What the ranks' data loaders give, judged: pure rules over one view of each rank."""

from __future__ import annotations

from collections.abc import Callable

from bench_runner.doctor.desync import rank_list, ranks_do
from bench_runner.doctor.faults import FAULTS
from bench_runner.doctor.loader_samples import judge_samples
from bench_runner.doctor.loader_views import LoaderProbe
from bench_runner.doctor.loader_views import loader_finding as _finding
from bench_runner.finding import Finding


def judge_loader(probe: LoaderProbe) -> list[Finding]:
    """All findings; when a rank's loader failed or did not end, the counts are not judged."""
    broken = _errors(probe) or _unfinished(probe)
    if broken:
        return broken
    rules: tuple[Callable[[LoaderProbe], list[Finding]], ...] = (
        _counts,
        _last_batches,
        _promises,
        judge_samples,
        _order,
        _cores,
        _batch,
    )
    return [finding for rule in rules for finding in rule(probe)]


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
