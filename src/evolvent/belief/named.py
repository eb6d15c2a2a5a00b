"""Parsing of detectors from names and numbers, as in commands and configurations."""

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
from evolvent.errors import ConfigError, Problem, unknown_name_problem

__all__ = ["DETECTORS", "parse_detector"]

DETECTORS = ("decided", "agreement:SHARE", "scattered:SHARE", "entropy:NATS", "std:ZETA", "trace:ZETA")
"""Forms that `parse_detector` accepts."""


def parse_detector(text: str, *, setting: str = "stop") -> Detector:
    """Parses a detector from its name and numbers: "decided", "agreement:.7", "agreement:.7:least=5:patience=2",
    "std:1".

    Several with " or " between them are `AnyOf`: "decided or scattered:.2".

    Args:
        text: The text.
        setting: Name of the setting in error messages.
    Raises:
        ConfigError: an unknown name or number; numbers out of range.
    """
    if len(parts := text.split(" or ")) > 1:
        return AnyOf(*(parse_detector(part, setting=setting) for part in parts))
    name, colon, arguments = text.strip().partition(":")
    if name not in _KINDS:
        raise ConfigError([unknown_name_problem("detector", name, _KINDS, location=setting)])
    kind, min_numbers, max_numbers, allowed_counts = _KINDS[name]
    argument_texts = [argument.strip() for argument in arguments.split(":")] if colon else []
    pairs = [argument.split("=") for argument in argument_texts if "=" in argument]
    try:
        numbers = [float(argument) for argument in argument_texts if "=" not in argument]
        named = {key.strip(): int(value) for key, value in pairs}
    except ValueError as error:
        raise ConfigError([Problem(setting, f"{text!r} contains a part that is not a number", _SHAPES)]) from error
    if not min_numbers <= len(numbers) <= max_numbers or not set(named) <= allowed_counts or len(named) < len(pairs):
        raise ConfigError([Problem(setting, f"unknown detector {text!r}", _SHAPES)])
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
