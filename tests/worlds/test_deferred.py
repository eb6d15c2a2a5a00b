"""An info whose legal actions are listed on reading is, in everything else, the dict that it stands for."""

from __future__ import annotations

import copy
import json
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
    assert json.dumps(info) == json.dumps(plain) and {**info} == plain and dict(info) == plain and info | {} == plain
    assert list(info.values()) == list(plain.values()) and list(info.items()) == list(plain.items())
    assert (info != plain) is False and {"x": 1} | info == {"x": 1, **plain}
    more = info.with_fields(invalid=True)
    assert {**more} == {**plain, "invalid": True} and "invalid" not in info


@pytest.mark.parametrize(
    "read",
    [
        lambda info: info["admissible"],
        lambda info: info.get("admissible"),
        lambda info: dict(info)["admissible"],
        lambda info: {**info}["admissible"],
        lambda info: {}.__or__(info)["admissible"],
        lambda info: (info | {})["admissible"],
        lambda info: info.copy()["admissible"],
        lambda info: info.pop("admissible"),
        lambda info: next(iter(info.values())),
        lambda info: next(iter(info.items()))[1],
        lambda info: tuple(json.loads(json.dumps(info))["admissible"]),
        lambda info: info.setdefault("admissible", ()),
        lambda info: info.with_fields(won=True)["admissible"],
    ],
)
def test_every_way_to_read_lists_the_actions(read):
    assert read(DeferredInfo(lambda: ("a", "b"), {"score": 0.5})) == ("a", "b")


def test_fields_can_be_changed_as_those_of_a_dict():
    info = DeferredInfo(lambda: ("a",), {"score": 0.5})
    info["admissible"] = ("b",)
    info["won"] = True
    del info["score"]
    assert info == {"admissible": ("b",), "won": True} and info.popitem() == ("won", True)
    info = DeferredInfo(lambda: ("a",), {})
    info.update(admissible=("c",))
    assert info["admissible"] == ("c",)


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
