"""The answers of the native dialect as JSON text.

The encoder of the standard library costs more than the step of a fast world. Most of an answer to a step has a known
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
from evolvent.serve.host import StepResult
from evolvent.serve.wire import to_json

__all__ = ["encode_compact", "encode_info_text", "encode_step_text"]

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=to_json)
_MAX_FLOAT = sys.float_info.max
_BOOL_TEXT = {False: "false", True: "true"}


def encode_compact(value: object) -> str:
    """Encodes compact ASCII JSON; numpy values inside become numbers and lists.

    The encoder in C handles the types that it knows, and calls `wire.to_json` for the others only.

    Raises:
        EnvLost: a value of the world is not JSON (a number that is not finite, for example).
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, SampleInvalid):
        pass
    try:
        return _ENCODER.encode(to_json(value))
    except (SampleInvalid, RecursionError) as error:
        raise EnvLost(f"the world's answer is not JSON: {error}") from error


def encode_step_text(result: StepResult) -> str:
    """Encodes the text of `wire.encode_step`. Raises EnvLost as `encode_compact` does."""
    observation, reward, terminated, truncated, info, step = result
    reward_text = (
        repr(reward) if type(reward) is float and -_MAX_FLOAT <= reward <= _MAX_FLOAT else encode_compact(reward)
    )
    return (
        f'{{"observation":{quoted(observation)},"reward":{reward_text},"terminated":{_BOOL_TEXT[terminated]},'
        f'"truncated":{_BOOL_TEXT[truncated]},"info":{encode_info_text(info)},"step":{step}}}'
    )


def encode_info_text(info: Mapping[str, object]) -> str:
    """Encodes the text of an info; the legal actions come first in it. Raises EnvLost as `encode_compact` does."""
    listed = info.get("admissible")
    try:
        text = _encode_texts(listed) if type(listed) is tuple else None
    except TypeError:  # no texts, and not even hashable
        text = None
    if text is None:
        return encode_compact(info)
    if len(info) == 1:
        return f'{{"admissible":{text}}}'
    other_fields = encode_compact({name: value for name, value in info.items() if name != "admissible"})
    return f'{{"admissible":{text},{other_fields[1:]}'


@lru_cache(4096)
def _encode_texts(values: tuple[Any, ...]) -> str | None:
    """Encodes a list of texts as JSON; returns None if another value is among them.

    The same lists of legal actions come again and again: on the way through a world, and whenever a task is sampled
    once more. A tuple of texts equals no tuple of anything else, so the cache is always right.
    """
    return f"[{','.join(map(quoted, values))}]" if all(isinstance(value, str) for value in values) else None
