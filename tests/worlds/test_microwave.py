"""The three-state world: its values against exact fractions and against episodes, its promises, bad input."""

from __future__ import annotations

from fractions import Fraction as F
from random import Random

import numpy as np
import pytest

from evolvent.errors import ConfigError, SessionGone, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.base import SPLITS
from evolvent.worlds.check import check_env
from evolvent.worlds.crafting import words_of
from evolvent.worlds.microwave import PHRASES, STATES, Microwave, advantages, values

WORLD = Microwave(penalty=-0.05)


def from_state(state: str) -> Task:
    return next(task for task in WORLD.tasks("train", "seen") if task.spec["start"] == state)


def test_values_are_the_exact_fractions():
    """By hand: 3 V = sum over phrases, with gamma .9: V(full) = .6 V + 1/3, and so on."""
    exact = {"closed": F(15, 38), "open": F(10, 19), "full": F(5, 6)}
    gamma = F(9, 10)
    assert exact["closed"] == gamma * (exact["open"] + 2 * exact["closed"]) / 3
    assert exact["open"] == gamma * (exact["open"] + exact["full"] + exact["closed"]) / 3
    assert exact["full"] == (2 * gamma * exact["full"] + 1) / 3
    assert values() == pytest.approx({state: float(value) for state, value in exact.items()}, abs=1e-12)
    found = advantages()
    assert found["closed"] == pytest.approx((3 / 38, -3 / 76, -3 / 76), abs=1e-12)
    assert found["open"] == pytest.approx((-0.0526315789, 0.2236842105, -0.1710526316), abs=1e-9)
    assert found["full"] == pytest.approx((-1 / 12, -1 / 12, 1 / 6), abs=1e-12)
    assert values(0.5, dict.fromkeys(STATES, (1, 0, 0)))["full"] == 0.0
    best = {"closed": (1, 0, 0), "open": (0, 1, 0), "full": (0, 0, 1)}
    assert values(0.9, best) == pytest.approx({"closed": 0.81, "open": 0.9, "full": 1.0})
    with pytest.raises(ConfigError):
        values(1.0)


def test_episodes_pay_what_the_values_say():
    """Discounted returns of 4,000 random episodes from each state, within four standard errors of V."""
    rng = Random(0)
    for state, value in values().items():
        returns = []
        for _ in range(4000):
            env = WORLD.make(from_state(state))
            env.reset()
            reward, over, step = 0.0, False, 0
            while not over and step < 300:
                _, reward, over, _, _ = env.step(PHRASES[int(rng.random() * 3)])
                step += 1
            returns.append(0.9 ** (step - 1) * reward)
        assert abs(np.mean(returns) - value) < 4 * np.std(returns) / 4000**0.5


def test_a_walk():
    env = WORLD.make(from_state("closed"))
    seen = [env.reset()[0]]
    for phrase in (
        "put the pan cake in",
        "open the mic ro wave",
        "close the mic ro wave",
        "Open the  mic ro wave",
        "put the pan cake in",
        "put the pan cake in",
        "bake",
    ):
        seen.append(env.step(phrase)[0])
    assert seen[:-1] == ["closed", "closed", "open", "closed", "open", "full", "full"]
    assert seen[-1] == "expected open , put or close"
    assert env.step("bake")[1:] == (-0.05, False, False, {"admissible": PHRASES, "invalid": True})
    assert env.step("close the mic ro wave") == ("done", 1.0, True, False, {"admissible": PHRASES})
    with pytest.raises(SessionGone):
        env.step(PHRASES[0])


def test_promises():
    for split in SPLITS:
        for task in WORLD.tasks(split, "seen"):
            assert check_env(lambda task=task: WORLD.make(task), forkable=True) == []
            env = WORLD.make(task)
            env.reset()
            rewards = [env.step(action)[1] for action in WORLD.expert(task)]
            assert WORLD.score(rewards, {}).success is True and len(rewards) == 3 - STATES.index(task.spec["start"])
    ids = [task.id for split in SPLITS for task in WORLD.tasks(split, "seen")]
    assert len(set(ids)) == 9
    assert set(words_of(" ".join((*PHRASES, *STATES, "done", "expected open , put or close")))) == set(
        WORLD.vocabulary()
    )
    assert all(len(phrase.split()) == 5 for phrase in PHRASES)


def test_bad_input():
    with pytest.raises(ConfigError) as caught:
        WORLD.make(Task("microwave", "1", {"start": "ajar"}))
    assert len(caught.value.problems) == 2
    with pytest.raises(VersionMismatch):
        WORLD.make(Task("microwave", "2", {}))
    with pytest.raises(ConfigError) as caught:
        Microwave(penalty=0.5, horizon=0)
    assert len(caught.value.problems) == 2
    env = WORLD.make(from_state("open"))
    env.reset()
    with pytest.raises(ConfigError, match="snapshot"):
        env.restore(WORLD.make(from_state("full")).snapshot())
