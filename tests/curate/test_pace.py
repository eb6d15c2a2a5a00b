"""Paces and the masks that they give."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.curate.pace import geometric, linear, pace_mask, root
from evolvent.errors import BatchMismatch, ConfigError, NonFinite

TENTHS = np.arange(1, 11) / 10
SCORES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30)


def test_the_golden_case():
    assert TENTHS[pace_mask(TENTHS, 1)].tolist() == [0.9, 1.0]
    assert [int(pace_mask(TENTHS, epoch).sum()) for epoch in range(1, 6)] == [2, 4, 6, 8, 10]


def test_percentiles_are_interpolated():
    # The 50th percentile of 1, 2, 3, 10 is 2.5: two are kept, not three.
    assert pace_mask([10, 1, 3, 2], 1, 2).tolist() == [True, False, True, False]
    assert pace_mask([1, 1, 1, 0], 1, 4).tolist() == [True, True, True, False]  # equal ones together


@given(SCORES, st.integers(1, 7), st.sampled_from([linear, root, geometric]))
def test_epochs_grow_to_everything_and_keep_the_easy_first(scores, epochs, pace):
    before = np.zeros(len(scores), bool)
    for epoch in range(1, epochs + 1):
        mask = pace_mask(scores, epoch, epochs, pace=pace)
        assert (mask >= before).all()
        assert mask.all() or np.asarray(scores)[mask].min() > np.asarray(scores)[~mask].max()
        assert mask.sum() >= 1
        before = mask
    assert before.all()


def test_paces():
    for pace in (linear, root, geometric):
        assert pace(1.0) == 1.0
        assert pace(0.25) < pace(0.5)
    assert linear(0.3) == 0.3
    assert root(0.25) == 0.5
    assert root(0.0, start=0.2) == pytest.approx(0.2)
    assert geometric(0.5, start=0.01) == pytest.approx(0.1)
    assert pace_mask(TENTHS, 1, 4, pace=root).sum() == 5


def test_bad_input():
    assert pace_mask([], 1).tolist() == []
    for epoch, epochs in ((0, 5), (6, 5), (1, 0)):
        with pytest.raises(ConfigError, match="expected 1 to"):
            pace_mask(TENTHS, epoch, epochs)
    with pytest.raises(ConfigError, match=r"pace: got the ratio 1\.2 at 0\.2, expected 0 to 1"):
        pace_mask(TENTHS, 1, pace=lambda progress: progress + 1)
    for bad in (partial(geometric, start=0.0), partial(root, start=1.5)):
        with pytest.raises(ConfigError, match="expected 0 to 1"):
            pace_mask(TENTHS, 1, pace=bad)
    with pytest.raises(NonFinite, match="sample 2 is nan"):
        pace_mask([0, 1, np.nan], 1)
    with pytest.raises(BatchMismatch):
        pace_mask([[1.0]], 1)
