"""The two-label objective: worked by hand, the same from logits and log-probabilities, a sum and a count."""

from __future__ import annotations

from math import log

import pytest
import torch

from evolvent.errors import BatchMismatch
from evolvent.learn import losses
from evolvent.learn.objectives import Outputs, span_labels_objective
from evolvent.learn.token_sequences import Batch


def batch(labels: list[float], weights: list[float]) -> Batch:
    count = len(labels)
    ids, targets = torch.zeros(1, count + 1, dtype=torch.int64), torch.zeros(count, dtype=torch.int64)
    columns = {"label": torch.tensor(labels)}
    return Batch(ids, torch.arange(count), targets, torch.tensor(weights), (0,), count + 1, columns=columns)


def test_worked_by_hand() -> None:
    words = torch.tensor([[log(3.0), 0.0], [0.0, log(3.0)], [5.0, 5.0]])  # p(good) = 3/4, 1/4, 1/2
    soft = [-log(0.75), -(0.5 * log(0.25) + 0.5 * log(0.75)), log(2.0)]
    labels, weights = [1.0, 0.5, 0.3], [1.0, 2.0, 1.0]
    total, count = span_labels_objective().loss(Outputs(teacher=words), batch(labels, weights))
    assert float(total) == pytest.approx(soft[0] + 2 * soft[1] + soft[2], rel=1e-6) and count == 3
    hard, _ = span_labels_objective(soft=False).loss(Outputs(teacher=words), batch(labels, weights))
    assert float(hard) == pytest.approx(-log(0.75) - 2 * log(0.25) + log(2.0), rel=1e-6)
    none, _ = span_labels_objective(soft=False).loss(Outputs(teacher=words[:1]), batch([0.0], [1.0]))
    assert float(none) == pytest.approx(-log(0.25), rel=1e-6)


def test_only_the_difference_counts_and_the_gradient_is_the_error() -> None:
    logits = torch.randn(4, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels, weights = torch.tensor([0.0, 1.0, 0.25, 0.5]), torch.ones(4)
    over_all = losses.two_label_error(logits.log_softmax(-1)[:, [2, 5]], labels, weights)
    bare = losses.two_label_error(logits[:, [2, 5]], labels, weights)
    torch.testing.assert_close(over_all, bare)
    (gradient,) = torch.autograd.grad(bare, logits)
    wanted = torch.zeros(4, 7)
    wanted[:, 2] = torch.sigmoid(logits[:, 2] - logits[:, 5]).detach() - labels
    wanted[:, 5] = -wanted[:, 2]
    torch.testing.assert_close(gradient, wanted)


def test_the_count_is_of_the_batch_and_what_is_missing_is_said() -> None:
    objective = span_labels_objective()
    assert objective.count(batch([0.5, 1.0], [1.0, 3.0])) == 2
    assert (
        objective.needs == ("teacher",)
        and "soft" in repr(objective)
        and repr(objective) != repr(span_labels_objective(soft=False))
    )
    with pytest.raises(BatchMismatch, match="wrong number of label tokens"):
        objective.loss(Outputs(teacher=torch.zeros(1, 3)), batch([0.5], [1.0]))
    with pytest.raises(BatchMismatch, match="label"):
        objective.loss(
            Outputs(teacher=torch.zeros(1, 2)),
            Batch(
                torch.zeros(1, 2, dtype=torch.int64),
                torch.arange(1),
                torch.zeros(1, dtype=torch.int64),
                torch.ones(1),
                (0,),
                2,
            ),
        )
