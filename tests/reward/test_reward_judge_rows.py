"""Where a judge learns: an episode that ended at its first step is judged where the longer ones of its world are."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import evolvent as ev
from evolvent.learn.token_sequences import TokenSequence
from evolvent.models.policy import Policy, tiny_policy
from evolvent.reward.scoring import build_judge_rows
from evolvent.rollout.search import level_of
from evolvent.search.settings import SearchConfig
from evolvent.trajectory import Trajectory
from tests.rl.acting import Echo, run_of


def rows(parts: list[TokenSequence]) -> dict[str, list[int]]:
    """Where each episode is judged."""
    return {part.trajectory: np.flatnonzero(part.weight).tolist() for part in parts}


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> tuple[Policy, list[Trajectory], list[Trajectory]]:
    """A policy, and what it played: cut after one step, and to the end."""
    world = Echo()
    policy = tiny_policy(sorted(world.vocabulary()), context=64, seed=1)
    starts = [ev.Start(task) for task in world.tasks("train", "seen")[:4]]
    with run_of(tmp_path_factory.mktemp("run"), world) as run:
        return policy, run.collect(policy, starts, horizon=1), run.collect(policy, starts[:1])


def test_one_step_of_a_world_of_several_is_a_turn_whatever_is_beside_it(played, caplog):
    (policy, short, long), how = played, SearchConfig()
    assert level_of(Echo(), how) == "turn", "as a search asks"
    assert {len(one.steps) for one in short} == {1} and {len(one.steps) for one in long} == {2}
    beside = rows(build_judge_rows([*short, *long], policy, how))
    apart = rows(build_judge_rows(short, policy, how, horizons={"echo": Echo.horizon}))
    assert apart == {one.id: beside[one.id] for one in short}
    assert all(len(places) == 2 for places in apart.values()), "where it acted, and behind what it saw last"
    assert rows(build_judge_rows(short, policy, how)) != apart, "the episodes alone do not tell"
    with caplog.at_level(logging.WARNING):
        assert build_judge_rows(long, policy, how, horizons={"echo": 1}) == []
    assert "is not a single-turn response" in caplog.text


@pytest.mark.parametrize("level", ["turn", "span"])
def test_a_level_that_is_named_is_taken(played, level):
    (policy, short, _), how = played, SearchConfig(level=level)
    other = rows(build_judge_rows(short, policy, how, horizons={"echo": 1 if level == "turn" else 2}))
    assert other == rows(build_judge_rows(short, policy, how))
