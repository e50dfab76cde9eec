"""protobuf's wire format, read without a schema: fields by their numbers.

The package `protobuf` would need code generated for its own version, to read one message of ten fields.
"""

from __future__ import annotations

from collections.abc import Iterator

_MOST_SHIFT = 63  # a varint has ten bytes at most

Fields = dict[int, list[int | bytes]]


class Malformed(Exception):
    """Bytes that are no message."""


def messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of a file in which each follows its length. Raises Malformed if one is cut off."""
    at = 0
    while at < len(data):
        length, at = _varint(data, at)
        yield _cut(data, at, length)
        at += length


def fields(message: bytes) -> Fields:
    """Return a message's fields, each number's values in order: numbers as they are on the wire, or bytes."""
    decoded: Fields = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value: int | bytes
        match key & 7:  # the type of a field on the wire
            case 0:
                value, at = _varint(message, at)
            case 1 | 5 as wire:
                width = 8 if wire == 1 else 4
                value = int.from_bytes(_cut(message, at, width), "little")
                at += width
            case 2:
                length, at = _varint(message, at)
                value = _cut(message, at, length)
                at += length
            case _:
                raise Malformed
        if not key >> 3:
            raise Malformed
        decoded.setdefault(key >> 3, []).append(value)
    return decoded


def varints(packed: bytes) -> list[int]:
    """Return the numbers of a packed field. Raises Malformed."""
    numbers, at = list[int](), 0
    while at < len(packed):
        value, at = _varint(packed, at)
        numbers.append(value)
    return numbers


def signed(value: int) -> int:
    """Return the int64 that a varint stands for."""
    return value - 2**64 if value >= 2**63 else value


def _cut(data: bytes, at: int, length: int) -> bytes:
    """Return the bytes that are there, so that no length makes room for more."""
    if length > len(data) - at:
        raise Malformed
    return data[at : at + length]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:  # most have one byte
        return data[at], at + 1
    value = shift = 0
    while at < len(data) and shift <= _MOST_SHIFT:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise Malformed
