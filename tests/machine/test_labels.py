import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from collbench.machine import labels

BEST_FIRST = ["NV18", "NV12", "NV2", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS", "N/A"]


@given(st.permutations(BEST_FIRST))
@example(BEST_FIRST[::-1])  # two that ranked alike would keep this order
def test_labels_rank_as_method_section_5_orders_them(shuffled: list[str]) -> None:
    assert sorted(shuffled, key=labels.rank_key) == BEST_FIRST


@pytest.mark.parametrize(
    ("label", "links"),
    [("NV1", 1), ("NV18", 18), ("PIX", 0), ("SYS", 0), ("NV", 0), ("NV0", 0), ("NV#", 0), ("NVL2", 0), ("nv2", 0)],
)
def test_a_label_names_its_nvlinks(label: str, links: int) -> None:
    assert labels.nvlink_count(label) == links
    assert labels.is_nvlink(label) == (links > 0)


@pytest.mark.parametrize(("old", "today"), [("SOC", "SYS"), ("PSB", "PIX"), ("NV2", "NV2"), ("nonsense", "nonsense")])
def test_labels_of_old_drivers_get_todays_name(old: str, today: str) -> None:
    assert labels.canonical(old) == today


@pytest.mark.parametrize("text", ["X", "NV0", "NV#", "OK", "0-63", ""])
def test_texts_that_are_no_label_between_two_gpus(text: str) -> None:
    assert not labels.is_label(text)


def test_the_legend_holds_self_and_what_occurs_once_in_nvidia_smis_order() -> None:
    assert [label for label, _ in labels.legend(["NV18", "NV2", "PHB", "SYS", "NV18"])] == ["X", "SYS", "PHB", "NV#"]


def test_every_label_has_a_meaning() -> None:
    assert all(text for label in BEST_FIRST for _, text in labels.legend([label]))
    assert {len(labels.legend([label])) for label in BEST_FIRST} == {2}  # and X
