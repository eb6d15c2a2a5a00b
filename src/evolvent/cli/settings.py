"""The verbs that have a configuration: `evolvent VERB [WORD] [FILE.toml] [--preset NAME] [--a.b value ...]`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import Field, field_validator
from rich.console import Console

from evolvent.cli.registry import world_origins
from evolvent.config import Config, knobs, resolve, to_toml
from evolvent.errors import ConfigError, Problem, nearest, unknown

__all__ = ["Command", "Given", "OverWorlds", "command_help", "read_given", "verb_of"]

C = TypeVar("C", bound=Config)
_OWN = ("--preset", "--config", "--resume")


class OverWorlds(Config):
    """A configuration with worlds: their names are checked with all the rest, before anything is built."""

    worlds: tuple[str, ...] = Field(default=("crafting", "lookup"), description="the worlds to act in")

    @field_validator("worlds")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = {**world_origins(), "all": "every embedded world"}
        wrong = [unknown("world", name, known) for name in names if name.partition(":")[0] not in known]
        if wrong:
            raise ValueError("; ".join(f"{problem.what} ({problem.hint})" for problem in wrong))
        return names


@dataclass(frozen=True)
class Command(Generic[C]):
    """A verb with a configuration.

    Args:
        verb, about: its name, and what it does in a line.
        config: its configuration class.
        main: the field that a leading word sets ("" where there is none).
        presets: by name; the first is used where none is named.
        resumes: whether it takes `--resume RUN`.
        free: settings that may be given anew when a run goes on, by name or, as `parallel.`, by their beginning.
    """

    verb: str
    about: str
    config: type[C]
    main: str = ""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    resumes: bool = False
    free: tuple[str, ...] = ()

    def frees(self, name: str) -> bool:
        """Whether a setting may change when a run goes on."""
        return any(name == one or (one.endswith(".") and name.startswith(one)) for one in self.free)

    @property
    def freely(self) -> str:
        """The free settings as people write them."""
        return ", ".join(f"{one}*" if one.endswith(".") else one for one in self.free)


@dataclass(frozen=True)
class Given(Generic[C]):
    """What was asked for: the resolved configuration, and the run to go on with (None: a new one)."""

    config: C
    resume: Path | None = None


@dataclass(frozen=True)
class _Words:
    """A command line taken apart: the verb's own options, and overrides of its configuration."""

    own: Mapping[str, str]
    overrides: tuple[str, ...]
    problems: tuple[Problem, ...] = ()


def read_given(command: Command[C], words: Sequence[str], console: Console) -> Given[C] | None:
    """Resolve a command line; None where it asked for help or for the resolved configuration, which is then printed.

    Raises:
        ConfigError: everything wrong with it, at once.
    """
    if any(word in ("-h", "--help") for word in words):
        console.print(command_help(command), soft_wrap=True)
        return None
    parts = _apart(command, [word for word in words if word != "--print-config"])
    problems = list(parts.problems)
    name = parts.own.get("--preset") or next(iter(command.presets), None)
    if name is not None and name not in command.presets:
        problems.append(unknown("preset", name, command.presets, where="--preset"))
    resume = Path(parts.own["--resume"]) if "--resume" in parts.own else None
    file = Path(parts.own["--config"]) if "--config" in parts.own else None
    if resume is not None:
        problems += _not_with_resume(command, parts, resume)
        if problems:
            raise ConfigError(problems)
        file, name = resume / "config.toml", None
    try:
        config = resolve(
            command.config, file=file, overrides=parts.overrides, preset=command.presets.get(name) if name else None
        )
    except ConfigError as error:
        raise ConfigError(problems + error.problems) from error
    if problems:
        raise ConfigError(problems)
    if "--print-config" in words:
        console.print(to_toml(config), soft_wrap=True, end="")
        return None
    return Given(config, resume)


def _apart(command: Command[Any], words: Sequence[str]) -> _Words:
    own: dict[str, str] = {}
    overrides: list[str] = []
    problems: list[Problem] = []
    settings = {f"--{knob.path}" for knob in knobs(command.config)}
    rest = list(words)
    while rest and not rest[0].startswith("--"):
        word = rest.pop(0)
        if word.endswith(".toml") and "--config" not in own:
            own["--config"] = word
        elif command.main and f"--{command.main}" not in overrides:
            overrides += [f"--{command.main}", word]
        else:
            problems.append(
                Problem(f"evolvent {command.verb}", f"unexpected {word!r}", "settings look like --key value")
            )
    while rest:
        word = rest.pop(0)
        name, mark, text = word.partition("=")
        if name not in _OWN and name not in settings and nearest(name, settings | set(_OWN)) in _OWN:
            problems.append(unknown("option", name, _OWN, where=f"evolvent {command.verb}"))
            rest = rest[1:] if not mark and rest and not rest[0].startswith("--") else rest
        elif name not in _OWN or (name == "--resume" and not command.resumes):
            overrides.append(word)
        elif mark or (rest and not rest[0].startswith("--")):
            own[name] = text if mark else rest.pop(0)
        else:
            problems.append(Problem(name, "got no value, expected one", f"see evolvent {command.verb} --help"))
    return _Words(own, tuple(overrides), tuple(problems))


def _not_with_resume(command: Command[Any], parts: _Words, resume: Path) -> list[Problem]:
    problems, verb = [], command.verb
    began = verb_of(resume)
    if began not in (None, verb):
        what = f"{resume} is a run of evolvent {began}, not of evolvent {verb}"
        problems.append(Problem("--resume", what, f"go on with: evolvent {began} --resume {resume}"))
    kept = _kept(command, parts.overrides)
    if kept or "--config" in parts.own or "--preset" in parts.own:
        what = f"a resumed run keeps its settings, got {' '.join(kept) or 'a file or preset'}"
        more = f"; only {command.freely} may change" if command.free else ""
        problems.append(Problem("--resume", what, f"leave them out, or start a new run{more}"))
    if not (resume / "config.toml").is_file():
        problems.append(Problem("--resume", f"{resume} is no run: it holds no config.toml", "name the folder of a run"))
    return problems


def _kept(command: Command[Any], overrides: Sequence[str]) -> list[str]:
    """Those of the overrides, as they were written, that a resumed run does not take."""
    kept: list[str] = []
    free = False
    for word in overrides:
        if word.startswith("--"):
            free = command.frees(word[2:].partition("=")[0].replace("-", "_"))
        if not free:
            kept.append(word)
    return kept


def verb_of(run: Path) -> str | None:
    """The verb that began a run, None where its record does not tell."""
    try:
        row = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    verb = row.get("verb") if isinstance(row, dict) else None
    return verb if isinstance(verb, str) else None


def command_help(command: Command[Any]) -> str:
    """Usage and every knob with what it takes, its default and its meaning, in 80 columns."""
    words = f" [{command.main.upper()}]" if command.main else ""
    lines = [f"usage: evolvent {command.verb}{words} [FILE.toml] [--key value ...]", ""]
    lines += [*textwrap.wrap(command.about, 78), ""]
    options = {"--config FILE": "a TOML file of settings", "--print-config": "print the settings as TOML and stop"}
    if command.presets:
        names = ", ".join(command.presets)
        options = {"--preset NAME": f"settings to begin with: {names} (the first is the default)", **options}
    if command.resumes:
        but = f"; {command.freely} may change" if command.free else ""
        options["--resume RUN"] = f"go on with an interrupted run, with its own settings{but}"
    lines += [_entry(name, about) for name, about in options.items()]
    lines += ["", "settings (preset < file < command line):"]
    for knob in knobs(command.config):
        lines.append(_entry(f"--{knob.path}", f"{knob.description} ({knob.type}; default {knob.default})"))
    return "\n".join(lines)


def _entry(name: str, about: str) -> str:
    lines = textwrap.wrap(about, 78 - 26)
    head = f"  {name:24}"
    first = head + (lines.pop(0) if len(name) < 24 and lines else "")
    return "\n".join([first.rstrip(), *(" " * 26 + line for line in lines)])
