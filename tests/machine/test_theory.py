import pytest

from collbench.machine import theory

H200, A100, V100, P100 = (9, 0), (8, 0), (7, 0), (6, 0)


@pytest.mark.parametrize(
    ("title", "links", "capability", "line_mbps", "gbs"),
    [
        # Totals from NVIDIA's data sheets, halved: they state both directions together.
        ("H200: 900 GB/s both ways, NVML gives the line rate", 18, H200, 26562, 900 / 2),
        ("H200, the line rate rounded up", 18, H200, 26563, 900 / 2),
        ("H200, NVML silent", 18, H200, None, 900 / 2),
        ("A100: 600 GB/s both ways", 12, A100, 25000, 600 / 2),
        ("V100: 300 GB/s both ways", 6, V100, 25781, 300 / 2),
        ("P100: 160 GB/s both ways", 4, P100, None, 160 / 2),
        ("RTX 3090: 112.5 GB/s both ways", 4, (8, 6), 14062, 112.5 / 2),
        ("TITAN RTX: 100 GB/s both ways", 2, (7, 5), None, 100 / 2),
        ("B200: 1800 GB/s both ways", 18, (10, 0), 53125, 1800 / 2),
        ("a rate of the future counts as it is reported", 2, (99, 0), 100000, 200.0),
        ("a reported rate of zero is no report", 18, H200, 0, 900 / 2),
    ],
)
def test_nvlink_theory(title: str, links: int, capability: tuple[int, int], line_mbps: int | None, gbs: float) -> None:
    limit = theory.nvlink(links, capability=capability, line_mbps=line_mbps)
    assert limit is not None
    assert limit.gbs == pytest.approx(gbs), title
    assert limit.source.startswith(f"{links} × ")


def test_nvlink_theory_is_unknown_without_rate_and_gpu() -> None:
    assert theory.nvlink(2, capability=None, line_mbps=None) is None
    assert theory.nvlink(2, capability=(99, 0), line_mbps=None) is None
    assert theory.nvlink(0, capability=H200, line_mbps=26562) is None


@pytest.mark.parametrize(
    ("generation", "width", "gbs"),
    [(1, 16, 4.0), (2, 16, 8.0), (3, 16, 15.75), (4, 16, 31.5), (5, 16, 63.0), (4, 8, 15.75), (3, 4, 3.9375)],
)
def test_pcie_theory_scales_with_the_width(generation: int, width: int, gbs: float) -> None:
    limit = theory.pcie(generation, width)
    assert limit == theory.Theory(gbs, f"PCIe gen {generation} ×{width}")


@pytest.mark.parametrize(("generation", "width"), [(None, 16), (4, None), (4, 0), (0, 16), (9, 16)])
def test_pcie_theory_is_unknown_for_other_links(generation: int | None, width: int | None) -> None:
    assert theory.pcie(generation, width) is None
