"""The method that a command line names, found before its settings are parsed: each method has its own settings."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path

from evolvent.errors import ConfigError, Problem, unknown_name_problem

__all__ = ["parse_method"]


def parse_method(argv: Sequence[str], method_names: Collection[str], *, default: str) -> tuple[str | None, list[str]]:
    """Parses the method from the arguments: the named one, that of the resumed run, or the default.

    Returns:
        The method's name and the other arguments; the name is None where help for all methods is requested.
    Raises:
        ConfigError: an unknown method, or a method other than that of the resumed run.
    """
    other_argv, name, resumed_method, run = list(argv), None, None, ""
    for index, word in enumerate(argv):
        option, equals_sign, text = word.partition("=")
        value = text if equals_sign else argv[index + 1] if index + 1 < len(argv) else ""
        if option == "--method" and name is None:
            name = value
            del other_argv[index : index + (1 if equals_sign else 2)]
        elif option == "--resume":
            resumed_method, run = _read_method(Path(value), method_names), value
    if name is not None and resumed_method not in (None, name):
        message = f"got {name}, but {run} is a run of {resumed_method}"
        raise ConfigError([Problem("--method", message, "leave out --method, or start a new run")])
    name = resumed_method if name is None else name
    if name is None and (not other_argv or any(word in ("-h", "--help") for word in other_argv)):
        return None, other_argv
    name = default if name is None else name
    if name not in method_names:
        raise ConfigError([unknown_name_problem("method", name, method_names, location="--method")])
    return name, other_argv


def _read_method(run: Path, method_names: Collection[str]) -> str | None:
    """Reads the method of a run that was begun; None: its settings name no known method."""
    try:
        name = tomllib.loads((run / "config.toml").read_text(encoding="utf-8")).get("method")
    except (OSError, ValueError):
        return None
    return name if isinstance(name, str) and name in method_names else None
