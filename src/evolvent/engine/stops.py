"""Stop strings: whether the newest token of a text completes one, read off the text's last tokens alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["completes"]

_SLACK = 8  # characters, of a tail's first and of a text's last, that read otherwise beside others: "##ing", " n't"
_BROKEN = "\ufffd"


def completes(tokenizer: Any, ids: Sequence[int] | NDArray[Any], stops: Sequence[str]) -> bool:
    """Whether a text holds a stop string, given that it held none before its newest token.

    It says what a look through the whole text says, and decodes a tail of it: so many tokens that their whole
    characters, those of the newest token aside, are more than the longest stop string has. Whole characters are not the
    replacement character: that stands for bytes whose others have not come yet, or lie before the tail, and with
    byte-level fallback for all of a run of bytes that has such a one. What a tail holds is looked for in all of the
    text, where a byte before the tail may have spoiled it.

    Args:
        tokenizer: decodes. ids: `[T]`, what was written, at least one token.
    """
    reach = size = max(map(len, stops)) + _SLACK
    if any(_BROKEN in stop for stop in stops):  # a tail may begin with what is none in the whole text
        size = len(ids)
    while size < len(ids) - 1:
        tail = _listed(ids[-1 - size :])
        before = tokenizer.decode(tail[:-1])
        if len(before) - before.count(_BROKEN) >= reach:
            text = tokenizer.decode(tail)
            if not any(stop in text for stop in stops):
                return False
            break
        size *= 2
    whole = tokenizer.decode(_listed(ids))
    return any(stop in whole for stop in stops)


def _listed(ids: Sequence[int] | NDArray[Any]) -> list[int]:
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
