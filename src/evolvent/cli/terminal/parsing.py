"""Argument parsing of a command: argparse, but all mistakes are collected into one `ConfigError`."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, get_args

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.models.placement import DEFAULT_CONTEXT, DtypeName, Placement

__all__ = ["Parser", "add_model_options", "choose_verb", "format_verbs_help", "parse_count", "read_placement"]

_OPTION_PATTERN = re.compile(r"--?[A-Za-z]")


def _make_formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, width=min(80, shutil.get_terminal_size((80, 24)).columns), max_help_position=28)


class Parser(argparse.ArgumentParser):
    """A parser of one verb. It never exits on a mistake: `parse_argv` raises `ConfigError` with all problems."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False, formatter_class=_make_formatter)
        self.known = {"-h", "--help"}

    def add(self, *names: str, **options: Any) -> None:
        """Adds one argument, as `add_argument` does."""
        self.known |= {name for name in names if name.startswith("-")}
        self.add_argument(*names, **options)

    def parse_argv(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parses the values of all arguments.

        Raises:
            ConfigError: unknown options (with the nearest known option), wrong values, missing or extra arguments.
        """
        option_names = [word.partition("=")[0] for word in argv if _OPTION_PATTERN.match(word)]
        problems = [
            unknown_name_problem("option", name, self.known, location=self.prog)
            for name in option_names
            if name not in self.known
        ]
        try:
            args, extra_argv = self.parse_known_args(list(argv))
        except ConfigError as error:
            raise ConfigError(problems + error.problems) from error
        if extra_argv and not problems:
            problems.append(Problem(self.prog, f"unexpected {' '.join(extra_argv)!r}", f"see {self.prog} --help"))
        if problems:
            raise ConfigError(problems)
        return args

    def error(self, message: str) -> NoReturn:
        raise ConfigError([Problem(self.prog, message, f"see {self.prog} --help")])


def add_model_options(parser: Parser) -> None:
    """Adds the options of the model that a verb runs; `read_placement` reads them."""
    parser.add("--device", default="cpu", help="where the model runs: cpu, cuda, cuda:N or mps (cpu)")
    parser.add(
        "--dtype",
        default="auto",
        choices=get_args(DtypeName),
        help="numbers of the weights that are loaded (auto: as they are stored)",
    )
    parser.add(
        "--context",
        type=parse_count,
        help=f"most tokens of a text (default: {DEFAULT_CONTEXT}, or the model's if less)",
    )


def read_placement(args: argparse.Namespace) -> Placement:
    """Returns where and how the model of a verb runs."""
    return Placement(args.device, args.dtype, args.context or "auto")


def choose_verb(prog: str, argv: Sequence[str], verbs: Iterable[str]) -> tuple[str, list[str]]:
    """Returns the verb at the start of the arguments, and the remaining arguments.

    Raises:
        ConfigError: no verb, or an unknown verb (with the nearest known one).
    """
    names = list(verbs)
    if not argv:
        raise ConfigError([Problem(prog, "missing verb", f"known: {', '.join(names)}")])
    if argv[0] not in names:
        raise ConfigError([unknown_name_problem("verb", argv[0], names, location=prog)])
    return argv[0], list(argv[1:])


def format_verbs_help(prog: str, verbs: Mapping[str, str]) -> str:
    """Formats the usage of a command that has verbs, with a line about each verb."""
    column_width = max(map(len, verbs)) + 2
    lines = [f"usage: {prog} VERB ...", "", *(f"  {verb:{column_width}}{about}" for verb, about in verbs.items())]
    return "\n".join([*lines, "", f"`{prog} VERB --help` says more."])


def parse_count(text: str) -> int:
    """Parses an integer of 0 or more, for argparse's `type`."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of 0 or more")
    return int(text)
