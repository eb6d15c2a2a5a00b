"""The answers of the native dialect as JSON text.

The encoder of the standard library costs more than the step of a quick world. Most of an answer to a step has a known
form, and its longest part is the list of legal actions; those are written here, and everything else by the encoder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from evolvent.errors import EnvLost, SampleInvalid
from evolvent.serve.host import Stepped
from evolvent.serve.wire import plain

__all__ = ["info_text", "json_text", "step_text"]

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=plain)
_MOST = sys.float_info.max
_BOOL = {False: "false", True: "true"}


def json_text(value: object) -> str:
    """Compact ASCII JSON; numpy values inside become numbers and lists.

    The encoder in C handles what it knows by itself, and asks `wire.plain` about the rest only.

    Raises:
        EnvLost: what a world handed out is no JSON (a number that is not finite, say).
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, SampleInvalid):
        pass
    try:
        return _ENCODER.encode(plain(value))
    except (SampleInvalid, RecursionError) as error:
        raise EnvLost("a world's answer that is no JSON", value=str(error)) from error


def step_text(done: Stepped) -> str:
    """The text of `wire.step_row`. Raises EnvLost as `json_text` does."""
    observation, reward, terminated, truncated, info, step = done
    told = repr(reward) if type(reward) is float and -_MOST <= reward <= _MOST else json_text(reward)
    return (
        f'{{"observation":{quoted(observation)},"reward":{told},"terminated":{_BOOL[terminated]},'
        f'"truncated":{_BOOL[truncated]},"info":{info_text(info)},"step":{step}}}'
    )


def info_text(info: Mapping[str, Any]) -> str:
    """The text of an info; the legal actions come first in it. Raises EnvLost as `json_text` does."""
    listed = info.get("admissible")
    try:
        text = _texts(listed) if type(listed) is tuple else None
    except TypeError:  # no texts, and not even hashable
        text = None
    if text is None:
        return json_text(info)
    if len(info) == 1:
        return f'{{"admissible":{text}}}'
    rest = json_text({name: value for name, value in info.items() if name != "admissible"})
    return f'{{"admissible":{text},{rest[1:]}'


@lru_cache(4096)
def _texts(values: tuple[Any, ...]) -> str | None:
    """The JSON of a list of texts; None where something else is among them.

    The same lists of legal actions come again and again: on the way through a world, and whenever a task is sampled
    once more. A tuple of texts equals no tuple of anything else, so that what is remembered is always right.
    """
    return f"[{','.join(map(quoted, values))}]" if all(isinstance(value, str) for value in values) else None
