"""What other packages add, by entry points: worlds, methods, graders, encoders.

    [project.entry-points."evolvent.worlds"]     NAME = "module:World"      a World, or what makes one without arguments
    [project.entry-points."evolvent.methods"]    NAME = "module:METHOD"     a `methods.base.Method`
    [project.entry-points."evolvent.graders"]    NAME = "module:grade"      a function (response, gold) -> Grade
    [project.entry-points."evolvent.encoders"]   NAME = "module:make"       makes an Encoder without arguments

Names are listed without importing anything; what is broken is named when it is used, and by nobody else's command.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Literal

from evolvent.errors import ConfigError, Problem, boundary, unknown

if TYPE_CHECKING:
    from evolvent.grade.base import Grader
    from evolvent.memory.encoders import Encoder
    from evolvent.methods.base import Method

__all__ = ["Kind", "encoder", "grader", "installed", "method", "origin"]

Kind = Literal["worlds", "methods", "graders", "encoders"]


def installed(kind: Kind, own: Collection[str] = ()) -> dict[str, EntryPoint]:
    """What packages offer of a kind, by name, without those names that are our own; nothing of it is imported."""
    return {point.name: point for point in entry_points(group=f"evolvent.{kind}") if point.name not in own}


def origin(point: EntryPoint) -> str:
    """Where it comes from, for people."""
    return f"package {point.dist.name}" if point.dist else point.value


def method(point: EntryPoint) -> Method:
    """The method of an entry point.

    Raises:
        ConfigError: it cannot be loaded, or is no `Method`; named.
    """
    from evolvent.methods.base import Method

    found = _loaded("method", point)
    if not isinstance(found, Method):
        raise _wrong("method", point, found, "an object of evolvent.methods.base.Method")
    return found


def grader(name: str) -> Grader:
    """The grader of this name.

    Raises:
        ConfigError: no such grader, or one that cannot be loaded.
    """
    known = installed("graders")
    if name not in known:
        raise ConfigError([unknown("grader", name, known)])
    found = _loaded("grader", known[name])
    if not callable(found):
        raise _wrong("grader", known[name], found, "a function (response, gold) -> Grade")
    made: Grader = found
    return made


def encoder(name: str) -> Encoder:
    """The encoder of this name: an installed one, or a model of sentence-transformers in a folder.

    Raises:
        ConfigError: neither, or one that cannot be loaded. MissingExtra: sentence-transformers is not installed.
    """
    known = installed("encoders")
    if name not in known:
        from evolvent.memory.encoders import SentenceEncoder

        return SentenceEncoder(name)
    make = _loaded("encoder", known[name])
    if not callable(make):
        raise _wrong("encoder", known[name], make, "a class or function that makes an Encoder without arguments")
    with boundary(ConfigError, f"the installed encoder {name!r} cannot be made", entry=known[name].value):
        made: Encoder = make()
    if not callable(made) or not isinstance(getattr(made, "id", None), str):
        raise _wrong("encoder", known[name], made, "an Encoder: a callable with an id")
    return made


def _loaded(what: str, point: EntryPoint) -> Any:
    with boundary(ConfigError, f"the installed {what} {point.name!r} cannot be loaded", entry=point.value):
        return point.load()


def _wrong(what: str, point: EntryPoint, found: object, expected: str) -> ConfigError:
    told = f"the installed {what} {point.name!r} ({origin(point)}) is a {type(found).__name__}"
    return ConfigError([Problem(point.name, told, f"expected {expected}")])
