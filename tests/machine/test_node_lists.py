"""Node lists as Slurm writes them: what they stand for, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.cluster.switches import format_node_list
from collbench.machine.launchers import expand_node_list
from collbench.model.errors import UsageError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node7", ["node7"]),
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("node[3,1-2]", ["node3", "node1", "node2"]),
        ("login,node[9-10]", ["login", "node9", "node10"]),
        ("rack[0-1]node[08-09]-ib,x", ["rack0node08-ib", "rack0node09-ib", "rack1node08-ib", "rack1node09-ib", "x"]),
        ("node-a.example,node-b.example", ["node-a.example", "node-b.example"]),
        ("[1-2]", ["1", "2"]),
        (" n0 ", ["n0"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
    ],
)
def test_a_list_stands_for_its_names(text: str, names: list[str]) -> None:
    assert list(expand_node_list(text)) == names


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,,b", "a,", "n[", "n]", "n[]", "n[1-", "n[-1]", "n[2-1]", "n[a-b]", "n[1,]", "a b", "n[[1]]", "n[1.5]"],
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        expand_node_list(text)


@pytest.mark.parametrize("text", ["n[0-99999999]", "n[0-999][0-999]", "n[0-999][0-999][0-999][0-999][0-999][0-999]"])
def test_a_list_without_end_is_refused_at_once(text: str) -> None:
    with pytest.raises(UsageError, match=r"more than 65,536|not a range"):
        expand_node_list(text)


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        (["node0", "node1", "node2", "node5"], "node[0-2,5]"),
        (["node7"], "node7"),
        (["login", "node1", "node2"], "login,node[1-2]"),
        (["b1", "a1", "a2", "b3"], "b1,a[1-2],b3"),
        (["n01", "n02"], "n0[1-2]"),
        (["n09", "n10"], "n09,n10"),
        (["rack1-n3", "rack1-n4"], "rack1-n[3-4]"),
        (["5", "6"], "[5-6]"),
    ],
)
def test_names_are_listed_as_slurm_does(names: list[str], listed: str) -> None:
    assert format_node_list(names) == listed


NUMBERS = st.one_of(st.just(""), st.integers(0, 12).map(str), st.integers(0, 9999).map(str))


@given(st.lists(st.builds("{}{}".format, st.sampled_from(["a", "b", "n-", "rack"]), NUMBERS), min_size=1, max_size=12))
def test_names_survive_being_compressed(names: list[str]) -> None:
    assert list(expand_node_list(format_node_list(names))) == names
