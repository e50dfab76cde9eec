"""The page of `collbench predict`: figures, shares, sentences; no figure of a simulation without the word."""

import copy
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from collbench.jobs.predict import networks
from collbench.jobs.predict.page import as_json, conclusions, page
from collbench.jobs.predict.predict import Predictor, Question
from collbench.jobs.predict.timing import gather
from collbench.model.operations import Operation
from collbench.model.run import Run
from collbench.overlaps.results import overlaps_of
from tests.jobs.predict.made import SMALL, answer, overlapping, pairs, question, simulated
from tests.report.pages import text

NVLINK_PAIR = pairs({(0, 1): 100.0, (2, 3): 100.0}, 4, other=10.0)


def shown(a_question: Question, run: Run, *overlaps: Run) -> str:
    return text(page(run, answer(a_question, run, overlaps=overlaps)))


def overlap_lines(page_text: str) -> list[str]:
    """Return the page's notes on overlap, each in one line."""
    return [" ".join(line.split()) for line in re.findall(r"^overlap .*(?:\n {10}.*)*", page_text, flags=re.MULTILINE)]


def rows(page_text: str) -> Iterator[list[str]]:
    """Yield the cells of the tables' rows."""
    for line in page_text.splitlines():
        if re.search(r"^(\w+)? +(best|worst|lost) ", line):
            yield line.split()


def test_a_table_has_the_best_the_worst_and_their_difference() -> None:
    """The figures of tests/jobs/predict/test_prediction.py's step by hand: 0.17 and 1.68 ms are exposed of 3 ms."""
    best, worst, lost = rows(shown(question(step_seconds=3e-3), NVLINK_PAIR))
    assert best == ["ddp", "best", "19", "0.20", "6.3%", "0.17", "0.00–0.20", "5.4%", "3.17"]
    assert worst == ["worst", "1.90", "41%", "1.68", "0.00–1.90", "36%", "4.68"]
    assert lost == ["lost", "1.70", "1.51", "0.00–1.70", "48%", "1.51"]


def test_a_raw_time_that_only_pairs_show_is_printed_with_its_band() -> None:
    """Two ranks do not show exactly what four reach: no figure stands for one that was measured."""
    page_text = shown(replace(question(), gpus=(4,)), pairs({}, 4, other=300.0))
    ((_, _, _, middle, band),) = rows(page_text)
    low, high = (float(end) for end in band.strip("()").split("–"))
    assert low <= 0.8 * float(middle)
    assert high >= 1.2 * float(middle)


def test_where_every_strategy_hides_it_the_choice_does_not_matter() -> None:
    a_question = replace(question(step_seconds=10.0), strategies=("ddp", "fsdp"))
    assert list(conclusions(answer(a_question, NVLINK_PAIR))) == [
        "On 2 GPUs ddp and fsdp leave at most 1.68 ms exposed on either set: the choice does not matter."
    ]


@pytest.mark.parametrize("step", [None, 22e-3])
@pytest.mark.parametrize(
    ("title", "gone", "trials", "says", "note"),
    [
        ("a pair is missing", {(2, 5)}, None, True, "1 pair not measured, so a worse set may exist"),
        ("two pairs are missing", {(2, 5), (0, 7)}, None, True, "2 pairs not measured, so a worse set may exist"),
        ("two trials are no noise", set(), 2, True, "some sets have 2 of the 3 trials"),
        ("nothing is missing", set(), None, False, "all pairs tie within"),
    ],
)
def test_less_evidence_on_equal_pairs_makes_no_difference_up(
    title: str, gone: set[tuple[int, int]], trials: int | None, says: bool, note: str, step: float | None
) -> None:
    run = copy.deepcopy(simulated("hgx-h200"))
    run.measurements = [found for found in run.measurements if found.point.members not in gone]
    for found in run.measurements:
        found.samples = found.samples[:trials]
    for gpus in (2, 4):
        asked = replace(question(networks.find("gpt2"), gpus=gpus, step_seconds=step), strategies=("ddp", "fsdp"))
        said = next(conclusions(answer(asked, run)))
        assert ("either set" in said or "no set is predicted to be slower" in said) is says
        assert note in said
        whole = shown(asked, run)
        assert "longer" not in said
        assert "does not matter" not in said
        assert not re.search(r"-0\.00?\b", whole)


def test_without_a_step_time_only_what_differs_is_longer() -> None:
    asked = replace(question(networks.find("gpt2"), gpus=6, shards=2), strategies=("ddp", "hsdp"))
    said, _ = conclusions(answer(asked, simulated("dgx-1v")))
    assert re.match(
        r"On 6 GPUs a step communicates longer on the worst set, by \d+\.?\d* ms with ddp; a step comm", said
    )
    assert re.search(r"a step communicates less on the worst set, by [1-9]\d*\.?\d* ms with hsdp, because", said)


def test_ddp_may_not_care_where_zero3_does() -> None:
    """GPT-2 in fp32, 8 micro-batches in 2.4 s. On the slow set DDP's last bucket of 176 MB shows once; ZeRO-3's root of
    158 MB three times a micro-batch, 7.9 ms each, 190 in all against 19 on the fast set, and the first block's gather.
    """
    a_question = replace(
        question(networks.find("gpt2"), step_seconds=2.4, micro_batches=8), strategies=("ddp", "zero3")
    )
    (conclusion,) = conclusions(answer(a_question, NVLINK_PAIR))
    assert conclusion.startswith(
        "On 2 GPUs ddp leaves at most 17.6 ms exposed on either set: the choice does not matter; "
    )
    lost = re.search(r"the worst set lengthens a step by (\d+) ms \(7\.\d%\) with zero3\.$", conclusion)
    assert lost is not None
    assert 171 < int(lost[1]) < 200


def test_a_set_that_suits_hsdps_groups_better_is_reported() -> None:
    """On a DGX-1V the best six by an all-reduce have neighbours in rank that no NVLink joins."""
    a_question = question(networks.find("gpt2"), "hsdp", 6, shards=2, step_seconds=0.4)
    prediction = answer(a_question, simulated("dgx-1v"))
    share = prediction.cases[0].lost_share
    assert share is not None
    assert share < -0.02
    (conclusion,) = conclusions(prediction)
    assert re.match(
        r"On 6 GPUs the worst set shortens a step by \d+\.\d ms \(.*\) with hsdp, "
        r"because it suits their groups better\.",
        conclusion,
    )


def test_one_set_leaves_nothing_to_choose_but_says_what_is_exposed() -> None:
    (conclusion,) = conclusions(answer(question(gpus=4, step_seconds=3e-3), NVLINK_PAIR))
    assert re.match(
        r"On 4 GPUs there is one set of 4, so there is nothing to choose. "
        r"Exposed communication per step: ddp \d\.\d\d ms\.",
        conclusion,
    )


def test_behind_nvswitches_no_worst_set_is_made_up() -> None:
    page_text = shown(question(gpus=2, step_seconds=3e-3), simulated("hgx-h200"))
    assert [row[1] for row in rows(page_text)] == ["best"]
    assert "the choice does not affect bandwidth" in page_text


def test_devices_left_out_are_named() -> None:
    run = pairs({}, 4)
    for measurement in run.measurements:
        if 2 in measurement.point.members:
            measurement.wrong = 1
    page_text = shown(question(), run)
    assert "\nleft out  GPU2: faulty: only its pairs failed" in page_text


ALL_SIZES = {2**20: (4.0, 1.1), 2**30: (2.0, 1.2)}


@pytest.mark.parametrize(
    ("title", "strategy", "overlaps", "lines"),
    [
        (
            "nobody measured it",
            "ddp",
            [],
            [
                "overlap not measured: the step assumes that communication and compute do not slow each other; "
                "'collbench overlap' measures it"
            ],
        ),
        (
            "measured on each set",
            "ddp",
            [overlapping(ALL_SIZES), overlapping(ALL_SIZES, members=(0, 2))],
            [
                "overlap all-reduce 3.03–3.73x, compute 1.11–1.14x overlapping gemm:8192, overlap0.json",
                "overlap all-reduce 3.03–3.73x, compute 1.11–1.14x overlapping gemm:8192, overlap1.json",
            ],
        ),
        (
            "on other devices, of another operation, beyond its sizes",
            "fsdp",
            [overlapping({2**30: (2.0, 1.2)}, members=(0, 3))],
            [
                "overlap all-gather and reduce-scatter 2.00x, compute 1.20x overlapping gemm:8192, overlap0.json; "
                "taken from all-reduce; measured on GPU0, GPU3; sizes beyond 1G: as at the nearest measured size"
            ],
        ),
    ],
)
def test_what_is_known_of_overlap_is_said_in_a_line(
    title: str, strategy: str, overlaps: list[Run], lines: list[str]
) -> None:
    slow = pairs({(0, 1): 100.0, (2, 3): 100.0, (0, 2): 5.0}, 4, other=10.0)
    page_text = shown(question(strategy=strategy, step_seconds=3e-3), slow, *overlaps)
    assert overlap_lines(page_text) == lines, title
    assert max(map(len, page_text.partition("\nmodel ")[2].splitlines())) <= 80


def test_an_overlap_of_another_nccl_or_with_lost_data_points_says_so() -> None:
    run = overlapping(ALL_SIZES)
    del overlaps_of(run)[1].trials[1:]
    newer = replace(run, machine=replace(run.machine, nccl="9.9.9"))
    (line,) = overlap_lines(shown(question(step_seconds=3e-3), NVLINK_PAIR, newer))
    assert "1 data point unused: failed, or fewer than three trials" in line
    assert "with NCCL 9.9.9, the transfer times with " in line


def test_a_simulated_factor_carries_the_word_sim() -> None:
    run = simulated("nvlink-pairs-2x2")
    fake = replace(run, measurements=[], sections=overlapping(ALL_SIZES).sections)
    lines = overlap_lines(shown(question(step_seconds=3e-3), run, fake))
    assert lines
    assert all("(sim)" in line for line in lines)


def test_json_has_what_was_taken_from_a_run_of_overlap() -> None:
    a_question = question(strategy="fsdp", step_seconds=3e-3)
    prediction = answer(a_question, NVLINK_PAIR, overlaps=[overlapping(ALL_SIZES)])
    reported = as_json(NVLINK_PAIR, prediction)
    gather_use, *_ = (use for use in reported["overlap"] if use["operation"] == "allgather")
    low, high = gather_use.pop("collective_factor")
    assert 1 < low <= high <= 4
    assert gather_use == {
        "operation": "allgather",
        "devices": ["GPU0", "GPU1"],
        "source": "overlap0.json",
        "measured_operation": "allreduce",
        "measured_devices": ["GPU0", "GPU1"],
        "measured_sizes": [2**20, 2**30],
        "nccl": NVLINK_PAIR.machine.nccl,
        "compute": "gemm:8192",
        "unused": 0,
        "sizes": [2**20, 2**21],
        "compute_factor": pytest.approx([1.1, 1.1], rel=0.02),
        "borrowed": True,
        "elsewhere": False,
        "beyond": False,
    }
    best = reported["cases"][0]["best"]
    assert 0 < best["slowed_seconds"] <= best["exposed_seconds"]["middle"]
    assert as_json(NVLINK_PAIR, answer(a_question, NVLINK_PAIR))["cases"][0]["best"]["slowed_seconds"] is None


def test_json_says_the_same_in_seconds() -> None:
    run = simulated("nvlink-pairs-2x2", Operation.ALLREDUCE)
    prediction = Predictor(gather([("a", run)])).predict(question(SMALL, "fsdp", step_seconds=3e-3, micro_batches=2))
    reported = as_json(run, prediction)
    assert (reported["format"], reported["backend"], reported["fabric"]) == (
        "collbench-prediction",
        "sim",
        "nvlink-pairs-2x2",
    )
    (case,) = reported["cases"]
    mebi = 2**20
    assert case["sent_bytes"] == {"allgather": 2 * 34 * mebi, "reducescatter": 2 * 18 * mebi}
    assert case["messages"] == {"allgather": 18, "reducescatter": 10}
    assert case["bus_bytes"] == (2 * 34 + 2 * 18) * mebi / 2
    assert case["best"]["devices"] in (["GPU0", "GPU1"], ["GPU2", "GPU3"])
    for cost in (case["best"], case["worst"]):
        assert cost["step_seconds"]["middle"] == pytest.approx(3e-3 + cost["exposed_seconds"]["middle"])
        assert cost["exposed_share"] == pytest.approx(
            cost["exposed_seconds"]["middle"] / cost["step_seconds"]["middle"]
        )
    lost = case["worst"]["step_seconds"]["middle"] - case["best"]["step_seconds"]["middle"]
    assert case["lost_seconds"]["middle"] == pytest.approx(lost)
    assert len(reported["assumptions"]) >= len(prediction.assumed) > 0
