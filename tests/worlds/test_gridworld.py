"""Episodes of the grid world: rewards, limits, answers, forks, texts, and what is refused."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from evolvent.errors import ConfigError, SessionGone, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.crafting import words_of
from evolvent.worlds.grid.levels import LEVELS
from evolvent.worlds.grid.world import GridEnv, GridWorld
from evolvent.worlds.panel import Sizes

SMALL = Sizes(train=30, dev=20, test=20)
WORLD, FULL = GridWorld(penalty=-0.1, sizes=SMALL), GridWorld(text="babyai", sizes=SMALL)
ROOM = ["############", "##....rb..##", "##>.......##", "##..bk..rb##", "############"]
HOUSE = ["##################", "##......##......##", "##>.gk..rl..rb..##", "##....rk##......##", "##################"]


def task(rows: list[str] = ROOM, mission: str = "go to the blue key", **more: object) -> Task:
    return Task("gridworld", "1", {"map": rows, "mission": mission, **more})


def start(rows: list[str] = ROOM, mission: str = "go to the blue key", **more: object) -> GridEnv:
    env = WORLD.make(task(rows, mission, **more))
    env.reset()
    return env


def test_an_episode_as_told() -> None:
    env = WORLD.make(task(HOUSE, "pick up the red ball"))
    first, info = env.reset()
    assert first == "pick up the red ball . see green key ahead 1 , red door locked ahead 3 , red key right 3"
    assert "pick up red key 1" in info["admissible"]
    steps = [
        ("pick up red key 1", 5, "hold red key . see green key left 1 , red door locked left 3"),
        ("toggle and go through red door 1", 6, "hold red key . see red ball ahead 2"),
        ("move forward", 1, "hold red key . see red ball ahead 1"),
        ("turn right", 1, "hold red key . see red ball left 1 , red door open right 1 , green key right 3"),
        ("drop", 1, "see red key ahead 1 , red ball left 1 , red door open right 1 , green key right 3"),
    ]
    moves = 0
    for action, used, told in steps:
        observation, reward, terminated, truncated, info = env.step(action)
        moves += used
        assert (observation, env.moves) == (told, moves)
        assert (reward, terminated, truncated, "invalid" in info) == (0.0, False, False, False)
    observation, reward, terminated, _, _ = env.step("pick up red ball 1")
    assert (observation, reward, terminated) == ("mission fulfilled", pytest.approx(1 - 0.9 * 16 / 45), True)
    with pytest.raises(SessionGone):
        env.step("turn left")


@pytest.mark.parametrize(("before", "moves"), [([], 2), (["move forward"], 2), (["turn left", "turn right"], 4)])
def test_the_reward_counts_every_move_of_a_macro(before: list[str], moves: int) -> None:
    """From (1, 2) looking east to below the key at (2, 3): forward, turn right. The map has 6 x 5 cells."""
    env = start()
    for action in before:
        env.step(action)
    _, reward, terminated, _, _ = env.step("go to blue key 1")
    assert (env.moves, terminated) == (moves, True)
    assert reward == pytest.approx(1 - 0.9 * moves / 30)


def test_scores() -> None:
    assert WORLD.score([0.0, 0.955], {}).success is True
    late = WORLD.score([-0.1, 0.0, 0.1], {})
    assert (late.success, late.unit) == (True, 0.1)
    assert late.raw == pytest.approx(0.0)
    lost = WORLD.score([-0.1, 0.0], {})
    assert (lost.success, lost.unit, lost.raw) == (False, 0.0, -0.1)
    assert WORLD.score([None, 1.0], {}).success is None
    assert WORLD.reward_range == (-0.1, 1.0)


def test_limits_of_actions_and_of_moves() -> None:
    env = start(tries=2)
    assert env.step("nonsense")[4]["invalid"] is True  # takes none of the tries
    assert env.step("turn left")[2] is False
    assert env.step("turn left")[:4] == ("no actions left", 0.0, True, False)
    env = start(tries=1)
    assert env.step("go to blue key 1")[2] is True  # the last may be the one
    env = start(moves=2)
    assert env.step("go to red ball 2")[1:4] == (0.0, False, True)  # three moves, broken off after two
    assert env.moves == 2
    with pytest.raises(SessionGone):
        env.step("turn left")
    assert start(moves=2).step("go to blue key 1")[1:4] == (pytest.approx(0.1), True, False)


def test_strict_missions_end_by_a_mistake() -> None:
    env = start(mission="pick up the blue key", strict=1)
    assert env.step("pick up red ball 1")[:3] == ("mission failed", 0.0, True)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("  GO  to Blue key 1 ", "go to blue key 1"),
        ("go to the blue key", "go to blue key 1"),
        ("pickup blue key 1", "pick up blue key 1"),
        ("pick up a red ball 2", "pick up red ball 2"),
        ("Turn Left", "turn left"),
    ],
)
def test_other_spellings_are_understood(text: str, action: str) -> None:
    one, other = start(mission="go to a ball"), start(mission="go to a ball")
    assert one.step(text) == other.step(action)
    assert "invalid" not in one.reset()[1]


def test_doors_with_and_without_their_state() -> None:
    rows = ["##########", "##......##", "##>.....rc", "##......ro", "##########"]
    short = {
        "toggle and go through red closed door 1": "toggle and go through red door 1",
        "go to red open door 1": "go to red door 2",
        "go to the red open door": "go to red door 2",
    }
    for text, action in short.items():
        one, other = (start(rows, "open the door on your right") for _ in range(2))
        assert one.step(text) == other.step(action)
    full = {"go to red door 1": "go to red closed door 1", "go to red door 2": "go to red open door 1"}
    for text, action in full.items():
        replies = []
        for asked in (text, action):
            env = FULL.make(task(rows, "open the door on your right"))
            env.reset()
            replies.append(env.step(asked))
        assert replies[0] == replies[1]
        assert "invalid" not in replies[0][4]


WALLED = ["########", "##<.rb##", "########"]


@pytest.mark.parametrize(
    ("rows", "hold", "text", "answer"),
    [
        (ROOM, None, "drop", "you hold nothing"),
        (ROOM, "gx", "pick up blue key 1", "you hold something already"),
        (ROOM, None, "go to green ball 1", "you see no such thing"),
        (ROOM, None, "toggle", "that cannot be done here"),
        (HOUSE, None, "toggle and go through red door 1", "the door is locked"),
        (HOUSE, None, "go through red door 1", "that cannot be done here"),
        (WALLED, None, "move forward", "there is no way"),
        (WALLED, None, "go to red ball 1", "you see no such thing"),
        (ROOM, None, "go to red ball 3", "there is no way"),
        (ROOM, None, "pick up", "that cannot be done here"),
        (ROOM, None, "fly", "expected an action such as turn left or go to red ball 1"),
        (ROOM, None, "", "expected an action such as turn left or go to red ball 1"),
    ],
)
def test_what_cannot_be_done_is_answered_with_a_reason(
    rows: list[str], hold: str | None, text: str, answer: str
) -> None:
    env = start(rows, "pick up a ball", **({"hold": hold} if hold else {}))
    observation, reward, terminated, truncated, info = env.step(text)
    assert (observation, reward, terminated, truncated) == (answer, -0.1, False, False)
    assert (info["invalid"], env.moves) == (True, 0)
    assert info["admissible"]
    assert set(words_of(answer)) <= set(WORLD.vocabulary())


@pytest.mark.parametrize(
    ("world", "tier"),
    [(WORLD, "longer"), (WORLD, "evo"), (GridWorld("MiniBossLevel", sizes=SMALL), "seen"), (FULL, "seen")],
)
def test_admissible_actions_are_exactly_those_that_are_accepted(world: GridWorld, tier: str) -> None:
    rng = Random(3)
    everything = {action for found in world.tasks("dev", tier) for action in world.make(found).reset()[1]["admissible"]}
    for found in world.tasks("dev", tier)[:6]:
        env = world.make(found)
        _, info = env.reset()
        for _ in range(4):
            moment, admissible = env.snapshot(), info["admissible"]
            for action in everything | set(admissible):
                reply = env.step(action)
                assert ("invalid" in reply[4]) == (action not in admissible)
                env.restore(moment)
            _, _, terminated, truncated, info = env.step(rng.choice(admissible))
            if terminated or truncated:
                break


def test_forks_keep_what_is_carried_and_how_far_the_mission_is() -> None:
    mission = "pick up the red key, then pick up the red ball"
    env, other = WORLD.make(task(HOUSE, mission)), WORLD.make(task(HOUSE, mission))
    env.reset()
    env.step("pick up red key 1")
    moment = env.snapshot()
    env.step("drop")
    env.restore(moment)
    other.restore(moment)
    for fork in (env, other):
        for action in ("toggle and go through red door 1", "move forward", "turn right", "drop"):
            assert fork.step(action)[1:4] == (0.0, False, False)
        assert fork.step("pick up red ball 1")[1] == pytest.approx(1 - 0.9 * 16 / 90)
    with pytest.raises(ConfigError, match="snapshot"):
        start(HOUSE, "go to the red ball").restore(moment)


def test_the_texts_of_agentgym() -> None:
    env = FULL.make(task(tries=1))
    first, info = env.reset()
    assert str(first).startswith("Your goal: go to the blue key\nIn front of you in this room, you can see")
    assert str(first).endswith('"check available actions"]')
    listed, reward, terminated, _, _ = env.step("check available actions")
    assert str(listed).startswith("You can take the following actions: turn left, turn right, move forward, go to blue")
    assert (reward, terminated, env.moves) == (0.0, False, 0)  # and tries do not hold with these texts
    assert "pickup blue key 1" in info["admissible"]
    done, reward, terminated, _, _ = env.step("go to blue key 1")
    assert terminated and reward > 0 and str(done).endswith("The task is completed.")
    assert start().step("check available actions")[4]["invalid"] is True  # not one of the short ones


@pytest.mark.parametrize(
    "world", [FULL, GridWorld("BossLevel", sizes=SMALL), GridWorld("babyai", text="babyai", sizes=SMALL)]
)
def test_words_of_other_texts_and_levels_are_known(world: GridWorld) -> None:
    known, rng = set(world.vocabulary()), Random(1)
    for found in world.tasks("dev", "seen"):
        env = world.make(found)
        observation, info = env.reset()
        for _ in range(12):
            assert set(words_of(str(observation))) <= known
            assert {word for action in info["admissible"] for word in words_of(action)} <= known
            observation, _, terminated, truncated, info = env.step(rng.choice(info["admissible"]))
            if terminated or truncated:
                break


def test_levels_and_indices() -> None:
    world = GridWorld("babyai", sizes=Sizes(train=80, dev=10, test=10))
    assert (world.name, world.tiers, world.levels) == ("babyai", ("seen",), LEVELS)
    assert len({found.kind for found in world.tasks("train", "seen")} & set(LEVELS)) > 30
    found = world.task_at_index(46)
    assert dict(found.spec) == {"level": "BabyAI-GoToImpUnlock-v0", "seed": 1}
    assert found.split in ("train", "dev", "test")
    one = GridWorld("GoToRedBallNoDists", sizes=Sizes(train=30, dev=20, test=20))
    assert [len(one.tasks(split, "seen")) for split in ("train", "dev", "test")] == [30, 20, 20]
    assert one.make(found).reset() == world.make(found).reset()
    for index, other in ((-1, world), (0, WORLD)):
        with pytest.raises(ConfigError, match="index"):
            other.task_at_index(index)


def test_bad_settings_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        GridWorld("BosLevel", text="long", penalty=1.0, horizon=0)  # type: ignore[arg-type]
    assert [problem.where for problem in caught.value.problems] == ["level", "text", "horizon", "penalty"]
    for penalty in (float("nan"), float("-inf")):
        with pytest.raises(ConfigError, match="penalty"):
            GridWorld(penalty=penalty)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ({}, ", expected a list of rows"),
        ({"map": ROOM}, "mission: got None"),
        ({"map": "rows", "mission": "go"}, "expected a list of rows"),
        ({"map": ROOM, "mission": "dance"}, "invalid mission"),
        ({"map": [], "mission": "go to the key"}, "the rows do not form a rectangle"),
        ({"map": ROOM, "mission": "go to the box"}, "not on the map"),
        ({"map": ROOM, "mission": 3, "tries": 0}, ", expected a whole number of at least 1"),
        ({"map": ROOM, "mission": "go to a key", "colour": 1}, "colour: unknown"),
        ({"map": ROOM, "mission": "go to a key", "inside": [[1, 2]]}, r"expected a list of \[column, row, 'rk'\]"),
        ({"map": ROOM, "mission": "go to a key", "hold": "red"}, "cannot be carried"),
        ({"level": "GoToObjj", "seed": 0}, "did you mean"),
        ({"level": "GoToObj"}, "seed: got None"),
        ({"level": 3, "seed": True, "more": 1}, ", expected the name of a level"),
    ],
)
def test_broken_specs_are_refused(spec: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        WORLD.make(Task("gridworld", "1", spec))


def test_tasks_of_other_worlds_and_versions_are_refused() -> None:
    with pytest.raises(ConfigError, match="the task does not belong to world"):
        WORLD.make(Task("crafting", "1", task().spec))
    with pytest.raises(ConfigError, match="does not belong to world 'babyai'"):
        GridWorld("GoToObj").make(task())
    for call in (WORLD.make, WORLD.key, WORLD.expert):
        with pytest.raises(VersionMismatch):
            call(Task("gridworld", "0", task().spec))
