"""The page of `collbench select`: every reason has its line, and no figure of the simulator stands without "sim"."""

from __future__ import annotations

from dataclasses import replace

from collbench.choose.choice import Finalist, Omitted, Origin, Selection
from collbench.report.selection import explanation
from tests.builders import gpus

GPUS = gpus(4)
FULL = Selection(
    devices=(GPUS[2], GPUS[3]),
    environment={},
    reason="300 GB/s measured",
    origin=Origin("cuda", "quick probe", "box", verification="/runs/finalists.json", size_bytes=2**26),
    predicted=(280.04, 300.0),
    predicted_how="NVSwitch",
    finalists=(
        Finalist(("GPU2", "GPU3"), (280.04, 300.0), (298.1, 299.5, 301.0)),
        Finalist(("GPU0", "GPU2"), (200.0, 200.0), None),
        Finalist(("GPU0", "GPU1"), (9.5, 9.5), (9.4, 9.5, 9.6), first=True),
    ),
    gain=(31.1, 31.5263, 32.0),
    decided_by="fewest NUMA nodes",
    heuristic=True,
    left_out=(Omitted("GPU1", "busy: 1 other process"),),
)


def test_a_finalist_that_its_band_does_not_hold_is_marked() -> None:
    """Noise of 2% is no miss, and neither is an interval that reaches the band."""
    measured = {"GPU0": (140.0, 141.0, 142.0), "GPU1": (310.0, 311.0, 312.0), "GPU2": (270.0, 271.0, 281.0)}
    sets = tuple(Finalist((tag,), (280.0, 300.0), rates, first=tag == "GPU0") for tag, rates in measured.items())
    lines = explanation(replace(FULL, devices=GPUS[2:3], finalists=sets)).splitlines()
    assert [line.rpartition("  ")[2] for line in lines if line.startswith("  GPU")] == [
        "above its prediction",
        "271 (270–281)",
        "the first 1, below its prediction",
    ]


def test_finalists_of_a_table_too_wide_for_the_terminal_have_their_rates_below() -> None:
    table, narrow = (explanation(FULL, width).splitlines() for width in (60, 40))
    assert "  GPU0, GPU1  9.5        9.5 (9.4–9.6)      the first 2" in table
    assert max(map(len, narrow)) <= 40
    at = narrow.index("  GPU2, GPU3")
    assert narrow[at : at + 8] == [
        "  GPU2, GPU3",
        "    predicted 280–300; measured (95%)",
        "    299.5 (298.1–301)",
        "  GPU0, GPU1",
        "    predicted 9.5; measured (95%) 9.5",
        "    (9.4–9.6); the first 2",
        "  GPU0, GPU2",
        "    predicted 200",
    ]


def test_finalists_are_listed_by_rate_whichever_of_those_that_tie_is_chosen() -> None:
    rates = {"GPU0": (300.0, 301.0, 302.0), "GPU1": None, "GPU2": (303.0, 304.0, 305.0), "GPU3": (301.0, 302.0, 303.0)}
    sets = tuple(Finalist((tag,), (290.0, 310.0), measured, first=tag == "GPU0") for tag, measured in rates.items())
    lines = explanation(replace(FULL, devices=GPUS[:1], finalists=sets)).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  GPU")] == ["GPU2", "GPU3", "GPU0", "GPU1"]
    unmeasured = tuple(
        replace(one, predicted=(gbs, gbs), measured=None) for one, gbs in zip(sets, (1, 4, 2, 3), strict=True)
    )
    lines = explanation(replace(FULL, devices=GPUS[:1], finalists=unmeasured)).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  GPU")] == ["GPU1", "GPU3", "GPU2", "GPU0"]
