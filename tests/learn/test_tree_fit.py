"""Rows with branches are learned by `fit` as the trees that they are, in either layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evolvent.errors import ConfigError
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.loader import LearnableSequences, RankBatcher
from evolvent.learn.objectives import span_labels_objective
from evolvent.learn.parallel.ranks import Mesh
from evolvent.learn.token_sequences import TokenSequence
from evolvent.learn.trees import collate
from evolvent.models.policy import Policy, tiny_policy
from evolvent.reward.process import build_tagged_tree, default_tags
from evolvent.reward.solutions import Solution

WORDS = ["a", "b", "c", "d"]


def policy() -> Policy:
    return tiny_policy(WORDS, context=32, seed=3)


def rows(made: Policy) -> list[TokenSequence]:
    tags = default_tags(made.tokenizer)
    a, b, c, d = (made.tokenizer.encode(word, add_special_tokens=False)[0] for word in WORDS)
    solutions = [Solution((a, b), ((c,), (d, c), (b,)), "one"), Solution((b,), ((d, d), (a, c)), "two")]
    return [build_tagged_tree(solutions[0], (1.0, 0.0, 0.25), tags), build_tagged_tree(solutions[1], (0.5, 1.0), tags)]


@pytest.mark.parametrize("layout", ["bucketed", "packed"])
def test_a_fit_is_an_update_of_trees(layout: str) -> None:
    config = TrainConfig(
        lr=1e-2, max_steps=1, batch_tokens=256, layout=layout, weight_decay=0.0, warmup_steps=0, final_lr_ratio=1.0
    )
    one, other, flat = (Learner(policy(), span_labels_objective(), config, seed=0) for _ in range(3))
    parts = rows(one.policy)
    losses: list[tuple[float, float]] = []
    for learner, data in ((one, parts), (flat, [replace(part, parent=None) for part in parts])):
        learner.fit(data, on_update=lambda metrics: losses.append((metrics.loss, metrics.grad_norm)))
    wanted = other.update([collate(parts, [0, 1])])
    assert losses[0] == pytest.approx((wanted.loss, wanted.grad_norm), rel=1e-5)
    assert losses[1] != pytest.approx((wanted.loss, wanted.grad_norm), rel=1e-3), "as one text it is another loss"


def test_branches_are_part_of_the_data() -> None:
    made = policy()
    parts = rows(made)
    settings = {"together": 1, "vocabulary": made.model.config.vocab_size, "context": 32}
    other = [replace(parts[0], parent=parts[0].parent - (parts[0].parent == 4)), parts[1]]
    assert LearnableSequences(parts, **settings).trees
    assert LearnableSequences(parts, **settings).digest() != LearnableSequences(other, **settings).digest()


def test_pipelines_and_tensors_are_refused() -> None:
    parts = rows(policy())
    with pytest.raises(ConfigError, match="pure data parallelism"):
        RankBatcher(False, 1, 64, Mesh(tp=2), "1f1b", 0).build_batches(parts, [[0], [1]])
