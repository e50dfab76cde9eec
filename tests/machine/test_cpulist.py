import pytest

from collbench.machine.kernel import format_cpus, parse_cpus


@pytest.mark.parametrize(
    ("text", "expected"), [("0-3,8", (0, 1, 2, 3, 8)), ("5", (5,)), ("", ()), ("\n", ()), ("0,2-3\n", (0, 2, 3))]
)
def test_kernel_lists_are_read(text: str, expected: tuple[int, ...]) -> None:
    assert parse_cpus(text) == expected


def test_a_cpu_list_is_written_as_the_kernel_does() -> None:
    assert format_cpus([0, 1, 2, 8, 10, 11]) == "0-2,8,10-11"
