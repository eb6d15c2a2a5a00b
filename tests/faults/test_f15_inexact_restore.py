"""Fault 15: an environment whose restore is not exact is found out before a search trusts it."""

from __future__ import annotations

import pytest

from evolvent.cli.setup.registry import ALL_WORLDS, load_worlds
from evolvent.errors import SessionGone, WorldError
from evolvent.worlds.check import check_env


class Counter:
    """Counts to five; `kind` says which promise it breaks."""

    shared = 0

    def __init__(self, kind: str = "") -> None:
        self.kind, self.n, self.log = kind, -1, []

    def reset(self, *, seed=None, options=None):
        if self.kind != "forgets to reset":
            self.n, self.log = 0, []
        self.n = max(self.n, 0)
        return "zero", {"admissible": ["one", "two"]}

    def step(self, action):
        if self.n >= 5 and self.kind != "goes on":
            raise SessionGone("over")
        self.n += 1
        self.log.append(action)
        Counter.shared += self.kind == "shared"
        reward = float("nan") if self.kind == "nan" else 0.0
        extra = f" of {Counter.shared}" if self.kind == "shared" else ""
        text = f"{self.n} {len(self.log)} {self.log[-1]}{extra}"
        return (3 if self.kind == "number" else text), reward, self.n >= 5, False, {"admissible": ["one", "two"]}

    def snapshot(self):
        return self.n, (self.log if self.kind == "aliased" else tuple(self.log))

    def restore(self, value):
        self.n, log = value
        self.log = log if self.kind == "aliased" else [] if self.kind == "partial" else list(log)

    def close(self):
        pass


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("", []),
        ("partial", ["restore", "restore in another Env"]),
        ("aliased", ["restore"]),
        ("forgets to reset", ["reset"]),
        ("goes on", ["end"]),
    ],
)
def test_each_broken_promise_is_named(kind, where):
    found = [problem.where for problem in check_env(lambda: Counter(kind))]
    assert set(where) <= set(found) and bool(found) == bool(where)


def test_numbers_that_are_none_and_observations_that_are_no_text():
    assert "step" in [problem.where for problem in check_env(lambda: Counter("nan"))]
    assert "text or an array" in str(next(iter(check_env(lambda: Counter("number")))))


def test_state_shared_between_environments_is_found():
    assert {problem.where for problem in check_env(lambda: Counter("shared"))} >= {"reset", "another Env"}


def test_a_search_can_demand_forks():
    class Plain:
        def __init__(self):
            self.env = Counter()

        reset = lambda self, **how: self.env.reset(**how)  # noqa: E731
        step = lambda self, action: self.env.step(action)  # noqa: E731
        close = lambda self: None  # noqa: E731

    assert check_env(Plain) == []
    assert [problem.where for problem in check_env(Plain, forkable=True)] == ["snapshot"]


def test_without_a_list_of_actions_they_must_be_chosen():
    class Silent(Counter):
        def reset(self, **how):
            return super().reset()[0], {}

        def step(self, action):
            return (*super().step(action)[:4], {})

    with pytest.raises(WorldError, match="admissible"):
        check_env(Silent)
    assert check_env(Silent, choose=lambda rng, info: rng.choice(["one", "two"])) == []


@pytest.mark.parametrize("name", ALL_WORLDS)
def test_embedded_worlds_pass(name):
    (world,) = load_worlds([name]).values()
    for tier in world.tiers:
        task = world.tasks("dev", tier)[0]
        assert check_env(lambda task=task: world.make(task), walks=2, forkable=True) == []
