"""Times as people read them."""

from __future__ import annotations


def format_seconds(seconds: float) -> str:
    """Return a time in the unit that suits it, four digits: "22.41 ms", "101.2 s", "5.7 µs"."""
    scale, unit = _unit(seconds)
    return f"{_digits(seconds * scale)} {unit}"


def format_range(low: float, high: float) -> str:
    """Return two times in one unit, that of the first: "22.31–22.52 ms"."""
    scale, unit = _unit(low)
    return f"{_digits(low * scale)}–{_digits(high * scale)} {unit}"


def _unit(seconds: float) -> tuple[float, str]:
    if seconds < 1e-3:
        return 1e6, "µs"
    return (1e3, "ms") if seconds < 1 else (1.0, "s")


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:#.4g}".removesuffix(".")
