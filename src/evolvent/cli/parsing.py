"""Reading the words of a command: argparse, but mistakes are collected and come out as one `ConfigError`."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from evolvent.errors import ConfigError, Problem, unknown

__all__ = ["Parser", "choose", "verbs_help", "whole"]

_OPTION = re.compile(r"--?[A-Za-z]")


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, width=min(80, shutil.get_terminal_size((80, 24)).columns), max_help_position=28)


class Parser(argparse.ArgumentParser):
    """A parser of one verb. It never exits on a mistake: `read` raises `ConfigError` with all that it can tell."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False, formatter_class=_formatter)
        self.known = {"-h", "--help"}

    def add(self, *names: str, **options: Any) -> None:
        """Add one argument, as `add_argument` does."""
        self.known |= {name for name in names if name.startswith("-")}
        self.add_argument(*names, **options)

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """The values of all arguments.

        Raises:
            ConfigError: unknown options (with the nearest one), wrong values, missing or surplus words.
        """
        given = [word.partition("=")[0] for word in words if _OPTION.match(word)]
        problems = [unknown("option", name, self.known, where=self.prog) for name in given if name not in self.known]
        try:
            found, surplus = self.parse_known_args(list(words))
        except ConfigError as error:
            raise ConfigError(problems + error.problems) from error
        if surplus and not problems:
            problems.append(Problem(self.prog, f"unexpected {' '.join(surplus)!r}", f"see {self.prog} --help"))
        if problems:
            raise ConfigError(problems)
        return found

    def error(self, message: str) -> NoReturn:
        raise ConfigError([Problem(self.prog, message, f"see {self.prog} --help")])


def choose(prog: str, words: Sequence[str], known: Iterable[str]) -> tuple[str, list[str]]:
    """The sub-verb that the words begin with, and the rest.

    Raises:
        ConfigError: none, or one that does not exist (with the nearest one).
    """
    names = list(known)
    if not words:
        raise ConfigError([Problem(prog, "got no verb, expected one", f"known: {', '.join(names)}")])
    if words[0] not in names:
        raise ConfigError([unknown("verb", words[0], names, where=prog)])
    return words[0], list(words[1:])


def verbs_help(prog: str, verbs: Mapping[str, str]) -> str:
    """Usage of a command that has verbs of its own, and what each of them does."""
    wide = max(map(len, verbs)) + 2
    lines = [f"usage: {prog} VERB ...", "", *(f"  {verb:{wide}}{about}" for verb, about in verbs.items())]
    return "\n".join([*lines, "", f"`{prog} VERB --help` says more."])


def whole(text: str) -> int:
    """A whole number of 0 or more, for argparse's `type`."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of 0 or more")
    return int(text)
