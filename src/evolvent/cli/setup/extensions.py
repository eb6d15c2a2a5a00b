"""Loads the methods, graders and encoders that other packages add; see `evolvent.plugins`."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from evolvent.errors import ConfigError, Problem, boundary, unknown_name_problem
from evolvent.models.placement import find_device
from evolvent.plugins import installed_plugins, load_plugin, plugin_type_error

if TYPE_CHECKING:
    from evolvent.grade.base import Grader
    from evolvent.memory.encoders import Encoder
    from evolvent.methods.base import Method

__all__ = ["load_encoder", "load_grader", "load_method"]


def load_method(point: EntryPoint) -> Method:
    """Loads the method of an entry point.

    Raises:
        ConfigError: it cannot be loaded or is not a `Method`; the message names it.
    """
    from evolvent.methods.base import Method

    loaded = load_plugin("method", point)
    if not isinstance(loaded, Method):
        raise plugin_type_error("method", point, loaded, "an object of evolvent.methods.base.Method")
    return loaded


def load_grader(name: str) -> Grader:
    """Loads the grader of this name.

    Raises:
        ConfigError: the grader is unknown or cannot be loaded.
    """
    entry_points = installed_plugins("graders")
    if name not in entry_points:
        raise ConfigError([unknown_name_problem("grader", name, entry_points)])
    loaded = load_plugin("grader", entry_points[name])
    if not callable(loaded):
        raise plugin_type_error("grader", entry_points[name], loaded, "a function (response, gold) -> Grade")
    typed_grader: Grader = loaded
    return typed_grader


def load_encoder(name: str, *, device: str | None = None) -> Encoder:
    """Loads the encoder of this name: an installed encoder, or a model of sentence-transformers in a folder.

    Args:
        device: where the model runs; None: sentence-transformers chooses. An installed encoder chooses its own.
    Raises:
        ConfigError: the encoder is unknown or cannot be loaded, or the device is not there or cannot be chosen.
        MissingExtra: sentence-transformers is not installed.
    """
    entry_points = installed_plugins("encoders")
    if name not in entry_points:
        torch_device = None if device is None else str(find_device(device))
        from evolvent.memory.encoders import SentenceEncoder

        return SentenceEncoder(name, device=torch_device)
    if device is not None:
        message = f"the installed encoder {name!r} chooses its device itself; got {device!r}"
        raise ConfigError([Problem("device", message, "leave out --device")])
    encoder_factory = load_plugin("encoder", entry_points[name])
    if not callable(encoder_factory):
        raise plugin_type_error(
            "encoder",
            entry_points[name],
            encoder_factory,
            "a class or function that makes an Encoder without arguments",
        )
    with boundary(ConfigError, f"the installed encoder {name!r} cannot be made", entry=entry_points[name].value):
        loaded: Encoder = encoder_factory()
    if not callable(loaded) or not isinstance(getattr(loaded, "id", None), str):
        raise plugin_type_error("encoder", entry_points[name], loaded, "an Encoder: a callable with an id")
    return loaded
