"""Identities of configurations: digests that stay the same when classes and fields are renamed.

A stage of a run is known by what it depends on. `fingerprint` is the digest of a value's canonical JSON, in which
renamed classes and fields keep their former names (`former_names`). `version_1_text` writes a value as version 1
of evolvent did: stage names and seeds still derive from it, so that a seed gives the same numbers as before and runs of
that version resume.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from evolvent.errors import ConfigError
from evolvent.former_names import former_class, former_fields

__all__ = ["canonical", "check_identity", "fingerprint", "version_1_text", "version_1_values"]


def fingerprint(value: object) -> str:
    """Returns a digest of a configuration, a dataclass or plain values, 24 hexadecimal digits.

    >>> fingerprint({"lr": 0.1}) == fingerprint({"lr": 0.1})
    True

    Raises:
        ConfigError: the text of a part, such as a function, is an address in memory.
    """
    text = json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def canonical(value: object) -> object:
    """Returns a value as JSON objects, arrays and scalars under the names of identities.

    Raises:
        ConfigError: see `fingerprint`.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    members = _list_members(value)
    if members is not None:
        return {"type": _class_name(type(value)), "fields": {name: canonical(item) for name, item in members}}
    if isinstance(value, Mapping):
        return {"mapping": sorted(([canonical(key), canonical(item)] for key, item in value.items()), key=json.dumps)}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    if isinstance(value, set | frozenset):
        return {"set": sorted((canonical(item) for item in value), key=json.dumps)}
    check_identity("value", value)
    return {"text": repr(value)}


def version_1_text(value: object) -> str:
    """Returns a value as version 1 wrote it: like Python's `repr`, under the names that classes and fields had then.

    >>> version_1_text((0.5, None, ["a"]))
    "(0.5, None, ['a'])"
    """
    members = _list_members(value)
    if members is not None:
        inner = ", ".join(f"{name}={version_1_text(item)}" for name, item in members)
        return f"{_class_name(type(value))}({inner})"
    if type(value) is tuple:
        inner = ", ".join(map(version_1_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if type(value) is list:
        return f"[{', '.join(map(version_1_text, value))}]"
    if type(value) is dict:
        return "{" + ", ".join(f"{version_1_text(key)}: {version_1_text(item)}" for key, item in value.items()) + "}"
    return repr(value)


def version_1_values(config: BaseModel, *, exclude: Set[str] = frozenset()) -> dict[str, object]:
    """Returns a configuration as JSON values under the names that its settings had in version 1.

    Digests that are stored with checkpoints and prepared data are of these values.

    Args:
        exclude: present names of settings that are left out.
    """
    former = former_fields(type(config))
    values = config.model_dump(mode="json")
    for name in list(values):
        inner = getattr(config, name)
        if isinstance(inner, BaseModel):
            values[name] = version_1_values(inner)
    return {former.get(name, name): value for name, value in values.items() if name not in exclude}


def check_identity(kind: str, value: object) -> None:
    """Refuses a value that cannot be distinguished from another because its text is an address in memory.

    Raises:
        ConfigError: the text holds an address; the message names the kind of value.
    """
    text = version_1_text(value)
    if " at 0x" in text:
        raise ConfigError(
            f"this {kind} has no unique identity",
            value=text,
            expected="a repr that contains all of its fields",
            hint="make it a frozen dataclass",
        )


def _class_name(cls: type) -> str:
    return ".".join(former_class(part) for part in cls.__qualname__.split("."))


def _list_members(value: object) -> list[tuple[str, Any]] | None:
    """Returns the fields of a configuration or dataclass under the names of identities; None for other values."""
    if isinstance(value, type):
        return None
    if isinstance(value, BaseModel) and type(value).__repr__ is BaseModel.__repr__:
        return list(
            _use_former_names(type(value), ((name, item) for name, item in value.__repr_args__() if name is not None))
        )
    if is_dataclass(value) and hasattr(type(value).__repr__, "__wrapped__"):
        pairs = ((field.name, getattr(value, field.name)) for field in fields(value) if field.repr)
        return list(_use_former_names(type(value), pairs))
    return None


def _use_former_names(cls: type, pairs: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    former = former_fields(cls)
    for name, item in pairs:
        yield former.get(name, name), item
