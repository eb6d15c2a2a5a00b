"""Commands with a configuration: `evolvent VERB [WORD] [FILE.toml] [--preset NAME] [--a.b value ...]`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from pydantic import Field, field_validator
from rich.console import Console

from evolvent.cli.setup.prompt_data import DATA_OPTIONS, data_preset, takes_data, world_of_options
from evolvent.cli.setup.registry import describe_worlds, is_world_file, unknown_world_problem
from evolvent.config import Config, list_settings, present_path, resolve, to_toml
from evolvent.errors import ConfigError, Problem, find_nearest, unknown_name_problem
from evolvent.models.placement import DEFAULT_CONTEXT, DtypeName, Placement, is_device_name

__all__ = [
    "AnyCommand",
    "ChecksInputs",
    "Command",
    "DeviceConfig",
    "ModelConfig",
    "ParsedCommand",
    "WorldsConfig",
    "format_help",
    "parse_command",
    "read_verb",
]

C = TypeVar("C", bound=Config)
_COMMAND_OPTIONS = ("--preset", "--config", "--resume")


@runtime_checkable
class ChecksInputs(Protocol):
    """Settings that name models or files."""

    def check_inputs(self) -> None:
        """Checks that they exist, before torch is imported and before anything is written.

        Raises:
            ConfigError: all that do not.
        """


class WorldsConfig(Config):
    """A configuration with worlds: their names are checked with all other settings, before anything is built.

    Attributes:
        other_sources: beginnings of names, before a colon, that this command takes besides worlds.
    """

    other_sources: ClassVar[tuple[str, ...]] = ()

    worlds: tuple[str, ...] = Field(
        default=("crafting", "lookup"), description="the worlds to act in; FILE.py:CLASS for one of your own"
    )

    @field_validator("worlds")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        descriptions = {**describe_worlds(), "all": "every embedded world"}
        problems = [
            unknown_world_problem(name, descriptions)
            for name in names
            if name.partition(":")[0] not in (*descriptions, *cls.other_sources) and not is_world_file(name)
        ]
        if problems:
            raise ValueError("; ".join(problem.describe() for problem in problems))
        return names


class DeviceConfig(Config):
    """The device of a command's networks."""

    device: str = Field(default="cpu", description="where models run: cpu, cuda, cuda:N or mps")

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str) -> str:
        if not is_device_name(device):
            raise ValueError(f"unknown device {device!r} (use cpu, cuda, cuda:N or mps)")
        return device


class ModelConfig(DeviceConfig):
    """Settings of the models that a command runs."""

    dtype: DtypeName = Field(
        default="auto", description="numbers of the weights that are loaded; auto: as they are stored"
    )
    context: int | None = Field(
        default=None, ge=2, description=f"most tokens of an episode; none: {DEFAULT_CONTEXT}, or the model's if less"
    )

    @property
    def placement(self) -> Placement:
        """Returns where and how the models run."""
        return Placement(self.device, self.dtype, self.context or "auto")


@dataclass(frozen=True)
class Command(Generic[C]):
    """A verb with a configuration.

    Args:
        verb: its name.
        about: its description in a line.
        config: its configuration class.
        main_field: the field that a leading argument sets ("" where there is none).
        presets: by name; the first is the default.
        resumes: whether it takes `--resume RUN`.
        free_settings: settings that may change when a run resumes, by name or, as `parallel.`, by prefix.
        choose_preset: returns the name of the preset that fits other settings, where none is named.
        earlier_defaults: nested settings that were added later: their values in a run that does not record them.
    """

    verb: str
    about: str
    config: type[C]
    main_field: str = ""
    presets: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    resumes: bool = False
    free_settings: tuple[str, ...] = ()
    choose_preset: Callable[[C], str] | None = None
    earlier_defaults: Mapping[str, object] = field(default_factory=dict)

    def is_free(self, name: str) -> bool:
        """Returns whether a setting may change when a run resumes."""
        return any(
            name == setting or (setting.endswith(".") and name.startswith(setting)) for setting in self.free_settings
        )

    @property
    def free_settings_text(self) -> str:
        """Returns the free settings as users write them."""
        return ", ".join(f"{setting}*" if setting.endswith(".") else setting for setting in self.free_settings)


AnyCommand: TypeAlias = Command[Any]
"""A command with settings of any class."""


@dataclass(frozen=True)
class ParsedCommand(Generic[C]):
    """A parsed command line: the resolved configuration, and the run to resume (None: a new run)."""

    config: C
    resume: Path | None = None


@dataclass(frozen=True)
class _SplitArguments:
    """A command line split into the verb's own options and the overrides of its configuration."""

    options: Mapping[str, str]
    overrides: tuple[str, ...]
    problems: tuple[Problem, ...] = ()


def parse_command(command: Command[C], argv: Sequence[str], console: Console) -> ParsedCommand[C] | None:
    """Resolves a command line; returns None after printing help or, on request, the resolved configuration.

    Raises:
        ConfigError: all problems of the command line at once; then those of the models and files that it names.
    """
    if any(word in ("-h", "--help") for word in argv):
        console.print(format_help(command), soft_wrap=True)
        return None
    settings = {knob.path for knob in list_settings(command.config)}
    data_argv, problems = world_of_options(argv) if takes_data(settings) else (list(argv), [])
    has_data = data_argv != list(argv)
    split = _split_arguments(command, [word for word in data_argv if word != "--print-config"])
    problems += split.problems
    name = split.options.get("--preset") or next(iter(command.presets), None)
    if name is not None and name not in command.presets:
        problems.append(unknown_name_problem("preset", name, command.presets, location="--preset"))
    resume = Path(split.options["--resume"]) if "--resume" in split.options else None
    file = Path(split.options["--config"]) if "--config" in split.options else None
    if resume is not None:
        problems += _check_resume(command, split, resume)
        if problems:
            raise ConfigError(problems)
        file, name = resume / "config.toml", None
    data_defaults = data_preset(settings) if has_data else {}
    preset: Mapping[str, object] = {**(command.presets.get(name, {}) if name else {}), **data_defaults}
    if resume is not None:
        preset = command.earlier_defaults
    try:
        config = resolve(command.config, file=file, overrides=split.overrides, preset=preset or None)
    except ConfigError as error:
        raise ConfigError(problems + error.problems) from error
    if problems:
        raise ConfigError(problems)
    if command.choose_preset is not None and resume is None and "--preset" not in split.options:
        name = command.choose_preset(config)
        preset = {**command.presets[name], **data_defaults}
        config = resolve(command.config, file=file, overrides=split.overrides, preset=preset)
    if "--print-config" in argv:
        console.print(to_toml(config), soft_wrap=True, end="")
        return None
    if name != next(iter(command.presets), None) and name is not None and "--preset" not in split.options:
        console.print(f"preset {name}, which fits the policy; --preset names another", soft_wrap=True)
    if resume is None and isinstance(config, ChecksInputs):
        config.check_inputs()
    return ParsedCommand(config, resume)


def _split_arguments(command: Command[Any], argv: Sequence[str]) -> _SplitArguments:
    options: dict[str, str] = {}
    overrides: list[str] = []
    problems: list[Problem] = []
    settings = {f"--{knob.path}" for knob in list_settings(command.config)}
    remaining = list(argv)
    while remaining and not remaining[0].startswith("--"):
        word = remaining.pop(0)
        if word.endswith(".toml") and "--config" not in options:
            options["--config"] = word
        elif command.main_field and f"--{command.main_field}" not in overrides:
            overrides += [f"--{command.main_field}", word]
        else:
            problems.append(
                Problem(f"evolvent {command.verb}", f"unexpected {word!r}", "write settings as --key value")
            )
    while remaining:
        word = remaining.pop(0)
        name, equals_sign, text = word.partition("=")
        if (
            name not in _COMMAND_OPTIONS
            and f"--{_setting_of(command, name)}" not in settings
            and find_nearest(name, settings | set(_COMMAND_OPTIONS)) in _COMMAND_OPTIONS
        ):
            problems.append(unknown_name_problem("option", name, _COMMAND_OPTIONS, location=f"evolvent {command.verb}"))
            remaining = (
                remaining[1:] if not equals_sign and remaining and not remaining[0].startswith("--") else remaining
            )
        elif name not in _COMMAND_OPTIONS or (name == "--resume" and not command.resumes):
            overrides.append(word)
        elif equals_sign or (remaining and not remaining[0].startswith("--")):
            options[name] = text if equals_sign else remaining.pop(0)
        else:
            problems.append(Problem(name, "missing value", f"see evolvent {command.verb} --help"))
    return _SplitArguments(options, tuple(overrides), tuple(problems))


def _setting_of(command: Command[Any], option: str) -> str:
    """Returns the dotted path of the setting that an option names, also by a former name."""
    return present_path(command.config, option[2:].replace("-", "_"))


def _check_resume(command: Command[Any], split: _SplitArguments, resume: Path) -> list[Problem]:
    problems, verb = [], command.verb
    resumed_verb = read_verb(resume)
    if resumed_verb not in (None, verb):
        message = f"{resume} is a run of evolvent {resumed_verb}, not of evolvent {verb}"
        problems.append(Problem("--resume", message, f"use: evolvent {resumed_verb} --resume {resume}"))
    fixed_overrides = _fixed_overrides(command, split.overrides)
    if _repeats_settings(command, fixed_overrides, resume):
        fixed_overrides = []
    if fixed_overrides or "--config" in split.options or "--preset" in split.options:
        message = f"a resumed run keeps its settings: got {' '.join(fixed_overrides) or 'a file or preset'}"
        free_text = f"; only {command.free_settings_text} may change" if command.free_settings else ""
        problems.append(Problem("--resume", message, f"leave them out, or start a new run{free_text}"))
    if not (resume / "config.toml").is_file():
        problems.append(Problem("--resume", f"{resume} is not a run: config.toml is missing", "pass a run folder"))
    return problems


def _fixed_overrides(command: Command[Any], overrides: Sequence[str]) -> list[str]:
    """Returns the overrides, as written, that a resumed run does not accept."""
    fixed_overrides: list[str] = []
    is_free = False
    for word in overrides:
        if word.startswith("--"):
            is_free = command.is_free(_setting_of(command, word.partition("=")[0]))
        if not is_free:
            fixed_overrides.append(word)
    return fixed_overrides


def _repeats_settings(command: Command[Any], overrides: Sequence[str], run: Path) -> bool:
    """Returns whether overrides say what a run has already, as where a command is repeated with `--resume`."""
    file = run / "config.toml"
    if not file.is_file():
        return False
    try:
        kept: Config = resolve(command.config, file=file, preset=command.earlier_defaults)
        repeated: Config = resolve(command.config, file=file, overrides=overrides, preset=command.earlier_defaults)
        return kept == repeated
    except ConfigError:  # told where the whole command line is resolved, or by the refusal
        return False


def read_verb(run: Path) -> str | None:
    """Reads the verb that began a run, None where its record does not name it."""
    try:
        row = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    verb = row.get("verb") if isinstance(row, dict) else None
    return verb if isinstance(verb, str) else None


def format_help(command: AnyCommand) -> str:
    """Formats the usage and every setting with its type, default and meaning, in 80 columns."""
    main_argument = f" [{command.main_field.upper()}]" if command.main_field else ""
    lines = [f"usage: evolvent {command.verb}{main_argument} [FILE.toml] [--key value ...]", ""]
    lines += [*textwrap.wrap(command.about, 78), ""]
    options = {"--config FILE": "a TOML file of settings", "--print-config": "print the settings as TOML and stop"}
    if command.presets:
        names = ", ".join(command.presets)
        options = {"--preset NAME": f"settings to begin with: {names} (the first is the default)", **options}
    if command.resumes:
        free_text = f"; {command.free_settings_text} may change" if command.free_settings else ""
        options["--resume RUN"] = f"go on with an interrupted run, with its own settings{free_text}"
    if takes_data({knob.path for knob in list_settings(command.config)}):
        options |= DATA_OPTIONS
    lines += [_format_entry(name, about) for name, about in options.items()]
    lines += ["", "settings (preset < file < command line; a unique last part is enough):"]
    for knob in list_settings(command.config):
        lines.append(_format_entry(f"--{knob.path}", f"{knob.description} ({knob.type}; default {knob.default})"))
    return "\n".join(lines)


def _format_entry(name: str, about: str) -> str:
    lines = textwrap.wrap(about, 78 - 26)
    head = f"  {name:24}"
    first = head + (lines.pop(0) if len(name) < 24 and lines else "")
    return "\n".join([first.rstrip(), *(" " * 26 + line for line in lines)])
