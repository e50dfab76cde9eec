"""Control characters in text from files are escaped; all other characters stay as they are."""

from __future__ import annotations

import json
import sys
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from collbench.model.values import cleaned, one_line, printable

# What terminals obey [ECMA-48; Unicode Standard Annex 9, table 1; xterm's control sequences: C1 as single bytes].
OBEYED = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))]
OBEYED += ["\u061c", "\u200b", "\u200e", "\u200f", "\u2028", "\u2029", "\ufeff", "\ud800", "\udfff", "\U000e0041"]
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def obeyed(text: str, but: str = "") -> set[str]:
    return {char for char in text if char not in but and (char in OBEYED or unicodedata.category(char)[0] == "C")} - {
        char for char in text if unicodedata.category(char) in ("Cn", "Co")
    }


def test_control_characters_are_escaped() -> None:
    for char in OBEYED:
        shown = one_line(f"a{char}b")
        assert shown.isprintable(), f"U+{ord(char):04X}"
        assert json.loads(f'"{shown}"') == f"a{char}b"


@given(st.text(st.characters()))
def test_no_control_character_remains_and_escaping_twice_changes_nothing(text: str) -> None:
    line, page = one_line(text), printable(text)
    assert (obeyed(line), obeyed(page, but="\n\t")) == (set(), set())
    assert (one_line(line), printable(page)) == (line, page)
    assert page.count("\n") == text.count("\n")


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_all_other_text_stays(text: str) -> None:
    assert (one_line(text), printable(text)) == (text, text)


@given(DATA)
def test_json_stays_json_of_the_same_value(data: object) -> None:
    assert json.loads(printable(json.dumps(data, ensure_ascii=False))) == data


@given(DATA, st.booleans())
def test_no_control_character_remains_in_strings_read_from_json(data: object, ascii_only: bool) -> None:
    text = json.dumps(data, ensure_ascii=ascii_only)
    safe = cleaned(json.loads(text), text)
    assert obeyed(json.dumps(safe, ensure_ascii=False)) == set()
    assert cleaned(safe, json.dumps(safe)) == safe


def test_a_name_that_is_not_utf8_is_found_again() -> None:
    name = "caf\udce9"
    assert cleaned([name], json.dumps([name])) == [name]
    assert one_line(name) == "caf\\udce9"


def test_every_unicode_character_is_judged_by_its_category() -> None:
    wrong = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    planes = (*range(0x32000), *range(0xE0000, 0xE1000), sys.maxunicode)  # all others are unassigned
    every = "".join(map(chr, planes))
    kept = one_line(every)
    assert not {unicodedata.category(char) for char in kept} & wrong
    assert set(every) - set(kept) == {char for char in every if unicodedata.category(char) in wrong}
