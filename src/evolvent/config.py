"""Configurations: frozen, closed, and resolved from preset < TOML file < dotted overrides; all mistakes reported at
once.

A configuration is a class with described fields. Each leaf (`train.lr`) is checked by itself, strictly, so that
no mistake hides another. Then the whole is built, and contradictions between settings are added to the list.
"""

from __future__ import annotations

import json
import logging
import re
import tomllib
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, core_schema, to_jsonable_python

from evolvent.errors import ConfigError, Problem, find_nearest, unknown_name_problem
from evolvent.former_names import former_fields, former_values
from evolvent.identity import fingerprint

__all__ = [
    "Choice",
    "Config",
    "SettingInfo",
    "as_dict",
    "config_boundary",
    "find_own_name",
    "is_secret_name",
    "list_settings",
    "present_path",
    "redact",
    "resolve",
    "to_toml",
]

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass

    from evolvent.trajectory import JsonObject
else:
    ModelMetaclass = type(BaseModel)

log = logging.getLogger(__name__)
C = TypeVar("C", bound=BaseModel)
T = TypeVar("T")
REDACTED = "<redacted>"
_SHORT_FLAGS = {"to": "output_dir", "on": "backend"}  # of every command that has the setting; no warning
_SECRETS = frozenset(
    {"apikey", "authorization", "credential", "credentials", "key", "passwd", "password", "secret", "token"}
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_DECIMAL = re.compile(r"[+-]?\d*\.?\d+(e[+-]?\d+)?")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]*(?=@)|(?<=[?&](?:key|sig)=)[^&\s]+|(?<=[?&]token=)[^&\s]+")


class _AcceptsFormerNames(ModelMetaclass):
    """Lets constructors take settings under former names; validated JSON and TOML go through `resolve` instead."""

    def __call__(cls, *args: Any, **values: Any) -> Any:
        return super().__call__(*args, **_rename_former(cast(type[BaseModel], cls), values))


def _rename_former(cls: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """Returns settings under their present names, those of nested mappings too; warns of each renamed one."""
    renamed = dict(values)
    for present, former in former_fields(cls).items():
        if former in renamed and former not in cls.model_fields:
            if present in renamed:
                raise ConfigError(f"{cls.__name__}: {former!r} is the former name of {present!r}; set only one of them")
            renamed[present] = renamed.pop(former)
            warnings.warn(f"{cls.__name__}: {former!r} is now {present!r}", FutureWarning, stacklevel=4)
    for name, names in former_values(cls).items():
        for present, former in names.items():
            if renamed.get(name) == former:
                renamed[name] = present
                warnings.warn(f"{cls.__name__}: {name} {former!r} is now {present!r}", FutureWarning, stacklevel=4)
    for name, value in renamed.items():
        inner = _nested_class(cls.model_fields[name].annotation) if name in cls.model_fields else None
        if inner is not None and isinstance(value, dict):
            renamed[name] = _rename_former(inner, value)
    return renamed


class Config(BaseModel, metaclass=_AcceptsFormerNames):
    """Base of every configuration: frozen, no unknown keys, no NaN; give each field a description.

    A field that was renamed is still accepted under its former name (`former_names`), with a `FutureWarning`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)
    main_setting: ClassVar[str] = ""
    """The setting that a plain value in place of the whole sets: `--agent policy` for `--agent.kind policy`."""
    implied_settings: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """By setting: another setting's path, and its value where only the first is named. `--policy FOLDER` alone means
    `--agent policy`: otherwise the policy would be read by nobody."""

    def fingerprint(self) -> str:
        """Returns a digest of all settings that stays the same when settings are renamed, 24 hexadecimal digits."""
        return fingerprint(self)

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Returns a copy with some settings replaced. Values are not checked, names are: pydantic would add an unknown
        one and leave the setting that was meant as it is.

        Raises:
            ConfigError: an unknown setting.
        """
        update = _rename_former(type(self), dict(update or {}))
        problems = [
            unknown_name_problem("setting", name, type(self).model_fields)
            for name in update
            if name not in type(self).model_fields
        ]
        if problems:
            raise ConfigError(problems)
        return super().model_copy(update=update, deep=deep)


@dataclass(frozen=True)
class Choice:
    """Annotation of a text that must be a name in an open registry: `Annotated[str, Choice(loss_names)]`.

    Args:
        names: called when a value is checked or help is shown, so that packages installed later count too.
    """

    names: Callable[[], Collection[str]]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Returns the schema of a text that is checked against the names."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: str) -> str:
        names = self.names()
        if value not in names:
            suggestion = find_nearest(value, names)
            hint = f" (did you mean {suggestion!r}?)" if suggestion else ""
            raise ValueError(f"got {value!r}, expected {' or '.join(map(repr, names))}{hint}")
        return value


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One setting: its dotted path, its type, its default and its description."""

    path: str
    type: str
    default: str
    description: str


@dataclass(frozen=True, slots=True)
class _SettingInput:
    """An input for a path: the values that it may mean, in the order in which they are tried, its raw form and its
    source.
    """

    path: str
    candidates: tuple[Any, ...]
    raw: Any
    source: str


def resolve(
    cls: type[C], *, file: Path | None = None, overrides: Sequence[str] = (), preset: Mapping[str, object] | None = None
) -> C:
    """Builds a configuration from its defaults, a preset, a TOML file and dotted overrides; later sources win.

    Args:
        file: a TOML file; tables nest, `"none"` stands for None.
        overrides: `--train.lr 1e-3` or `--train.lr=1e-3` as two or one words; a value is a TOML value, `none`, a list
            `a,b` or bare text; a lone `--flag` is true. The last part of a path is enough where no other path ends
            in it: `--lr`.
        preset: nested values that the file and the overrides may replace.
    Raises:
        ConfigError: every unknown key (with the nearest one), wrong value, and contradiction, and a TOML syntax error
            with its line.
    """
    problems: list[Problem] = []
    fields = _SettingFields(cls)
    inputs: dict[str, _SettingInput] = {}
    sources: list[Iterable[_SettingInput]] = [_flatten(_nested_defaults(cls), fields, "default")]
    sources.append(_flatten(preset or {}, fields, "preset"))
    if file is not None:
        sources.append(_flatten(_read_toml(file, problems), fields, str(file)))
    sources.append(_parse_overrides(overrides, fields, problems))
    for source in sources:
        for item in source:
            if item.path in fields:
                inputs[item.path] = fields.rename_value(item)
            else:
                problems.append(_report_unknown_key(item, fields))
    problems += _add_implied_settings(cls, inputs)
    values: dict[str, Any] = {}
    for path, item in inputs.items():
        checked = _check_input(fields[path], item)
        if isinstance(checked, Problem):
            problems.append(checked)
        else:
            _set_path(values, path, checked[0])
    invalid_paths = {path for path in inputs if not _has_path(values, path)}
    try:
        config = cls.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        problems += [problem for problem in _list_contradictions(error) if problem.where not in invalid_paths]
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    if fields.renamed:
        pairs = [f"{former} is now {present}" for former, present in fields.renamed.items()]
        log.warning("renamed settings: %s", ", ".join(pairs))
    return config


def _add_implied_settings(cls: type[C], inputs: dict[str, _SettingInput]) -> list[Problem]:
    """Adds the settings that others imply, where nobody named them; returns a problem where two imply one setting."""
    implied: dict[str, list[_SettingInput]] = {}
    for name, (path, value) in (cls.implied_settings if issubclass(cls, Config) else {}).items():
        is_named = name in inputs and inputs[name].source != "default" and inputs[name].raw not in ("", None)
        if is_named and (path not in inputs or inputs[path].source == "default"):
            implied.setdefault(path, []).append(_SettingInput(path, (value,), value, f"--{name}"))
    inputs |= {path: items[0] for path, items in implied.items() if len(items) == 1}
    return [
        Problem(
            path,
            f"{' and '.join(item.source for item in items)} are both given",
            f"choose one with --{path} {' or '.join(str(item.raw) for item in items)}",
        )
        for path, items in implied.items()
        if len(items) > 1
    ]


class _SettingFields(dict[str, FieldInfo]):
    """The leaves of a configuration class by dotted path, and the former names that were used for them.

    Attributes:
        main_names: names of nested classes that take a plain value, as `agent` in place of `agent.kind`.
    """

    def __init__(self, cls: type[BaseModel]) -> None:
        super().__init__(_iterate_fields(cls))
        self.renamed: dict[str, str] = {}
        nested_classes = {name: _nested_class(field.annotation) for name, field in cls.model_fields.items()}
        self.main_names = [
            name
            for name, inner in nested_classes.items()
            if inner is not None and issubclass(inner, Config) and inner.main_setting
        ]
        self._cls = cls

    def resolve_path(self, path: str, *, is_plain: bool = True) -> str:
        """Returns a path with every part under its present name, and records the change where a name is a former
        one.

        Args:
            is_plain: whether its value is plain; the path of a nested class is then that of its main setting.
        """
        cls: type[BaseModel] | None = self._cls
        parts, uses_former_name = [], False
        for part in path.split("."):
            name = part
            if cls is not None:
                former = {old: new for new, old in former_fields(cls).items()}
                short = _SHORT_FLAGS.get(part, part)
                name = (
                    part if part in cls.model_fields else former.get(part, short if short in cls.model_fields else part)
                )
                cls = _nested_class(cls.model_fields[name].annotation) if name in cls.model_fields else None
            uses_former_name |= part != name and part not in _SHORT_FLAGS
            parts.append(name)
        if is_plain and cls is not None and issubclass(cls, Config) and cls.main_setting:
            parts.append(cls.main_setting)
        present = ".".join(parts)
        if uses_former_name and present in self:
            self.renamed[path] = present
        if present not in self and len(parts) == 1 and len(full_paths := self.find_paths(present)) == 1:
            return full_paths[0]
        return present

    def find_paths(self, name: str) -> list[str]:
        """Returns the dotted paths whose last part is `name`; a nested setting may be written by it where it is the
        only one: `--lr` for `--train.lr`.
        """
        return [path for path in self if path.rpartition(".")[2] == name]

    def rename_value(self, item: _SettingInput) -> _SettingInput:
        """Returns an input with its value under its present name, and records the change."""
        cls: type[BaseModel] | None = self._cls
        *tables, name = item.path.split(".")
        for part in tables:
            cls = None if cls is None else _nested_class(cls.model_fields[part].annotation)
        for present, former in ({} if cls is None else former_values(cls).get(name, {})).items():
            if former in item.candidates:
                self.renamed[f"{item.path} {former!r}"] = repr(present)
                return replace(item, candidates=(present,))
        return item


def present_path(cls: type[BaseModel], path: str) -> str:
    """Returns the dotted path of a setting under its present name; a path of present or unknown names stays."""
    return _SettingFields(cls).resolve_path(path)


def list_settings(cls: type[BaseModel]) -> list[SettingInfo]:
    """Lists every leaf of a configuration class, nested ones by their dotted path, in the order of definition."""
    defaults = {
        item.path: item.candidates[0] for item in _flatten(_nested_defaults(cls), _SettingFields(cls), "default")
    }
    settings = []
    for path, field in _iterate_fields(cls):
        default = defaults[path] if path in defaults else _to_json(field.get_default(call_default_factory=True))
        required = field.is_required() and path not in defaults
        settings.append(
            SettingInfo(
                path, _describe_type(field), "required" if required else _format_toml(default), field.description or ""
            )
        )
    return settings


def as_dict(config: BaseModel) -> JsonObject:
    """Returns a configuration as JSON values with secrets redacted; this form is stored with a run."""
    return dict(redact(config.model_dump(mode="json")))


def to_toml(config: BaseModel) -> str:
    """Returns a configuration as TOML text that `resolve` can read; secrets are redacted."""
    lines: list[str] = []
    _write_table(as_dict(config), type(config), "", lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def redact(value: T) -> T:
    """Returns a copy of nested mappings and lists in which values of secret keys, and logins in addresses, are
    hidden.

    A key is secret if one of its words is key, token, secret, password or the like: `api_key` is, `max_tokens` is not.
    """
    return cast(T, _redact(value))


def _redact(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: REDACTED if _is_secret(str(key), item) else _redact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redact(item) for item in value]
    return _CREDENTIALS.sub(REDACTED, value) if isinstance(value, str) else value


def is_secret_name(key: str) -> bool:
    """Returns whether a key names a secret; see `redact`. `key_env` and `token_file` only say where a secret is.

    "key" and "token" name a secret as the last word only: `token_lambda` is a coefficient.
    """
    key_words = [word.lower() for word in _WORD.findall(key)]
    if not key_words or key_words[-1] in ("env", "file"):
        return False
    return key_words[-1] in _SECRETS or bool(set(key_words) & (_SECRETS - {"key", "token"}))


def _is_secret(key: str, value: Any) -> bool:
    return is_secret_name(key) and value not in (None, "") and not isinstance(value, (bool, Mapping))


# ---------------------------------------------------------------------- what a class takes


def _nested_class(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _iterate_fields(cls: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in cls.model_fields.items():
        inner = _nested_class(field.annotation)
        if inner is None:
            yield prefix + name, field
        else:
            yield from _iterate_fields(inner, f"{prefix}{name}.")


def _nested_defaults(cls: type[BaseModel]) -> dict[str, Any]:
    """Returns the values that default instances of nested configurations set: `train: Train = Train(lr=1.0)` sets
    `train.lr`.
    """
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in cls.model_fields.items()
        if _nested_class(field.annotation) and not field.is_required()
    }
    values = {name: value.model_dump(mode="json", exclude_unset=True) for name, value in defaults.items()}
    return {name: settings for name, settings in values.items() if settings}


def _describe_type(field: FieldInfo) -> str:
    """Describes the values that a field takes: `int >= 0`, `'one' or 'two'`, `list of str`, `float or none`."""
    choice = _find_choice(field)
    if choice is not None:
        return " or ".join(map(repr, choice.names()))
    description, optional, _ = _describe_annotation(field.annotation).partition(" or none")
    return description + _describe_bounds(field.metadata) + optional


def _find_choice(field: FieldInfo) -> Choice | None:
    return next((rule for rule in field.metadata if isinstance(rule, Choice)), None)


def _describe_bounds(rules: Sequence[Any]) -> str:
    """Describes the bounds of a number among the rules of a field: ` >= 0 and <= 1`."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [
        f"{sign} {getattr(rule, name)}"
        for rule in rules
        for name, sign in signs.items()
        if getattr(rule, name, None) is not None
    ]
    return " " + " and ".join(bounds) if bounds else ""


def _describe_annotation(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        for rule in inner[1:]:
            if isinstance(rule, Choice):
                return " or ".join(map(repr, rule.names()))
        rules = [
            rule
            for metadata in inner[1:]
            for rule in (metadata.metadata if isinstance(metadata, FieldInfo) else [metadata])
        ]
        return _describe_annotation(inner[0]) + _describe_bounds(rules)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Union, UnionType):
        return " or ".join(_describe_annotation(part) for part in inner)
    if origin in (list, tuple, set, frozenset):
        parts = [part for part in inner if part is not Ellipsis]
        if origin is tuple and Ellipsis not in inner:
            return f"list of {len(parts)} ({', '.join(map(_describe_annotation, parts))})"
        return f"list of {_describe_annotation(parts[0])}"
    names = {NoneType: "none", str: "text", bool: "true or false", Path: "path"}
    return names.get(annotation) or getattr(annotation, "__name__", str(annotation)).lower()


# ---------------------------------------------------------------------- what was given


def _read_toml(file: Path, problems: list[Problem]) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(Problem(str(file), f"cannot be read: {error.strerror or error}"))
    except UnicodeDecodeError as error:
        problems.append(Problem(str(file), f"not UTF-8 text: invalid byte {error.start}"))
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(str(file), f"not valid TOML: {error}"))
    return {}


def _flatten(
    values: Mapping[str, Any], fields: _SettingFields, source: str, prefix: str = ""
) -> Iterator[_SettingInput]:
    for name, value in values.items():
        raw_path = f"{prefix}{name}"
        path = fields.resolve_path(raw_path, is_plain=not isinstance(value, Mapping))
        is_table = any(field_path.startswith(path + ".") for field_path in fields)
        if isinstance(value, Mapping) and path not in fields and (is_table or value):
            yield from _flatten(value, fields, source, raw_path + ".")
        elif not (isinstance(value, Mapping) and is_table):
            json_value = _to_json(value)
            yield _SettingInput(path, (None, json_value) if _is_none_word(json_value) else (json_value,), value, source)


def _parse_overrides(argv: Sequence[str], fields: _SettingFields, problems: list[Problem]) -> Iterator[_SettingInput]:
    remaining = list(argv)
    while remaining:
        word = remaining.pop(0)
        if not word.startswith("--") or word == "--":
            problems.append(Problem("input", f"unexpected {word!r}", "write settings as --key value"))
            continue
        name, separator, text = word[2:].partition("=")
        path = fields.resolve_path(name.replace("-", "_"))
        if not separator:
            if remaining and not remaining[0].startswith("--"):
                text = remaining.pop(0)
            elif path not in fields or fields[path].annotation is bool:
                text = "true"
            else:
                problems.append(Problem(path, "has no value", f"expected {_describe_type(fields[path])}"))
                continue
        yield _SettingInput(path, tuple(_parse_candidates(text)), text, f"--{name}")


def _parse_candidates(text: str) -> Iterator[Any]:
    """Yields the values that a word may mean, the likeliest first: a TOML value, a number, None, a list, the text
    itself.
    """
    yield from _parse_toml_value(text)
    if _DECIMAL.fullmatch(text):
        yield float(text)
    if _is_none_word(text):
        yield None
    yield from _parse_toml_value(f"[{text}]")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    yield [float(part) if _DECIMAL.fullmatch(part) else part for part in parts]
    yield parts
    yield text


def _parse_toml_value(text: str) -> Iterator[Any]:
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return
    if list(table) == ["value"]:
        yield _to_json(table["value"])


def _is_none_word(value: Any) -> bool:
    return isinstance(value, str) and value.lower() == "none"


def _to_json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return to_jsonable_python(value, fallback=str)


# Foreign name -> names here, the likeliest first; the one that a command has is shown.
_OWN_NAMES: dict[str, tuple[str, ...]] = {
    "adam_beta1": ("train.betas",),
    "adam_beta2": ("train.betas",),
    "batch_size": ("train.batch_tokens", "rl.practice.tasks_per_iteration"),
    "bf16": ("train.dtype", "dtype"),
    "cliprange": ("rl.clip_range",),
    "clip_range": ("rl.clip_range",),
    "cuda": ("device",),
    "dataset": ("data",),
    "dataset_name": ("data",),
    "ent_coef": ("rl.entropy_coef",),
    "entropy_coeff": ("rl.entropy_coef",),
    "epsilon": ("rl.clip_range",),
    "eval_steps": ("panel.limit",),
    "fp16": ("dtype",),
    "gradient_accumulation_steps": ("train.batch_tokens", "train.max_tokens_per_forward"),
    "gradient_clipping": ("train.max_grad_norm",),
    "kl_coef": ("rl.kl",),
    "learning_rate": ("train.lr", "learn.train.lr"),
    "logging_dir": ("output_dir",),
    "lora_alpha": ("adapter.alpha",),
    "lora_dropout": ("adapter.dropout",),
    "lora_r": ("adapter.rank",),
    "lora_rank": ("adapter.rank",),
    "lora_target_modules": ("adapter.targets",),
    "max_completion_length": ("max_tokens", "search.max_tokens"),
    "max_length": ("context",),
    "max_model_len": ("context",),
    "max_new_tokens": ("max_tokens", "search.max_tokens"),
    "max_prompt_length": ("context",),
    "max_seq_length": ("context",),
    "model": ("policy",),
    "model_name": ("policy",),
    "model_name_or_path": ("policy",),
    "n_epochs": ("rl.practice.ppo_epochs", "train.epochs"),
    "n_steps": ("rl.practice.tasks_per_iteration",),
    "num_epochs": ("train.epochs", "rl.practice.ppo_epochs"),
    "num_generations": ("rl.practice.group_size", "samples"),
    "num_iterations": ("rl.practice.ppo_epochs",),
    "num_samples": ("samples", "rl.practice.group_size"),
    "num_train_epochs": ("train.epochs",),
    "per_device_train_batch_size": ("train.batch_tokens", "train.max_tokens_per_forward"),
    "ppo_mini_batch_size": ("rl.practice.minibatches",),
    "r": ("adapter.rank",),
    "resume_from_checkpoint": ("resume",),
    "rollout_n": ("rl.practice.group_size",),
    "target_modules": ("adapter.targets",),
    "torch_dtype": ("dtype",),
    "total_timesteps": ("rl.practice.iterations",),
    "train_batch_size": ("train.batch_tokens", "rl.practice.tasks_per_iteration"),
    "use_peft": ("adapter.kind",),
    "warmup_ratio": ("train.warmup_steps",),
}
_ELSEWHERE = {
    "beta": "the weight of a divergence from the first policy is rl.kl",
    "push_to_hub": "use: evolvent publish RUN",
    "report_to": "use: evolvent runs track RUN",
    "wandb_project": "use: evolvent runs track RUN",
    "use_vllm": "use --endpoint URL --dialect vllm",
}


def find_own_name(name: str, settings: Collection[str]) -> str | None:
    """Returns the hint for a name that TRL, transformers, verl or Stable-Baselines3 use for a setting; None: unknown.

    Args:
        name: as it was written, without a path.
        settings: dotted paths of the command.

    >>> find_own_name("learning_rate", ["policy", "train.lr"])
    "here it is 'train.lr'"
    """
    name = name.lower().replace("-", "_")
    for own_name in _OWN_NAMES.get(name, ()):
        if own_name in settings:
            return f"here it is {own_name!r}"
    return _ELSEWHERE.get(name)


def _report_unknown_key(item: _SettingInput, fields: _SettingFields) -> Problem:
    tail = item.path.rsplit(".", 1)[-1]
    choices = [*fields, *fields.main_names]
    problem = unknown_name_problem("key", item.path, choices, location=item.source)
    own_name = find_own_name(tail, fields)
    shared_name_paths = fields.find_paths(item.path)
    if shared_name_paths:
        return Problem(problem.where, f"ambiguous key {item.path!r}", f"use one of {', '.join(shared_name_paths)}")
    if own_name is not None:
        return Problem(problem.where, problem.what, own_name)
    if find_nearest(item.path, choices) is None:
        suggestion = find_nearest(tail, [path.rsplit(".", 1)[-1] for path in fields])
        full_paths = [path for path in fields if suggestion is not None and path.rsplit(".", 1)[-1] == suggestion]
        if full_paths:
            return Problem(problem.where, problem.what, f"did you mean {full_paths[0]!r}?")
    return problem


def _check_input(field: FieldInfo, item: _SettingInput) -> tuple[Any] | Problem:
    """Returns the first candidate that the field accepts, as a JSON value in a tuple; otherwise the problem."""
    annotation: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False))
    for reading in item.candidates:
        try:
            adapter.validate_json(json.dumps(reading), strict=True)
        except ValidationError:
            continue
        return (reading,)
    choice = _find_choice(field)
    choices = [name for name in get_args(field.annotation) if isinstance(name, str)]
    choices += choice.names() if choice is not None else ()
    suggestion = find_nearest(str(item.raw), choices)
    hint = (
        f"did you mean {suggestion!r}?"
        if suggestion
        else f"from {item.source}"
        if item.source != f"--{item.path}"
        else ""
    )
    return Problem(item.path, f"got {item.raw!r}, expected {_describe_type(field)}", hint)


@contextmanager
def config_boundary() -> Iterator[None]:
    """Raises the errors of a model of settings as a ConfigError, with a sentence for each setting.

    Raises:
        ConfigError: a setting has a wrong value, or two contradict each other.
    """
    try:
        yield
    except ValidationError as error:
        raise ConfigError(list(_list_contradictions(error))) from error


def _list_contradictions(error: ValidationError) -> Iterator[Problem]:
    for row in error.errors():
        location = ".".join(map(str, row["loc"])) or "config"
        message = "is required" if row["type"] == "missing" else str(row["msg"]).removeprefix("Value error, ")
        yield Problem(location, message)


def _set_path(values: dict[str, Any], path: str, value: Any) -> None:
    *tables, name = path.split(".")
    for table in tables:
        values = values.setdefault(table, {})
    values[name] = value


def _has_path(values: Mapping[str, Any], path: str) -> bool:
    *tables, name = path.split(".")
    for table in tables:
        values = values.get(table, {})
    return name in values


# ---------------------------------------------------------------------- TOML


def _format_toml(value: Any) -> str:
    if value is None or value is PydanticUndefined:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_format_toml(str(key))} = {_format_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_format_toml, value)) + "]"
    return repr(value)


def _write_table(values: Mapping[str, Any], cls: type[BaseModel], prefix: str, lines: list[str]) -> None:
    inner = {name: _nested_class(field.annotation) for name, field in cls.model_fields.items()}
    lines += [f"{name} = {_format_toml(value)}" for name, value in values.items() if inner.get(name) is None]
    for name, table in inner.items():
        if table is not None:
            lines += ["", f"[{prefix}{name}]"]
            _write_table(values[name], table, f"{prefix}{name}.", lines)
