"""An info whose legal actions are listed on reading is, in everything else, the dict that it stands for."""

from __future__ import annotations

import copy
import pickle

import pytest

from evolvent.worlds.deferred import DeferredInfo
from evolvent.worlds.panel import Sizes
from evolvent.worlds.sql.world import SqlWorld
from evolvent.worlds.tools.sheet import Sheet

SIZES = Sizes(train=3, dev=0, test=0)


def test_it_equals_the_dict_that_it_stands_for():
    info = DeferredInfo(lambda: ("a", "b"), {"score": 0.5})
    plain = {"admissible": ("a", "b"), "score": 0.5}
    assert info == plain and plain == info and info == DeferredInfo(lambda: ("a", "b"), {"score": 0.5})
    assert info != DeferredInfo(lambda: ("a",), {"score": 0.5})
    assert list(info) == ["admissible", "score"] and len(info) == 2 and repr(info) == repr(plain)
    assert "score" in info and "admissible" in info and "invalid" not in info
    assert info.get("score") == 0.5 and info.get("invalid") is None
    with pytest.raises(KeyError):
        info["invalid"]
    more = info.with_fields(invalid=True)
    assert {**more} == {**plain, "invalid": True} and "invalid" not in info


def test_copies_are_plain_dicts():
    info = DeferredInfo(lambda: ("a",), {"won": False})
    pickled = pickle.loads(pickle.dumps(info))  # noqa: S301 - made here
    for other in (pickled, copy.deepcopy(info), copy.copy(info)):
        assert type(other) is dict and other == {"admissible": ("a",), "won": False}


@pytest.mark.parametrize("make", [SqlWorld, Sheet])
def test_an_expert_episode_lists_no_actions(make, monkeypatch):
    world = make(sizes=SIZES)
    task = world.tasks("train", "seen")[0]
    env = world.make(task)
    scene = env._scene
    calls = []
    name = "list_queries" if make is SqlWorld else "list_calls"
    monkeypatch.setattr(scene, name, lambda: calls.append(1) or ("x",))
    _, info = env.reset()
    for action in world.expert(task):
        *_, terminated, _, info = env.step(action)
    assert terminated and not info.get("invalid") and calls == []
    assert info["admissible"] == env.reset()[1]["admissible"] == ("x",)
    assert calls == [1], "listed once for all readings"
