"""Fault 35: arrays of different lengths, unknown token ids, another tokenizer: refused before the first step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_training import WORDS, small_config, small_parts, small_policy

from evolvent.errors import BatchMismatch, VocabularyMismatch
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import weighted_nll
from evolvent.models.tiny import word_tokenizer
from evolvent.trajectory import Generation


def test_a_generation_of_three_lengths() -> None:
    with pytest.raises(BatchMismatch, match=r"\(3, 2, 3\)"):
        Generation(np.zeros(3, np.int32), np.zeros(2, np.bool_), np.zeros(3, np.float32))


@pytest.mark.parametrize("name", ["ids", "written", "sampled", "logprobs", "step", "span", "weight"])
def test_parts_of_two_lengths_name_the_trajectory(name: str) -> None:
    parts = small_parts(small_policy(), 1)[0]
    with pytest.raises(BatchMismatch, match="arrays of trajectory 't0' differ in length"):
        replace(parts, **{name: getattr(parts, name)[:-1]})


def test_weights_that_are_not_finite_name_the_trajectory() -> None:
    parts = small_parts(small_policy(), 1)[0]
    with pytest.raises(BatchMismatch, match="weight of trajectory 't0' is not finite: got inf"):
        replace(parts, weight=np.where(parts.weight > 0, np.float32(np.inf), parts.weight))


@pytest.mark.parametrize("beyond", [0, 1000, -1000])
def test_an_id_beyond_the_vocabulary_is_refused_before_the_first_step(beyond: int) -> None:
    policy = small_policy()
    known = len(policy.tokenizer)
    wrong = known + beyond
    parts = small_parts(policy, 5)
    ids = parts[3].ids.copy()
    ids[2] = wrong
    parts[3] = replace(parts[3], ids=ids)
    learner = Learner(policy, weighted_nll, small_config(), seed=0)
    with pytest.raises(VocabularyMismatch, match=rf"'t3' has a token id.*got {wrong}, expected 0 to {known - 1}"):
        learner.fit(parts)
    assert learner.updates == 0


def test_a_checkpoint_of_another_tokenizer(tmp_path: Path) -> None:
    policy = small_policy()
    parts = small_parts(policy)
    Learner(policy, weighted_nll, small_config(max_steps=2), seed=0).fit(parts, checkpoint=Checkpointer(tmp_path))
    other = replace(small_policy(), tokenizer=word_tokenizer(list(reversed(WORDS)), context=64))
    learner = Learner(other, weighted_nll, small_config(max_steps=2), seed=0)
    with pytest.raises(VocabularyMismatch, match="another tokenizer"):
        learner.fit(parts, checkpoint=Checkpointer(tmp_path))
