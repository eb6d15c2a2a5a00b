"""Detectors by name and numbers, as commands and configurations write them."""

from __future__ import annotations

from collections.abc import Callable

from evolvent.belief.stopping import (
    Agreement,
    AnyOf,
    Decided,
    Detector,
    EntropyBelow,
    Scattered,
    StdBelow,
    TraceBelow,
)
from evolvent.errors import ConfigError, Problem, unknown

__all__ = ["DETECTORS", "read_detector"]

DETECTORS = ("decided", "agreement:SHARE", "scattered:SHARE", "entropy:NATS", "std:ZETA", "trace:ZETA")
"""What `read_detector` reads."""


def read_detector(text: str, *, where: str = "stop") -> Detector:
    """A detector from its name and numbers: "decided", "agreement:.7", "agreement:.7:least=5:patience=2", "std:1".

    Several with " or " between them are `AnyOf`: "decided or scattered:.2".

    Args:
        where: what a mistake is said to be of.
    Raises:
        ConfigError: an unknown name or number; numbers out of range.
    """
    if len(several := text.split(" or ")) > 1:
        return AnyOf(*(read_detector(each, where=where) for each in several))
    name, colon, rest = text.strip().partition(":")
    if name not in _KINDS:
        raise ConfigError([unknown("detector", name, _KINDS, where=where)])
    kind, fewest, most, counts = _KINDS[name]
    words = [word.strip() for word in rest.split(":")] if colon else []
    pairs = [word.split("=") for word in words if "=" in word]
    try:
        numbers = [float(word) for word in words if "=" not in word]
        named = {key.strip(): int(value) for key, value in pairs}
    except ValueError as error:
        raise ConfigError([Problem(where, f"{text!r} has something that is no number", _SHAPES)]) from error
    if not fewest <= len(numbers) <= most or not set(named) <= counts or len(named) < len(pairs):
        raise ConfigError([Problem(where, f"{text!r} is no detector", _SHAPES)])
    return kind(*numbers, **named)


_SHAPES = f"{', '.join(DETECTORS)}; agreement also with :least=3:patience=1, scattered with :least=10"
# By name: the detector, the fewest and the most numbers that it takes, and the counts that it knows by name.
_KINDS: dict[str, tuple[Callable[..., Detector], int, int, frozenset[str]]] = {
    "decided": (Decided, 0, 0, frozenset()),
    "agreement": (Agreement, 0, 1, frozenset({"least", "patience"})),
    "scattered": (Scattered, 0, 1, frozenset({"least"})),
    "entropy": (EntropyBelow, 1, 1, frozenset()),
    "std": (StdBelow, 1, 1, frozenset()),
    "trace": (TraceBelow, 1, 1, frozenset()),
}
