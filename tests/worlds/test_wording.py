"""Tasks told in other words: the same episodes, held-out forms, words that the vocabulary knows."""

from __future__ import annotations

import re

import pytest

from evolvent.cli.setup.registry import ALL_WORLDS, load_worlds
from evolvent.errors import ConfigError, WorldError
from evolvent.trajectory import Task
from evolvent.worlds.base import Forkable
from evolvent.worlds.countdown import Countdown
from evolvent.worlds.goal_templates import WORDINGS
from evolvent.worlds.lookup import Lookup
from evolvent.worlds.panel import Sizes
from evolvent.worlds.sql.world import SqlWorld
from evolvent.worlds.wording import OPENINGS, Worded, Wording

SMALL = Sizes(train=30, dev=20, test=20)
BASE = Lookup(sizes=SMALL)
WORLD = Worded(BASE, WORDINGS["lookup"])


def test_a_goal_in_other_words():
    wording = Wording(r"reach (?P<goal>\d+)", ("get to {goal}",), ("{goal} it is",), ("go for {goal}",))
    assert wording.reword("now reach 24 . ok", opening="please ", form="get to {goal}") == "now please get to 24 . ok"
    with pytest.raises(WorldError, match="sentence"):
        wording.reword("nothing here", opening="", form="get to {goal}")


def test_slots_are_text_and_never_patterns():
    r"""What a world says may hold braces and backslashes: they stay as they are."""
    wording = Wording(r"^find (?P<what>.+)$", ("tell me {what}",), ("say {what}",), ("name {what}",))
    assert wording.reword(r"find {what} \1 {x}", opening="", form="tell me {what}") == r"tell me {what} \1 {x}"


def test_wrong_wordings_are_refused():
    with pytest.raises(ConfigError, match="slots"):
        Wording(r"find (?P<what>.+)", ("tell me {waht}",), ("say {what}",), ("name {what}",))
    with pytest.raises(ConfigError, match="twice"):
        Wording(r"find (?P<what>.+)", ("say {what}",), ("say {what}",), ("name {what}",))
    with pytest.raises(ConfigError, match="1 or more"):
        Worded(BASE, WORDINGS["lookup"], times=0)


def test_every_embedded_world_has_a_wording():
    assert set(ALL_WORLDS) | {"kitchen", "backoffice"} == set(WORDINGS)


@pytest.mark.parametrize("name", WORDINGS)
def test_experts_still_win_and_every_word_is_known(name):
    (base,) = load_worlds([name]).values()
    world = Worded(base, WORDINGS[name])
    known = set(world.vocabulary() or ())
    for tier in world.tiers:
        for split in ("train", "dev", "test"):
            for task in world.tasks(split, tier)[:4]:
                env, plain = world.make(task), base.make(world.original_task(task))
                said, original = env.reset()[0], plain.reset()[0]
                assert said != original
                if base.vocabulary() is not None:
                    assert set(re.findall(r"\w+|[^\w\s]", str(said))) <= known
                replies = [env.step(action) for action in world.expert(task) or ()]
                assert world.score([reply[1] for reply in replies], replies[-1][4]).success


def test_the_question_of_sql_is_told_in_other_words_and_its_hint_stays():
    base = SqlWorld(sizes=SMALL)
    world = Worded(base, WORDINGS["sql"])
    hinted = 0
    for task in (task for tier in world.tiers for task in world.tasks("test", tier)):
        said, plain = (
            str(env.reset()[0]).split("\n") for env in (world.make(task), base.make(world.original_task(task)))
        )
        assert said[:2] == plain[:2]
        assert said[3:] == plain[3:]  # the hint, where there is one
        assert said[2] == f"{task.spec['opening']}Answer this: {plain[2]}"
        hinted += len(plain) > 3
    assert hinted


def test_forms_are_held_out_and_tasks_keep_their_split():
    used: dict[str, set[str]] = {split: set() for split in ("train", "dev", "test")}
    for split, forms in used.items():
        for tier in WORLD.tiers:
            for task in WORLD.tasks(split, tier):
                forms.add(task.spec["form"])
                assert WORLD.original_task(task) in BASE.tasks(split, tier)
                assert (task.kind, task.tier, task.split) == (WORLD.original_task(task).kind, tier, split)
    assert len(used["train"]) == 4
    assert not used["train"] & used["test"] and not used["train"] & used["dev"] and not used["dev"] & used["test"]


def test_each_training_task_is_told_in_different_words():
    tasks = WORLD.tasks("train", "seen")
    assert len(tasks) == 3 * len(BASE.tasks("train", "seen")) == len(set(tasks))
    told = {}
    for task in tasks:
        told.setdefault(WORLD.original_task(task).id, set()).add(task.spec["form"])
    assert {len(forms) for forms in told.values()} == {3}
    assert {task.spec["opening"] for task in tasks} == set(OPENINGS)


def test_snapshots_pass_through():
    task = WORLD.tasks("train", "seen")[0]
    env = WORLD.make(task)
    assert isinstance(env, Forkable)
    env.reset()
    moment, plan = env.snapshot(), WORLD.expert(task) or ()
    first = [env.step(action) for action in plan]
    env.restore(moment)
    assert [env.step(action) for action in plan] == first


def test_foreign_tasks_are_refused():
    own = WORLD.tasks("train", "seen")[0]
    for spec in ({}, {**own.spec, "form": "eval {what}"}, {**own.spec, "opening": "x"}, {**own.spec, "task": 3}):
        with pytest.raises(ConfigError):
            WORLD.make(Task(WORLD.name, WORLD.version, spec))
    with pytest.raises(ConfigError):
        WORLD.make(Countdown(sizes=SMALL).tasks("train", "seen")[0])
