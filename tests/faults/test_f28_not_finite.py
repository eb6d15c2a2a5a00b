"""Fault 28: NaN or infinity in a loss or gradient: the update is skipped and counted; `patience` in a row stop it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_training import same, train

from evolvent.errors import NonFinite
from evolvent.learn.learner import UpdateMetrics
from evolvent.learn.objectives import Objective, Outputs, weighted_nll
from evolvent.learn.token_sequences import Batch


def failing(at: Callable[[int], bool], amount: float) -> Objective:
    """Imitation whose loss is multiplied by `amount` in some updates, counted from 1."""
    calls = [0]

    def loss(outputs: Outputs, batch: Batch) -> tuple[torch.Tensor, int]:
        calls[0] += 1
        total, count = weighted_nll.loss(outputs, batch)
        return (total * amount if at(calls[0]) else total), count

    return Objective("failing", loss, weighted_nll.count)


@pytest.mark.parametrize("amount", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_update_is_skipped_counted_and_named(amount: float) -> None:
    seen: list[UpdateMetrics] = []
    report, weights = train(None, objective=failing(lambda call: call == 3, amount), on_update=seen.append, max_steps=6)
    assert [m.update for m in seen if m.skipped] == [3] and report.updates == 6
    ((update, trajectories),) = report.skipped
    assert update == 3 and len(trajectories) > 1 and set(trajectories) <= {f"t{i}" for i in range(40)}
    assert seen[2].as_row()["loss"] is None
    assert all(torch.isfinite(weight).all() for weight in weights)


def test_a_skipped_update_leaves_the_weights() -> None:
    nan = float("nan")
    two, _ = train(None, objective=failing(lambda call: False, nan), max_steps=2)
    stopped: list[list[torch.Tensor]] = []
    for calls in ((2,), (2, 3)):
        _, weights = train(None, objective=failing(lambda call, calls=calls: call in calls, nan), max_steps=calls[-1])  # type: ignore[misc]
        stopped.append(weights)
    assert two.updates == 2
    assert all(torch.equal(a, b) for a, b in zip(*stopped, strict=True))


def test_too_many_in_a_row_stop_and_name_the_last_good_checkpoint(tmp_path: Path) -> None:
    bad = failing(lambda call: call in (2, 3, 5, 6, 7, 8), float("nan"))
    seen: list[UpdateMetrics] = []
    message = r"3 consecutive updates were not finite, up to update 7.*trajectories t\d+.*update-000000006"
    with pytest.raises(NonFinite, match=message) as caught:
        train(tmp_path, objective=bad, on_update=seen.append, every=2, max_steps=20, max_nonfinite_steps=3)
    assert len(seen) == 7 and "ower --train.lr" in str(caught.value)
    healed = failing(lambda call: False, float("nan"))
    report, weights = train(tmp_path, objective=healed, max_steps=20, max_nonfinite_steps=3)
    assert report.finished and [update for update, _ in report.skipped] == [2, 3, 5, 6]
    assert all(torch.isfinite(weight).all() for weight in weights)


def test_without_a_fault_nothing_differs() -> None:
    plain = train(None)
    assert same(plain, train(None, objective=failing(lambda call: False, 0.0)))
