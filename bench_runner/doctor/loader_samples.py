"""Which samples come to which rank: pure rules over the first epoch of each."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from bench_runner.doctor.desync import rank_list, ranks_do
from bench_runner.doctor.loader_views import LoaderProbe
from bench_runner.doctor.loader_views import loader_finding as _finding
from bench_runner.finding import Finding

_SHARD: Final = (
    "give the loader a DistributedSampler(dataset), or the iterable data set every world_size-th sample: "
    "itertools.islice(samples, rank, None, world_size)"
)
_SHARD_WORKERS: Final = (
    "in the data set's __iter__ take get_worker_info() into account: with w workers a rank has world_size × w shards, "
    "and this one's number is rank × w + worker id"
)


def judge_samples(probe: LoaderProbe) -> list[Finding]:
    """Samples that several ranks see, that one rank sees several times, and that none sees."""
    return [*_sharing(probe), *_workers_share(probe), *_missed(probe)]


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
