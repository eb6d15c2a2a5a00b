"""Configurations: frozen, closed, and resolved from preset < TOML file < dotted overrides, every mistake at once.

A configuration is a class with described fields. Each leaf (`train.lr`) is checked by itself, strictly, so that one
mistake hides no other; then the whole is built, and what contradicts itself is added to the list.
"""

from __future__ import annotations

import json
import logging
import re
import tomllib
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, core_schema, to_jsonable_python

from evolvent.errors import ConfigError, Problem, nearest, unknown
from evolvent.former_names import former_fields
from evolvent.identity import fingerprint

__all__ = ["Choice", "Config", "Knob", "as_dict", "knobs", "redact", "resolve", "secret_name", "to_toml"]

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

log = logging.getLogger(__name__)
C = TypeVar("C", bound=BaseModel)
REDACTED = "<redacted>"
_SECRETS = frozenset(
    {"apikey", "authorization", "credential", "credentials", "key", "passwd", "password", "secret", "token"}
)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_POINT = re.compile(r"[+-]?\d*\.?\d+(e[+-]?\d+)?")
_LOGIN = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]*(?=@)|(?<=[?&](?:key|sig)=)[^&\s]+|(?<=[?&]token=)[^&\s]+")


class _AcceptsFormerNames(ModelMetaclass):
    """Lets constructors take settings under former names; validated JSON and TOML go through `resolve` instead."""

    def __call__(cls, *args: Any, **values: Any) -> Any:
        fields = cast(type[BaseModel], cls).model_fields
        for present, former in former_fields(cls).items():
            if former in values and former not in fields:
                if present in values:
                    raise ConfigError(f"{cls.__name__}: {former!r} is the former name of {present!r}; give one of them")
                values[present] = values.pop(former)
                warnings.warn(f"{cls.__name__}: {former!r} is now {present!r}", FutureWarning, stacklevel=2)
        return super().__call__(*args, **values)


class Config(BaseModel, metaclass=_AcceptsFormerNames):
    """Base of every configuration: frozen, no unknown keys, no NaN; give each field a description.

    A field that was renamed is still accepted under its former name (`former_names`), with a `FutureWarning`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    def fingerprint(self) -> str:
        """Returns a digest of all settings that stays the same when settings are renamed, 24 hexadecimal digits."""
        return fingerprint(self)


@dataclass(frozen=True)
class Choice:
    """Annotation of a text that must be a name of an open registry: `Annotated[str, Choice(loss_names)]`.

    Args:
        names: called when a value is checked or help is shown, so that packages installed later count too.
    """

    names: Callable[[], Collection[str]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Returns the schema of a text that is checked against the names."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: str) -> str:
        names = self.names()
        if value not in names:
            near = nearest(value, names)
            hint = f" (did you mean {near!r}?)" if near else ""
            raise ValueError(f"got {value!r}, expected {' or '.join(map(repr, names))}{hint}")
        return value


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing that can be set: its dotted path, what it takes, its default and what it is for."""

    path: str
    type: str
    default: str
    description: str


@dataclass(frozen=True, slots=True)
class _Given:
    """A value that somebody gave for a path: the readings of it to try in order, how it was written, and where."""

    path: str
    readings: tuple[Any, ...]
    written: Any
    source: str


def resolve(
    cls: type[C], *, file: Path | None = None, overrides: Sequence[str] = (), preset: Mapping[str, Any] | None = None
) -> C:
    """Build a configuration from its defaults, a preset, a TOML file and dotted overrides, the later the stronger.

    Args:
        file: a TOML file; tables nest, `"none"` stands for None.
        overrides: `--train.lr 1e-3` or `--train.lr=1e-3` as two or one words; a value is a TOML value, `none`, a list
            `a,b` or bare text; a lone `--flag` is true.
        preset: nested values that the file and the overrides may replace.
    Raises:
        ConfigError: every unknown key (with the nearest one), wrong value, and contradiction, and a TOML syntax error
            with its line.
    """
    problems: list[Problem] = []
    fields = _Fields(cls)
    given: dict[str, _Given] = {}
    sources: list[Iterable[_Given]] = [_flat(_inner_defaults(cls), fields, "default")]
    sources.append(_flat(preset or {}, fields, "preset"))
    if file is not None:
        sources.append(_flat(_read(file, problems), fields, str(file)))
    sources.append(_overrides(overrides, fields, problems))
    for source in sources:
        for item in source:
            if item.path in fields:
                given[item.path] = item
            else:
                problems.append(_unknown_key(item, fields))
    values: dict[str, Any] = {}
    for path, item in given.items():
        found = _checked(fields[path], item)
        if isinstance(found, Problem):
            problems.append(found)
        else:
            _put(values, path, found[0])
    bad = {path for path in given if not _holds(values, path)}
    try:
        built = cls.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        problems += [problem for problem in _contradictions(error) if problem.where not in bad]
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    if fields.renamed:
        pairs = [f"{former} is now {present}" for former, present in fields.renamed.items()]
        log.warning("renamed settings: %s", ", ".join(pairs))
    return built


class _Fields(dict[str, FieldInfo]):
    """Every leaf of a configuration class by its dotted path, and the former names that were used for them."""

    def __init__(self, cls: type[BaseModel]) -> None:
        super().__init__(_fields(cls))
        self.renamed: dict[str, str] = {}
        self._cls = cls

    def present(self, path: str) -> str:
        """Returns a path with every part under its present name, and notes it where that is another one."""
        cls: type[BaseModel] | None = self._cls
        parts = []
        for part in path.split("."):
            name = part
            if cls is not None:
                former = {old: new for new, old in former_fields(cls).items()}
                name = part if part in cls.model_fields else former.get(part, part)
                cls = _nested(cls.model_fields[name].annotation) if name in cls.model_fields else None
            parts.append(name)
        present = ".".join(parts)
        if present != path and present in self:
            self.renamed[path] = present
        return present


def knobs(cls: type[BaseModel]) -> list[Knob]:
    """Every leaf of a configuration class, nested ones by their dotted path, in the order of definition."""
    given = {item.path: item.readings[0] for item in _flat(_inner_defaults(cls), _Fields(cls), "default")}
    found = []
    for path, field in _fields(cls):
        default = given[path] if path in given else _jsonable(field.get_default(call_default_factory=True))
        required = field.is_required() and path not in given
        found.append(Knob(path, _expected(field), "required" if required else _toml(default), field.description or ""))
    return found


def as_dict(config: BaseModel) -> dict[str, Any]:
    """A configuration as JSON values, secrets redacted: the form that is stored with a run."""
    return dict(redact(config.model_dump(mode="json")))


def to_toml(config: BaseModel) -> str:
    """A configuration as the TOML text that `resolve` reads back; secrets are redacted."""
    lines: list[str] = []
    _write_table(as_dict(config), type(config), "", lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def redact(value: Any) -> Any:
    """A copy of nested mappings and lists in which the values of secret keys, and logins in addresses, are hidden.

    A key is secret if one of its words is key, token, secret, password or the like: `api_key` is, `max_tokens` is not.
    """
    if isinstance(value, Mapping):
        return {key: REDACTED if _secret(str(key), item) else redact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    return _LOGIN.sub(REDACTED, value) if isinstance(value, str) else value


def secret_name(key: str) -> bool:
    """Whether a key says that its value is secret; see `redact`. `key_env` and `token_file` say only where it is."""
    words = [word.lower() for word in _WORDS.findall(key)]
    return bool(set(words) & _SECRETS) and words[-1] not in ("env", "file")


def _secret(key: str, value: Any) -> bool:
    return secret_name(key) and value not in (None, "") and not isinstance(value, (bool, Mapping))


# ---------------------------------------------------------------------- what a class takes


def _nested(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _fields(cls: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in cls.model_fields.items():
        inner = _nested(field.annotation)
        if inner is None:
            yield prefix + name, field
        else:
            yield from _fields(inner, f"{prefix}{name}.")


def _inner_defaults(cls: type[BaseModel]) -> dict[str, Any]:
    """What the default instances of nested configurations set: `train: Train = Train(lr=1.0)` sets `train.lr`."""
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in cls.model_fields.items()
        if _nested(field.annotation) and not field.is_required()
    }
    return {name: value.model_dump(mode="json", exclude_unset=True) for name, value in defaults.items()}


def _expected(field: FieldInfo) -> str:
    """What a field takes, in words: `int >= 0`, `'one' or 'two'`, `list of str`, `float or none`."""
    choice = _choice_of(field)
    if choice is not None:
        return " or ".join(map(repr, choice.names()))
    words, optional, _ = _type_words(field.annotation).partition(" or none")
    return words + _limits(field.metadata) + optional


def _choice_of(field: FieldInfo) -> Choice | None:
    return next((rule for rule in field.metadata if isinstance(rule, Choice)), None)


def _limits(rules: Sequence[Any]) -> str:
    """The bounds of a number among the rules of a field: ` >= 0 and <= 1`."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    found = [
        f"{sign} {getattr(rule, name)}"
        for rule in rules
        for name, sign in signs.items()
        if getattr(rule, name, None) is not None
    ]
    return " " + " and ".join(found) if found else ""


def _type_words(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        for rule in inner[1:]:
            if isinstance(rule, Choice):
                return " or ".join(map(repr, rule.names()))
        rules = [rule for one in inner[1:] for rule in (one.metadata if isinstance(one, FieldInfo) else [one])]
        return _type_words(inner[0]) + _limits(rules)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Union, UnionType):
        return " or ".join(_type_words(part) for part in inner)
    if origin in (list, tuple, set, frozenset):
        parts = [part for part in inner if part is not Ellipsis]
        if origin is tuple and Ellipsis not in inner:
            return f"list of {len(parts)} ({', '.join(map(_type_words, parts))})"
        return f"list of {_type_words(parts[0])}"
    names = {NoneType: "none", str: "text", bool: "true or false", Path: "path"}
    return names.get(annotation) or getattr(annotation, "__name__", str(annotation)).lower()


# ---------------------------------------------------------------------- what was given


def _read(file: Path, problems: list[Problem]) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(Problem(str(file), f"cannot be read: {error.strerror or error}"))
    except UnicodeDecodeError as error:
        problems.append(Problem(str(file), f"is no UTF-8 text: byte {error.start}"))
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(str(file), f"is no TOML: {error}"))
    return {}


def _flat(values: Mapping[str, Any], fields: _Fields, source: str, prefix: str = "") -> Iterator[_Given]:
    for name, value in values.items():
        written = f"{prefix}{name}"
        path = fields.present(written)
        inside = any(known.startswith(path + ".") for known in fields)
        if isinstance(value, Mapping) and path not in fields and (inside or value):
            yield from _flat(value, fields, source, written + ".")
        elif not (isinstance(value, Mapping) and inside):
            plain = _jsonable(value)
            yield _Given(path, (None, plain) if _none_word(plain) else (plain,), value, source)


def _overrides(words: Sequence[str], fields: _Fields, problems: list[Problem]) -> Iterator[_Given]:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            problems.append(Problem("input", f"unexpected {word!r}", "settings look like --key value"))
            continue
        name, mark, text = word[2:].partition("=")
        path = fields.present(name.replace("-", "_"))
        if not mark:
            if rest and not rest[0].startswith("--"):
                text = rest.pop(0)
            elif path not in fields or fields[path].annotation is bool:
                text = "true"
            else:
                problems.append(Problem(path, "has no value", f"expected {_expected(fields[path])}"))
                continue
        yield _Given(path, tuple(_readings(text)), text, f"--{name}")


def _readings(text: str) -> Iterator[Any]:
    """What a word may mean, the likeliest first: a TOML value, a number, None, a list, the text itself."""
    yield from _toml_value(text)
    if _POINT.fullmatch(text):
        yield float(text)
    if _none_word(text):
        yield None
    yield from _toml_value(f"[{text}]")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    yield [float(part) if _POINT.fullmatch(part) else part for part in parts]
    yield parts
    yield text


def _toml_value(text: str) -> Iterator[Any]:
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return
    if list(table) == ["value"]:
        yield _jsonable(table["value"])


def _none_word(value: Any) -> bool:
    return isinstance(value, str) and value.lower() == "none"


def _jsonable(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return to_jsonable_python(value, fallback=str)


def _unknown_key(item: _Given, fields: Mapping[str, FieldInfo]) -> Problem:
    tail = item.path.rsplit(".", 1)[-1]
    problem = unknown("key", item.path, fields, where=item.source)
    if nearest(item.path, fields) is None:
        near = nearest(tail, [path.rsplit(".", 1)[-1] for path in fields])
        full = [path for path in fields if near is not None and path.rsplit(".", 1)[-1] == near]
        if full:
            return Problem(problem.where, problem.what, f"did you mean {full[0]!r}?")
    return problem


def _checked(field: FieldInfo, item: _Given) -> tuple[Any] | Problem:
    """The first reading that the field takes, as a JSON value; else what is wrong with it."""
    annotation: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False))
    for reading in item.readings:
        try:
            adapter.validate_json(json.dumps(reading), strict=True)
        except ValidationError:
            continue
        return (reading,)
    choice = _choice_of(field)
    choices = [name for name in get_args(field.annotation) if isinstance(name, str)]
    choices += choice.names() if choice is not None else ()
    near = nearest(str(item.written), choices)
    hint = f"did you mean {near!r}?" if near else f"from {item.source}" if item.source != f"--{item.path}" else ""
    return Problem(item.path, f"got {item.written!r}, expected {_expected(field)}", hint)


def _contradictions(error: ValidationError) -> Iterator[Problem]:
    for row in error.errors():
        where = ".".join(map(str, row["loc"])) or "config"
        message = "is required" if row["type"] == "missing" else str(row["msg"]).removeprefix("Value error, ")
        yield Problem(where, message)


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *tables, name = path.split(".")
    for table in tables:
        values = values.setdefault(table, {})
    values[name] = value


def _holds(values: Mapping[str, Any], path: str) -> bool:
    *tables, name = path.split(".")
    for table in tables:
        values = values.get(table, {})
    return name in values


# ---------------------------------------------------------------------- TOML


def _toml(value: Any) -> str:
    if value is None or value is PydanticUndefined:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)


def _write_table(values: Mapping[str, Any], cls: type[BaseModel], prefix: str, lines: list[str]) -> None:
    inner = {name: _nested(field.annotation) for name, field in cls.model_fields.items()}
    lines += [f"{name} = {_toml(value)}" for name, value in values.items() if inner.get(name) is None]
    for name, table in inner.items():
        if table is not None:
            lines += ["", f"[{prefix}{name}]"]
            _write_table(values[name], table, f"{prefix}{name}.", lines)
