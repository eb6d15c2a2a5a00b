"""Stop strings: detects whether the newest token of a text completes one, from the text's last tokens alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evolvent.trajectory import Array

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["completes_stop_string"]

_SLACK = 8  # characters, of a tail's first and of a text's last, that read otherwise beside others: "##ing", " n't"
_BROKEN = "\ufffd"


def completes_stop_string(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int] | Array, stops: Sequence[str]) -> bool:
    """Returns whether a text holds a stop string, given that it held none before its newest token.

    The result is that of a search through the whole text, but only a tail is decoded: so many tokens that their
    complete characters, those of the newest token aside, are more than the longest stop string has. Complete
    characters exclude the replacement character: it stands for bytes whose remaining bytes have not come yet or lie
    before the tail, and with byte-level fallback for all of a run of bytes that contains such a byte. A match in
    the tail is confirmed in the whole text, where a byte before the tail may have spoiled it.

    Args:
        tokenizer: decodes.
        ids: `[T]`, the written tokens, at least one.
    """
    reach = size = max(map(len, stops)) + _SLACK
    if any(_BROKEN in stop for stop in stops):  # a tail may begin with what is none in the whole text
        size = len(ids)
    while size < len(ids) - 1:
        tail = _as_list(ids[-1 - size :])
        before = tokenizer.decode(tail[:-1])
        if len(before) - before.count(_BROKEN) >= reach:
            text = tokenizer.decode(tail)
            if not any(stop in text for stop in stops):
                return False
            break
        size *= 2
    full_text = tokenizer.decode(_as_list(ids))
    return any(stop in full_text for stop in stops)


def _as_list(ids: Sequence[int] | NDArray[Any]) -> list[int]:
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
