"""Loads the methods, graders and encoders that other packages add; see `evolvent.plugins`."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from evolvent.errors import ConfigError, boundary, unknown
from evolvent.plugins import installed_plugins, load_plugin, plugin_type_error

if TYPE_CHECKING:
    from evolvent.grade.base import Grader
    from evolvent.memory.encoders import Encoder
    from evolvent.methods.base import Method

__all__ = ["encoder", "grader", "method"]


def method(point: EntryPoint) -> Method:
    """The method of an entry point.

    Raises:
        ConfigError: it cannot be loaded, or is no `Method`; named.
    """
    from evolvent.methods.base import Method

    found = load_plugin("method", point)
    if not isinstance(found, Method):
        raise plugin_type_error("method", point, found, "an object of evolvent.methods.base.Method")
    return found


def grader(name: str) -> Grader:
    """The grader of this name.

    Raises:
        ConfigError: no such grader, or one that cannot be loaded.
    """
    known = installed_plugins("graders")
    if name not in known:
        raise ConfigError([unknown("grader", name, known)])
    found = load_plugin("grader", known[name])
    if not callable(found):
        raise plugin_type_error("grader", known[name], found, "a function (response, gold) -> Grade")
    made: Grader = found
    return made


def encoder(name: str) -> Encoder:
    """The encoder of this name: an installed one, or a model of sentence-transformers in a folder.

    Raises:
        ConfigError: neither, or one that cannot be loaded. MissingExtra: sentence-transformers is not installed.
    """
    known = installed_plugins("encoders")
    if name not in known:
        from evolvent.memory.encoders import SentenceEncoder

        return SentenceEncoder(name)
    make = load_plugin("encoder", known[name])
    if not callable(make):
        raise plugin_type_error(
            "encoder", known[name], make, "a class or function that makes an Encoder without arguments"
        )
    with boundary(ConfigError, f"the installed encoder {name!r} cannot be made", entry=known[name].value):
        made: Encoder = make()
    if not callable(made) or not isinstance(getattr(made, "id", None), str):
        raise plugin_type_error("encoder", known[name], made, "an Encoder: a callable with an id")
    return made
