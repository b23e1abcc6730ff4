"""The doctor's rules for data loaders, over made-up views of ranks."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_runner.doctor.loader import require_factory
from bench_runner.doctor.loader_rules import judge_loader
from bench_runner.doctor.loader_views import EpochView, LoaderProbe, LoaderView
from bench_runner.errors import SpecError
from bench_runner.finding import Finding

DESCRIBED: dict[str, Any] = {
    "style": "map",
    "dataset": "TensorDataset",
    "subset": False,
    "dataset_length": 16,
    "batches_promised": None,
    "batch_size": 4,
    "drop_last": False,
    "num_workers": 0,
    "sampler": "DistributedSampler",
    "shuffles": True,
    "has_set_epoch": True,
    "set_epoch_at": None,
    "cores": 8,
}


def epoch(ids: Sequence[int], batch: int = 4, digests: Sequence[int] | None = None) -> EpochView:
    sizes = [min(batch, len(ids) - start) for start in range(0, len(ids), batch)]
    return EpochView(
        batches=len(sizes),
        samples=len(ids),
        first_size=sizes[0] if sizes else 0,
        last_size=sizes[-1] if sizes else 0,
        first_ids=tuple(ids[:batch]),
        ids=ids,
        digests=digests,
    )


def probe(*ranks: Sequence[Sequence[int]], batch: int = 4, **described: Any) -> LoaderProbe:
    """One argument a rank: its epochs, each the samples in order."""
    views = tuple(
        LoaderView(rank=i, described={**DESCRIBED, **described}, epochs=tuple(epoch(ids, batch) for ids in epochs))
        for i, epochs in enumerate(ranks)
    )
    return LoaderProbe(factory="train:loader", views=views)


def checks(findings: Sequence[Finding], *statuses: str) -> set[str]:
    return {f.check.removeprefix("doctor.loader.") for f in findings if f.status in (statuses or ("warn", "fail"))}


A, B = list(range(8)), list(range(8, 16))


def test_healthy_loader_has_no_finding() -> None:
    assert checks(judge_loader(probe([A, A[::-1]], [B, B[::-1]]))) == set()


def test_uneven_counts_name_the_batch_at_which_it_would_hang() -> None:
    findings = judge_loader(probe([list(range(12))], [[12, 13, 14, 15]]))
    (finding,) = [f for f in findings if f.check == "doctor.loader.uneven-batches"]
    assert "hang in batch 2 of epoch 1: rank 0 would wait there for rank 1, with only 1" in finding.message
    assert finding.actual == "rank 0: 3, rank 1: 1"


def test_uneven_only_in_the_second_epoch_is_found_there() -> None:
    findings = judge_loader(probe([A, A], [B, B[:4]]))
    assert any("batch 2 of epoch 2" in finding.message for finding in findings)


def test_rank_without_samples() -> None:
    assert "no-samples" in checks(judge_loader(probe([A], [[]])), "fail")


def test_all_ranks_with_all_samples_is_not_divided() -> None:
    findings = judge_loader(probe([A + B], [A + B], sampler="RandomSampler", has_set_epoch=False))
    (finding,) = [f for f in findings if f.check == "doctor.loader.overlap"]
    assert "not divided" in finding.message


def test_padding_of_a_distributed_sampler_is_no_overlap() -> None:
    findings = judge_loader(probe([[0, 1, 2]], [[3, 4, 0]], dataset_length=5))
    assert "overlap" not in checks(findings)
    assert any("1 fill up the last shards" in finding.message for finding in findings)


def test_equal_indices_with_unlike_contents_are_said_to_be_unclear() -> None:
    views = [
        LoaderView(rank=rank, described=DESCRIBED, epochs=(epoch(A, digests=[100 * rank + i for i in range(8)]),))
        for rank in (0, 1)
    ]
    findings = judge_loader(LoaderProbe(factory="f", views=tuple(views)))
    assert "overlap-unclear" in checks(findings, "warn")
    assert "overlap" not in checks(findings)


def test_one_equal_content_is_enough_for_an_overlap() -> None:
    views = [
        LoaderView(rank=rank, described=DESCRIBED, epochs=(epoch(A, digests=[7, *range(100 * rank, 100 * rank + 7)]),))
        for rank in (1, 2)
    ]
    assert "overlap" in checks(judge_loader(LoaderProbe(factory="f", views=tuple(views))), "fail")


def test_iterable_not_divided_among_workers() -> None:
    both = [0, 0, 1, 1, 2, 2, 3, 3]
    findings = judge_loader(probe([both], [[n + 4 for n in both]], style="iterable", num_workers=2, sampler=None))
    assert "duplicated-by-workers" in checks(findings, "fail")


def test_missed_samples_but_for_those_of_drop_last() -> None:
    assert "missed" in checks(judge_loader(probe([A], [B], dataset_length=40)), "warn")
    assert "missed" not in checks(judge_loader(probe([A], [B], dataset_length=19, drop_last=True)))


def test_same_order_needs_a_sampler_that_shuffles() -> None:
    findings = judge_loader(probe([A, A], [B, B]))
    assert "same-order" in checks(findings, "warn")
    assert any("no line of the program calls set_epoch" in line for f in findings for line in f.evidence)
    assert "same-order" not in checks(judge_loader(probe([A, A], [B, B], shuffles=False)))
    assert "same-order" not in checks(judge_loader(probe([A, A], [B, B], shuffles=None, has_set_epoch=False)))


def test_last_batches() -> None:
    assert "last-batch-uneven" in checks(judge_loader(probe([A[:7]], [B[:6]])))
    assert "last-batch-single" in checks(judge_loader(probe([A[:5]], [B[:5]])))
    assert "last-batch" in checks(judge_loader(probe([A[:6]], [B[:6]])), "pass")


def test_promised_length() -> None:
    assert "length-wrong" in checks(judge_loader(probe([A], [B], batches_promised=4)))
    assert "length-wrong" not in checks(judge_loader(probe([A], [B], batches_promised=2)))


def test_workers_against_cores() -> None:
    findings = judge_loader(probe([A], [B], num_workers=4, cores=4))
    (finding,) = [f for f in findings if f.check == "doctor.loader.workers"]
    assert finding.actual == "4 workers × 2 ranks"
    assert "num_workers=2" in (finding.remedy or "")


def test_per_device_and_global_batch_are_told() -> None:
    assert any("4 per device, 8 over 2 ranks" in finding.message for finding in judge_loader(probe([A], [B])))


def test_error_of_one_rank_comes_before_what_follows_from_it() -> None:
    views = (
        LoaderView(rank=0, described={}, epochs=(), error="RuntimeError: Connection closed by peer"),
        LoaderView(rank=1, described={}, epochs=(), error="KeyError: 'train'", trace="a\nb"),
    )
    (finding,) = judge_loader(LoaderProbe(factory="f", views=views))
    assert finding.message == "rank 1: KeyError: 'train'"


def test_deadline_is_a_finding_with_how_far_it_came() -> None:
    views = (LoaderView(rank=0, described={}, epochs=(), batches_so_far=7, stacks="x\ny"),)
    (finding,) = judge_loader(LoaderProbe(factory="f", views=views, timed_out=True, seconds=5))
    assert finding.check == "doctor.loader.not-finished"
    assert finding.evidence[0] == "rank 0: 7 batches of epoch 0 when time was up"


def test_too_many_samples_to_compare_is_said() -> None:
    view = epoch(A)
    kept = EpochView(batches=2, samples=8, first_size=4, last_size=4, first_ids=view.first_ids, ids=None)
    views = tuple(LoaderView(rank=rank, described=DESCRIBED, epochs=(kept,)) for rank in (0, 1))
    assert "samples" in checks(judge_loader(LoaderProbe(factory="f", views=views)), "skip")


@given(
    st.lists(st.lists(st.lists(st.integers(0, 20), max_size=9), min_size=1, max_size=3), min_size=1, max_size=4),
    st.sampled_from(["map", "iterable", "other"]),
    st.booleans(),
)
def test_any_views_are_judged_and_uneven_ones_never_pass(
    ranks: list[list[list[int]]], style: str, drop_last: bool
) -> None:
    findings = judge_loader(probe(*ranks, style=style, drop_last=drop_last))
    first = {-(-len(epochs[0]) // 4) for epochs in ranks}
    if len(first) > 1:
        assert checks(findings, "fail") & {"uneven-batches", "no-samples"}


@pytest.mark.parametrize("name", ["train", "train:", ":f", "a b:f", "no/such.py:f", "m:f()"])
def test_factory_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match="factory"):
        require_factory(name)
