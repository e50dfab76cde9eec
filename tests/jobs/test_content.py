"""JSON read piece by piece is the JSON that Python reads whole, at any size of a piece, damaged or not."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench import untrusted
from collbench.jobs.traces import content
from collbench.jobs.traces.content import Unreadable

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40)
_VALUES: Any = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)
_OBJECTS: Any = st.dictionaries(st.text(max_size=5), _VALUES, max_size=5)


class Slow(io.BytesIO):
    """Gives a few bytes at a time, as a pipe may."""

    def __init__(self, data: bytes, piece: int) -> None:
        super().__init__(data)
        self.piece = piece

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or -1, self.piece) if size and size > 0 else self.piece)


def whole(data: bytes, piece: int) -> dict[str, Any]:
    """Return an object read by pieces, its lists gathered again."""
    lists: dict[str, list[Any]] = {}

    class Takers(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            return lists.setdefault(key, []).append

    fields = content.read_json(Slow(data, piece), Takers())
    return {key: lists.get(key, []) if value == [] else value for key, value in fields.items()}


@given(_OBJECTS, st.integers(1, 70), st.sampled_from([None, 1]), st.booleans())
def test_an_object_is_what_python_reads(value: Any, piece: int, indent: int | None, escaped: bool) -> None:
    data = json.dumps(value, indent=indent, ensure_ascii=escaped)
    assert whole(
        data.encode(errors="surrogatepass") if escaped else data.encode(errors="replace"), piece
    ) == json.loads(data if escaped else data.encode(errors="replace"))


@given(_OBJECTS, st.integers(1, 70), st.data())
def test_a_damaged_object_is_refused_where_python_refuses_it(value: Any, piece: int, data: st.DataObject) -> None:
    text = bytearray(json.dumps(value).encode())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    try:
        expected = json.loads(bytes(text).decode())
    except ValueError:
        expected = None
    try:
        found: Any = whole(bytes(text), piece)
    except Unreadable:
        found = None
    if isinstance(expected, dict):
        assert found == expected
    elif found is not None:  # a comma after the last element is the only fault that is let pass
        assert b",]" in bytes(text).replace(b" ", b"")


def test_memory_is_that_of_one_element() -> None:
    element = {"ph": "X", "name": "x" * 500, "args": {"External id": 1}}
    data = b'{"traceEvents": [' + b", ".join([json.dumps(element).encode()] * 25_000) + b"]}"
    packed = gzip.compress(data, 1)
    counted = [0]

    def count(_: Any) -> None:
        counted[0] += 1

    tracemalloc.start()
    content.read_json(untrusted.unpacked(io.BytesIO(packed), len(packed), content.MAX_BYTES), {"traceEvents": count})
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counted == [25_000]
    assert most < len(data) / 2


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is not an object in JSON"),
        (b" [1, 2]", "it is not an object in JSON"),
        (b'{"a": [1, 2', "cut off or damaged after 11 characters"),
        (b'{"a": 1} x', "something follows its object in JSON"),
        (b'{"a": "\xff"}', "it is not text"),
        (b'{"a": ' + b"[" * 100_000, "nested too deep"),
        (b'{"a": {"b": "' + b"x" * 2**25 + b'"}}', "a value in it has more than 16 MiB"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refusal_says_why(data: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        content.read_json(io.BytesIO(data), {})


def test_a_list_of_nothing_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_MAX_ELEMENTS", 1000)
    with pytest.raises(Unreadable, match="it lists more than 1,000 elements"):
        content.read_json(io.BytesIO(b'{"a": [' + b"1," * 1100 + b"1]}"), {})
