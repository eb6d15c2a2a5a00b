"""What the asks of a search are counted as."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.engine.asks import Continuation, SampleAsk
from evolvent.search.meter import Meter
from evolvent.search.records import Spent


class Held:
    """A node that knows its tokens."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    @property
    def length(self) -> int:
        return len(self.ids)

    def tokens(self) -> list[int]:
        return list(self.ids)


def test_samples_without_a_token_cost_their_prompt_and_nothing_less():
    """As an endpoint answers where the first token is the stop token. Asked again, all of it is known."""
    meter, ask = Meter(), SampleAsk(None, [1, 2, 3], 5, seeds=(0, 1))
    none = Continuation(Held([1, 2, 3]), np.zeros(0, np.int32), np.zeros(0, np.float32), "stop")
    for computed in (3, 0):
        meter.spent = Spent()
        asked = meter.ask([ask])
        next(asked)
        with pytest.raises(StopIteration):
            asked.send([(none, none)])
        assert meter.spent == Spent(computed=computed)
