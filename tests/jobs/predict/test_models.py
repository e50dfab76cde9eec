"""Networks have the parameters and the multiply-adds that their makers publish."""

import pytest

from collbench.jobs.predict import networks
from collbench.jobs.predict.assumptions import EqualBlocks, HeadShare
from collbench.model.errors import UsageError

# Parameters as `sum(p.numel() for p in model.parameters())` prints them for the published checkpoints.
PARAMETERS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
}
BLOCKS = {"gpt2": 12, "gpt2-xl": 48, "bert-large": 24, "llama-3-70b": 80}


def test_every_network_is_in_the_table() -> None:
    assert set(PARAMETERS) == set(networks.NAMES)


@pytest.mark.parametrize("name", networks.NAMES)
def test_a_network_has_the_parameters_that_are_published(name: str) -> None:
    assert networks.find(name).parameters == PARAMETERS[name]


@pytest.mark.parametrize(("name", "blocks"), BLOCKS.items())
def test_a_network_has_its_blocks(name: str, blocks: int) -> None:
    assert len(networks.find(name).blocks) == blocks


def test_a_tied_head_counts_once_and_works_at_the_end() -> None:
    gpt2 = networks.find("gpt2")
    assert gpt2.first.parameters == (50257 + 1024) * 768
    assert gpt2.last.parameters == 2 * 768
    assert (gpt2.first.work, gpt2.last.work) == (0, 50257 * 768)


@pytest.mark.parametrize("word", ["Llama-3.2-1B", "llama_3.2_1b", " llama-3.2-1b "])
def test_names_as_people_type_them(word: str) -> None:
    assert networks.find(word).name == "llama-3.2-1b"


@pytest.mark.parametrize(
    ("word", "line"),
    [("gtp2", "did you mean gpt2"), ("llama-3-7b", "llama-3-70b or"), ("xyzzy", "known are gpt2, gpt2-medium")],
)
def test_an_unknown_network_is_refused_with_those_that_look_alike(word: str, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        networks.find(word)


@pytest.mark.parametrize(("parameters", "layers"), [(124_000_001, 12), (7, 7), (5, None), (10**9, None), (101, 100)])
def test_a_network_of_any_size_has_all_its_parameters(parameters: int, layers: int | None) -> None:
    network = networks.of_size(parameters, layers)
    assert network.parameters == parameters
    assert max(block.parameters for block in network.blocks) - min(b.parameters for b in network.blocks) <= 1


def test_what_is_guessed_of_a_network_is_said() -> None:
    assert networks.of_size(10**8, None).assumed == (EqualBlocks(24, guessed=True),)
    assert networks.of_size(10**8, 12).assumed == (EqualBlocks(12, guessed=False),)
    assert networks.find("gpt2").assumed == ()


@pytest.mark.parametrize(
    ("text", "count"), [("124M", 124_000_000), ("1.5B", 1_500_000_000), ("25557032", 25_557_032), ("70b", 7 * 10**10)]
)
def test_parameters_as_people_type_them(text: str, count: int) -> None:
    assert networks.parse_parameters(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1M", "124 M", "many", "1e9", "999999999T", "٣M"])
def test_what_is_no_number_of_parameters_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write 124M"):
        networks.parse_parameters(text)


def test_a_head_takes_the_share_it_is_given() -> None:
    """GPT-2's is 31% by multiply-adds: 38.6M beside 12 blocks of 7.1M."""
    gpt2 = networks.find("gpt2")
    slow = gpt2.with_head(0.41)
    shares = [network.last.work / sum(unit.work for unit in network.units) for network in (gpt2, slow)]
    assert shares == pytest.approx([0.312, 0.41], abs=0.001)
    assert (slow.parameters, slow.blocks, slow.first) == (gpt2.parameters, gpt2.blocks, gpt2.first)
    assert slow.assumed == (HeadShare(0.41),)
