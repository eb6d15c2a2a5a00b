"""Identities of configurations: digests that stay the same when classes and fields are renamed; and of code.

A stage of a run is known by what it depends on. `fingerprint` is the digest of a value's canonical JSON, in which
renamed classes and fields keep their former names (`former_names`). `version_1_text` writes a value as version 1
of evolvent did: stage names and seeds still derive from it, so that a seed gives the same numbers as before and runs of
that version resume.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from pydantic import BaseModel

from evolvent.errors import ConfigError
from evolvent.former_names import former_class, former_fields, former_values, later_fields

_MAX_TEXT = 10_000  # characters of a value's text that a digest of code covers
__all__ = [
    "canonical",
    "check_identity",
    "code_fingerprint",
    "fingerprint",
    "user_code_fingerprint",
    "version_1_text",
    "version_1_values",
]


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

    Digests that are stored with checkpoints and prepared data are of these values. Settings that are not in the repr
    change no result and are left out.

    Args:
        exclude: present names of settings that are left out.
    """
    former = former_fields(type(config))
    values = config.model_dump(mode="json")
    for name, names in former_values(type(config)).items():
        values[name] = names.get(values[name], values[name])
    for name in list(values):
        inner = getattr(config, name)
        if isinstance(inner, BaseModel):
            values[name] = version_1_values(inner)
    later = later_fields(type(config))
    left_out = {name for name, value in later.items() if getattr(config, name) == value}
    left_out |= {name for name, field in type(config).model_fields.items() if not field.repr}
    return {former.get(name, name): value for name, value in values.items() if name not in exclude | left_out}


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
    former, values, later = former_fields(cls), former_values(cls), later_fields(cls)
    for name, item in pairs:
        if name in later and item == later[name]:
            continue
        yield former.get(name, name), values[name].get(item, item) if name in values else item


# ---------------------------------------------------------------------- code


def code_fingerprint(*functions: object) -> str:
    """Returns a digest of the source of functions: their own, and that of the user's code which they refer to.

    It covers the functions, classes and plain constants that the source names, defaults, closures, bound values and
    the files of imported modules, unless they belong to Python or to an installed package. A function without a
    source file counts by its byte code.

    >>> code_fingerprint(partial(int, base=2)) == code_fingerprint(partial(int, base=8))
    False
    """
    reader = _CodeReader()
    for function in functions:
        reader.add(function)
    return fingerprint(reader.parts)


def user_code_fingerprint(value: object) -> str | None:
    """Returns a digest of the user's code that an object runs: its class and settings, or functions and objects of the
    user's that it holds; None where all of its code belongs to installed packages.

    >>> user_code_fingerprint(partial(int, base=2)) is None
    True
    """
    if not _is_user_code(value):
        members = [
            item
            for member in _state_of(value).values()
            for item in (member if isinstance(member, list | tuple) else [member])
        ]
        held = [item for item in members if _is_user_code(item)]
        return code_fingerprint(*held) if held else None
    return code_fingerprint(value)


def _is_user_code(value: object) -> bool:
    """Returns whether a function, a class or the class of an object belongs to the user's own modules."""
    if isinstance(value, partial):
        return _is_user_code(value.func)
    if isinstance(value, MethodType):
        return _is_user_code(value.__func__)
    if not isinstance(value, FunctionType | type):
        value = type(value)
    return any(not _is_installed(owner.__module__) for owner in (value.__mro__ if isinstance(value, type) else [value]))


class _CodeReader:
    """Collects the parts of code that a digest covers, each once."""

    def __init__(self) -> None:
        self.parts: list[list[str]] = []
        self._visited: set[int] = set()

    def add(self, value: object, name: str = "") -> None:
        """Adds a value that code refers to, and what it refers to in turn."""
        if _is_plain(value):
            self.parts.append([name, json.dumps(canonical(value), sort_keys=True)])
            return
        if id(value) in self._visited:
            return
        self._visited.add(id(value))
        if isinstance(value, ModuleType):
            self._add_module(value, name)
        elif isinstance(value, partial):
            self.add(value.func, name)
            self.add([list(value.args), dict(value.keywords)], f"{name} bound")
        elif isinstance(value, MethodType):
            self.add(value.__func__, name)
            self.add(value.__self__, f"{name} self")
        elif isinstance(value, FunctionType):
            self._add_function(value, name)
        elif isinstance(value, type):
            self._add_class(value, name)
        elif isinstance(value, list | tuple):
            for item in value:
                self.add(item, name)
        elif isinstance(value, set | frozenset):
            self._add_set(value, name)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self.add(item, f"{name} {key}")
        elif isinstance(wrapped := getattr(value, "__wrapped__", None), FunctionType):  # functools.cache
            self.parts.append([name, type(value).__name__])
            self.add(wrapped, name)
        elif not isinstance(value, BuiltinFunctionType):
            self._add_instance(value, name)

    def _add_set(self, values: Set[object], name: str) -> None:
        """Adds the items of a set in the order of their digests, because their own differs between processes."""
        digests = list[str]()
        for value in values:
            reader = _CodeReader()
            reader._visited = set(self._visited)
            reader.add(value)
            digests.append(fingerprint(reader.parts))
        self.parts.append([name, *sorted(digests)])

    def _add_module(self, module: ModuleType, name: str) -> None:
        if not _is_installed(module.__name__):
            with suppress(OSError, TypeError):
                self.parts.append([name, inspect.getsource(module)])

    def _add_function(self, function: FunctionType, name: str) -> None:
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self._add_wrapper(function, name)
            self.add(wrapped, name)
            return
        code = function.__code__
        if _is_installed(function.__module__):
            self.parts.append([name, f"{function.__module__}.{function.__qualname__}"])
            self._add_bound_values(function, name)
            return
        source = _source_of(function)
        if not source or function.__name__ == "<lambda>":  # several lambdas may stand in one line
            source += repr((code.co_code.hex(), _constants_of(code)))
        self.parts.append([name, source])
        self._add_references(function, name)

    def _add_wrapper(self, function: FunctionType, name: str) -> None:
        """Adds the function that a decorator put around another one; that has its module's name and its source."""
        if _is_installed(function.__globals__.get("__name__")):
            return
        with suppress(OSError, TypeError):
            self.parts.append([f"{name} wrapper", inspect.cleandoc(f"\n{inspect.getsource(function.__code__)}")])
        self._add_references(function, f"{name} wrapper")

    def _add_references(self, function: FunctionType, name: str) -> None:
        """Adds the values that a function is bound to, and the global ones that its code names."""
        self._add_bound_values(function, name)
        for referred in sorted(_names_of(function.__code__)):
            if referred in function.__globals__:
                self.add(function.__globals__[referred], referred)

    def _add_bound_values(self, function: FunctionType, name: str) -> None:
        """Adds the defaults of a function and the values that it closes over."""
        self.add([*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()], f"{name} defaults")
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                self.add(cell.cell_contents, f"{name} closure")

    def _add_class(self, cls: type, name: str) -> None:
        if _is_installed(cls.__module__):
            self.parts.append([name, f"{cls.__module__}.{cls.__qualname__}"])
            return
        self.parts.append([name, _source_of(cls)])
        for member_name, member in vars(cls).items():
            for attribute in ("fget", "func", "__func__"):  # of a property, a cached property, a static or class method
                member = getattr(member, attribute, member)
            if isinstance(member, FunctionType):
                self.add(member, member.__qualname__)
            elif not member_name.startswith("__") and _is_plain(member):
                self.add(member, f"{cls.__qualname__}.{member_name}")
        for base in cls.__bases__:
            self.add(base, base.__qualname__)

    def _add_instance(self, value: object, name: str) -> None:
        self.add(type(value), name)
        members = _list_members(value)
        state = dict(members) if members is not None else _state_of(value)
        text = repr(value)
        if " at 0x" not in text and len(text) < _MAX_TEXT and not _holds_set(state):
            self.parts.append([name, text])
        if not _is_installed(type(value).__module__) or members is not None:
            self.add(state, f"{name} state")


def _state_of(value: object) -> dict[str, object]:
    """Returns the attributes of an object, without those that are computed from others when they are first used."""
    attributes = getattr(value, "__dict__", {})
    return {
        name: item
        for name, item in attributes.items()
        if not isinstance(getattr(type(value), name, None), cached_property)
    }


def _holds_set(value: object, depth: int = 0) -> bool:
    """Returns whether the text of a value may name the items of a set, in an order that differs between processes."""
    if isinstance(value, set | frozenset):
        return True
    items = list(value.values()) if isinstance(value, Mapping) else value
    return isinstance(items, list | tuple) and depth < 8 and any(_holds_set(item, depth + 1) for item in items)


def _is_plain(value: object, depth: int = 0) -> bool:
    """Returns whether a value is a constant that JSON can write."""
    if value is None or isinstance(value, bool | int | float | str):
        return True
    if depth > 8:
        return False
    if isinstance(value, list | tuple | set | frozenset):
        return all(_is_plain(item, depth + 1) for item in value)
    return isinstance(value, dict) and all(_is_plain(item, depth + 1) for item in (*value.keys(), *value.values()))


def _source_of(value: FunctionType | type) -> str:
    """Returns the source text without its indentation; empty where there is no file."""
    with suppress(OSError, TypeError):
        return inspect.cleandoc(f"\n{inspect.getsource(value)}")
    return ""


def _names_of(code: CodeType) -> set[str]:
    """Returns the global names that code uses, also in the functions inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_of(constant)
    return names


def _constants_of(code: CodeType) -> list[object]:
    return [_constants_of(value) if isinstance(value, CodeType) else _spell_constant(value) for value in code.co_consts]


def _spell_constant(value: object) -> str:
    """Returns a constant as text; the items of a set (`word in {"a", "b"}`) are sorted."""
    return f"frozenset({sorted(map(repr, value))})" if isinstance(value, frozenset) else repr(value)


def _is_installed(module: str | None) -> bool:
    """Returns whether a module belongs to Python, to evolvent or to an installed package."""
    root = (module or "").partition(".")[0]
    if root in sys.stdlib_module_names and root != "__main__":
        return True
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return root == "evolvent" or "site-packages" in file or "dist-packages" in file
