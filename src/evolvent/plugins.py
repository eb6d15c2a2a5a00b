"""Entry points by which other packages add worlds, methods, losses, searches, graders and encoders.

    [project.entry-points."evolvent.worlds"]     NAME = "module:World"      a World, or a callable that makes one
    [project.entry-points."evolvent.methods"]    NAME = "module:METHOD"     a `methods.base.Method`
    [project.entry-points."evolvent.losses"]     NAME = "module:LOSS"       a `rl.presets.Preset`
    [project.entry-points."evolvent.searches"]   NAME = "module:SEARCH"     a `search.settings.SearchMethod`
    [project.entry-points."evolvent.graders"]    NAME = "module:grade"      a function (response, gold) -> Grade
    [project.entry-points."evolvent.encoders"]   NAME = "module:make"       makes an Encoder without arguments

Names are listed without importing anything. A plugin that cannot be loaded is named when it is used; the others work.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Literal

from evolvent.errors import ConfigError, Problem, boundary

__all__ = ["PluginKind", "describe_origin", "installed_plugins", "load_plugin", "plugin_type_error"]

PluginKind = Literal["worlds", "methods", "losses", "searches", "graders", "encoders"]


def installed_plugins(kind: PluginKind, builtin: Collection[str] = ()) -> dict[str, EntryPoint]:
    """Returns the entry points of a kind by name; names of built-in ones are left out, and nothing is imported."""
    return {point.name: point for point in entry_points(group=f"evolvent.{kind}") if point.name not in builtin}


def describe_origin(point: EntryPoint) -> str:
    """Returns the package that an entry point comes from, for people."""
    return f"package {point.dist.name}" if point.dist else point.value


def load_plugin(kind: str, point: EntryPoint) -> object:
    """Imports the object of an entry point.

    Args:
        kind: the kind of plugin in the singular, for messages.
    Raises:
        ConfigError: it cannot be loaded; the message names the plugin and the reason.
    """
    with boundary(ConfigError, f"the installed {kind} {point.name!r} cannot be loaded", entry=point.value):
        return point.load()


def plugin_type_error(kind: str, point: EntryPoint, loaded: object, expected: str) -> ConfigError:
    """Returns the error for a plugin that is an object of another type than expected."""
    message = f"the installed {kind} {point.name!r} ({describe_origin(point)}) is a {type(loaded).__name__}"
    return ConfigError([Problem(point.name, message, f"expected {expected}")])
