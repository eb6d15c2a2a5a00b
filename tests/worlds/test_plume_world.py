"""The plume world: panels, episodes alone and together, declarations, bad input."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from evolvent.errors import BatchMismatch, ConfigError, SessionGone, WorldError
from evolvent.trajectory import Task
from evolvent.worlds.base import SPLITS, Forkable
from evolvent.worlds.check import check_env
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes
from evolvent.worlds.plume.batch import PlumeBatch
from evolvent.worlds.plume.model import Sensor, concentration
from evolvent.worlds.plume.presets import MOVES, PRESETS, get_preset
from evolvent.worlds.plume.world import PlumeWorld

SMALL = Sizes(train=30, dev=12, test=12)
WORLDS = {name: PlumeWorld(name, sizes=SMALL) for name in PRESETS}
WORLD = WORLDS["plume/25"]
TASKS = WORLD.tasks("test", "seen")


@pytest.fixture(params=list(PRESETS))
def world(request):
    return WORLDS[request.param]


def test_environments_keep_their_promises(world):
    for observe in ("text", "array"):
        shown = PlumeWorld(world.preset, observe=observe, sizes=SMALL)
        for task in shown.tasks("dev", "seen")[:2]:
            assert check_env(lambda shown=shown, task=task: shown.make(task), forkable=True, walks=3) == []
    assert isinstance(world.make(world.tasks("dev", "seen")[0]), Forkable)


def test_splits_do_not_share_a_place(world):
    parts = {split: {world.key(task) for task in world.tasks(split, "seen")} for split in SPLITS}
    assert all(len(parts[split]) == len(world.tasks(split, "seen")) for split in SPLITS)
    assert not parts["train"] & parts["test"] and not parts["train"] & parts["dev"] and not parts["dev"] & parts["test"]


def test_sources_differ_in_all_that_a_preset_draws():
    drawn = np.array([WORLD.source(task).vector() for task in WORLD.tasks("train", "seen")])
    assert (drawn.std(0) > 0).all()
    assert drawn[:, :2].min() >= 5 and drawn[:, :2].max() <= 20
    fixed = WORLDS["plume/agdc"]
    whole = np.array([fixed.source(task).vector() for task in fixed.tasks("train", "seen")])
    assert (whole[:, :2] == whole[:, :2].round()).all() and (np.ptp(whole[:, 2:], axis=0) == 0).all()


def test_priors_know_the_announced_wind_and_not_the_source():
    """Two tasks that differ in the source alone have one prior; the announced wind is off by what the prior says."""
    task = TASKS[0]
    other = Task(task.world, task.version, {**task.spec, "source": [6, 7, 1, 4, 2.2, 0.7, 1.9, 9]}, split=task.split)
    assert WORLD.prior(task) == WORLD.prior(other)
    errors = [
        [task.spec["source"][i] - task.spec["announced"][i - 4] for i in (4, 5)]
        for task in WORLD.tasks("train", "seen")
    ]
    np.testing.assert_allclose(np.std(errors, 0), WORLD.preset.announced_std, rtol=0.4)


def test_published_priors_lean_on_the_truth():
    leaning = WORLDS["plume/agdc"]
    marginals = leaning.prior(leaning.tasks("dev", "seen")[0]).marginals
    assert [(one.a, one.b) for one in marginals[4:]] == [
        (2, 2),
        (pytest.approx(0.9 * math.pi / 4, abs=1e-5), pytest.approx(math.radians(10))),
        (2, 4),
        (8, 10),
    ]


def test_an_episode_alone_is_the_episode_among_others():
    together = WORLD.batch(5)
    together.begin(range(5), TASKS[:5], [7] * 5)
    alone = WORLD.batch(1)
    alone.begin([0], [TASKS[3]], [7])
    for move in (0, 2, 2, 0, 3, 1):
        together.step(np.array([0, 2, 0, move, 2]))
        alone.step(np.array([move]))
        assert together.position[3].tolist() == alone.position[0].tolist()
        assert together.reading[3] == alone.reading[0]


def test_seeds_change_the_noise_and_nothing_else():
    batch = WORLD.batch(3)
    batch.begin(range(3), [TASKS[0]] * 3, [0, 0, 1])
    readings = []
    for _ in range(30):
        batch.step(np.array([0, 0, 0]))
        readings.append(batch.reading.copy())
    found = np.array(readings)
    assert (found[:, 0] == found[:, 1]).all() and (found[:, 0] != found[:, 2]).any()
    assert (batch.source[0] == batch.source[2]).all()


def test_moves_end_at_the_border_and_distances_count_what_was_walked():
    batch = WORLD.batch(1)
    batch.begin([0], TASKS[:1])
    batch.step(np.array([1]))  # south of (0, 0)
    assert batch.position[0].tolist() == [0, 0, 0] and batch.travelled[0] == 0
    batch.step(np.array([2]))
    assert batch.position[0].tolist() == [1, 0, 0] and batch.travelled[0] == 1
    places, inside = batch.candidates()
    assert inside[0].tolist() == [True, False, True, True]
    assert places[0, 0].tolist() == [1, 1, 0]


def test_twelve_moves_and_headings():
    batch = WORLDS["plume/75"].batch(1)
    batch.begin([0], WORLDS["plume/75"].tasks("dev", "seen")[:1])
    batch.step(np.array([MOVES["twelve"].index("north 3")]))
    assert batch.position[0].tolist() == [2, 8, 4]
    headed = WORLDS["plume/agdc"].batch(1)
    headed.begin([0], WORLDS["plume/agdc"].tasks("dev", "seen")[:1])
    headed.step(np.array([math.pi / 6]))
    np.testing.assert_allclose(headed.position[0], [math.cos(math.pi / 6), 0.5, 0])
    with pytest.raises(WorldError, match="not finite"):
        headed.step(np.array([math.nan]))


def test_the_horizon_truncates_and_others_stay():
    batch = WORLD.batch(2)
    batch.begin([0], TASKS[:1])
    for step in range(100):
        over = batch.step(np.array([0, 0]))
        assert over.tolist() == [step == 99, False]
    assert not batch.running.any() and batch.steps.tolist() == [100, 0]
    with pytest.raises(SessionGone):
        batch.step(np.array([0, 0]))
    batch.begin([1], TASKS[1:2])
    assert batch.running.tolist() == [False, True]


def test_snapshots_of_batches():
    batch, other = WORLD.batch(2), WORLD.batch(2)
    batch.begin(range(2), TASKS[:2])
    moment = batch.snapshot()
    batch.step(np.array([0, 2]))
    after = batch.snapshot()
    other.restore(moment)
    other.step(np.array([0, 2]))
    assert (other.reading == after.reading).all() and other.priors == batch.priors
    assert moment.steps.tolist() == [0, 0]
    with pytest.raises(BatchMismatch):
        WORLD.batch(3).restore(moment)


@pytest.mark.parametrize("action", [[4, 0], [-1, 0], [0.5, 0.0], [0]])
def test_wrong_moves_move_nothing(action):
    batch = WORLD.batch(2)
    batch.begin(range(2), TASKS[:2])
    with pytest.raises((WorldError, BatchMismatch)):
        batch.step(np.array(action))
    assert batch.steps.tolist() == [0, 0]


def test_declarations_end_the_episode():
    task = TASKS[0]
    x, y = task.spec["source"][:2]
    for where, right in ((f"{x:.2f} {y + 1.9:.2f}", True), (f"{x:.2f} {y + 2.1:.2f}", False)):
        env = WORLD.make(task)
        env.reset()
        _, reward, terminated, truncated, info = env.step(f"Source at {where}")
        assert (reward, terminated, truncated) == (float(right), True, False)
        assert WORLD.score([0.0, reward], info).success is right
        with pytest.raises(SessionGone):
            env.step("north")
    assert WORLD.expert(task) is None


def test_walking_there_and_saying_here():
    task = TASKS[0]
    env = WORLD.make(task)
    env.reset()
    for _ in range(round(task.spec["source"][0])):
        env.step("east")
    for _ in range(round(task.spec["source"][1])):
        env.step(np.array(0))
    assert env.step("source here")[1] == 1.0


@pytest.mark.parametrize(
    "text", ["", "northwest", "south", "source at 1", "source at nan 2", "north 1", "\x00", "source"]
)
def test_any_text_is_answered(text):
    """Also `south` of the southern border, which is not listed. Nothing moves, no time passes."""
    penal = PlumeWorld(sizes=SMALL, penalty=-0.05)
    env = penal.make(TASKS[0])
    _, info = env.reset()
    observation, reward, terminated, _, after = env.step(text)
    assert (reward, terminated, after["invalid"]) == (-0.05, False, True)
    assert after["position"] == info["position"] and after["reading"] == info["reading"]
    assert 0 < len(words_of(str(observation))) <= 16


def test_all_words_are_known(world):
    known = set(world.vocabulary())
    rng = np.random.default_rng(0)
    for task in world.tasks("dev", "seen")[:3]:
        env = world.make(task)
        text, info = env.reset()
        seen = [text]
        for _ in range(60):
            listed = info["admissible"][:-1]
            text, _, _, _, info = env.step(listed[rng.integers(len(listed))])
            seen.append(text)
        seen.append(env.step("nothing")[0])
        assert {word for text in seen for word in words_of(text)} <= known


def test_observations_and_infos():
    env = PlumeWorld(sizes=SMALL, observe="array").make(TASKS[0])
    observation, info = env.reset()
    assert observation.tolist() == [*info["position"], info["reading"]]
    assert info["announced"] == tuple(TASKS[0].spec["announced"]) and "source" not in info
    assert WORLD.make(TASKS[0]).reset()[0].startswith("wind ")


def test_tasks_of_another_sensor_or_preset_are_refused():
    deaf = PlumeWorld(sensor=Sensor(detect=0.3), sizes=SMALL)
    with pytest.raises(ConfigError, match="another sensor"):
        deaf.make(TASKS[0])
    assert deaf.tasks("test", "seen")[0].id != TASKS[0].id
    with pytest.raises(ConfigError):
        WORLDS["plume/75"].make(TASKS[0])


@pytest.mark.parametrize(
    "change",
    [
        {"source": [1, 2]},
        {"source": [30.0, 5, 0, 5, 2, 0, 2, 10]},
        {"source": None},
        {"announced": ["a", 1]},
        {"source": [5, 5, 0, -5, 2, 0, 2, 10]},
    ],
)
def test_specs_that_are_none(change):
    task = Task(WORLD.name, WORLD.version, {**TASKS[0].spec, **change})
    with pytest.raises(ConfigError):
        WORLD.make(task)


def test_names_are_checked():
    with pytest.raises(ConfigError, match="plume/25"):
        PlumeWorld("plume/26")
    with pytest.raises(ConfigError) as caught:
        PlumeWorld(observe="smell", penalty=1.0, horizon=0)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigError):
        PlumeBatch(get_preset("25"), 0)


def test_a_measured_field_is_played_in():
    flat = PlumeBatch(
        replace(get_preset("25"), sensor=Sensor(noisy=False)), 1, field=lambda at, _: 0.001 * (1 + at[:, 0])
    )
    task = PlumeWorld(sensor=Sensor(noisy=False), sizes=SMALL).tasks("dev", "seen")[0]
    flat.begin([0], [task])
    assert flat.reading[0] == pytest.approx(0.001)
    flat.step(np.array([2]))
    assert flat.reading[0] == pytest.approx(0.002)
    usual = PlumeBatch(flat.preset, 1)
    usual.begin([0], [task])
    assert usual.reading[0] == concentration(usual.position[0], np.array(task.spec["source"]))
