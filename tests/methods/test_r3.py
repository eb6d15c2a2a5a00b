"""R3: what is paid, that nothing given is learned, that without states on the way it is PPO, that it can be stopped."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import evolvent as ev
from evolvent.errors import VocabularyMismatch
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.methods.r3 import R3Config, build_preset, outcome_rewards, r3
from evolvent.rl.critic import critic_objective
from evolvent.rl.objective import ValueLoss
from evolvent.rl.presets import R3 as PUBLISHED
from evolvent.rl.trainer import PolicyTrainer, RLSpec
from evolvent.run import StageKey
from evolvent.trajectory import Branch, Generation, Score, Start, Step, Task, Trajectory
from evolvent.worlds.base import _PlayEnv
from tests.rl.acting import WORDS, Echo, Endless, quick, run_of, small


class Shown(Echo):
    """Echo, with somebody who can do it."""

    def expert(self, task):
        return [task.spec["first"], task.spec["then"]]


class Recite(ev.TextWorld):
    """One action: the three words that are shown. A wrong action of words is an answer, an empty one is none."""

    name, horizon, run_in_thread, reward_range = "recite", 1, False, (0.0, 1.0)

    def specs(self):
        return [{"words": f"{a} {b} {c}"} for a in WORDS for b in WORDS for c in WORDS]

    def play(self, spec):
        said = yield f"say {spec['words']}"
        return float(said == spec["words"])

    def make(self, task):
        return Judged(self, task)

    def expert(self, task):
        return [task.spec["words"]]

    def vocabulary(self):
        return ("say", *WORDS)


class Judged(_PlayEnv):
    def step(self, action):
        return (*super().step(action)[:4], {"answered": "say" not in str(action)})


def tasks(world, count=None):
    return world.tasks("train", "seen")[:count]


def taught(world, count=None):
    return ev.collect_demonstrations([world], tasks(world, count))


def same(first, second):
    weights = [policy.model.state_dict() for policy in (first, second)]
    return all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


# ------------------------------------------------------------------ what is paid


@pytest.mark.parametrize(
    ("success", "ended_by", "info", "paid"),
    [
        (True, "world", {"answered": True}, 1.0),
        (False, "world", {"answered": True}, 0.2),
        (False, "world", {"answered": False}, 0.0),
        (False, "world", {}, 0.2),
        (False, "horizon", {}, 0.0),
        (False, "horizon", {"answered": True}, 0.2),
        (None, "world", {"answered": True}, None),
    ],
)
def test_the_outcome_is_paid_on_the_last_action(success, ended_by, info, paid):
    steps = (Step("o", "a", 5.0), Step("o", "b", 7.0), Step("o", "c", 9.0, info=info))
    unit = None if success is None else float(success)
    one = Trajectory("t", Task("toy", "1", {}), steps, ended_by=ended_by, score=Score(unit, unit, success))
    assert outcome_rewards(one, wrong_reward=0.2) == [0.0, 0.0, paid]
    inside = replace(one, steps=steps[2:], branch=Branch("p", 2, 1))
    assert outcome_rewards(inside, wrong_reward=0.2) == [paid], "alike for all starts"
    assert outcome_rewards(replace(one, steps=()), wrong_reward=0.2) == []


class Cut(Endless):
    """Endless, and solved at its horizon or not."""

    name = "cut"
    reward_range = (0.0, 1.0)

    def play(self, spec):
        yield f"say {spec['first']}"
        while True:
            yield f"say {spec['then']}", 0.25


def test_an_episode_that_the_horizon_cut_is_worth_its_outcome(tmp_path, monkeypatch):
    """And not what its last observation would be worth besides: with gamma 1 such values would grow without end."""
    world, seen = Cut(), []
    whole = PolicyTrainer.update

    def improve(self, told, credit, **more):
        seen.append((told, credit))
        return whole(self, told, credit, **more)

    monkeypatch.setattr(PolicyTrainer, "update", improve)
    config = R3Config(kind="outcome", kl=0.0, gae_lambda=1.0, practice=quick(iterations=3))
    with run_of(tmp_path, world) as run:
        r3(small(world), tasks(world), [], config=config, run=run)
    for told, credit in seen:
        assert all(one.truncated for one in told.episodes)
        paid = np.asarray([outcome_rewards(one, wrong_reward=config.partial)[-1] for one in told.episodes])
        assert np.allclose(credit.returns, paid[told.batch.episode_of_token])


def test_what_the_world_says_of_an_answer_is_kept_with_the_step():
    world = Recite()
    script = ev.Script(lambda world, task: ["red red say" if task.spec["words"] == "red red red" else "blue"])
    chosen = [task for task in tasks(world) if task.spec["words"][:7] == "red red"]
    for one in ev.collect({"recite": world}, [Start(task) for task in chosen], script, engine=None):
        assert one.steps[0].info == {"answered": one.task.spec["words"] != "red red red"}


def test_the_settings_of_the_paper():
    assert build_preset(R3Config()) == PUBLISHED
    own = build_preset(R3Config(practice=quick(critic="separate", temperature=0.7), kl=0.3, clip_range=0.1))
    assert (own.loss.value_loss, own.loss.temperature, own.estimator.kl_coef, own.loss.surrogate.high) == (
        None,
        0.7,
        0.3,
        0.1,
    )
    assert R3Config().practice.ppo_epochs == 2 and R3Config().practice.group_size == 1
    with pytest.raises(ValueError, match=r"practice.prefetch_rollouts"):
        R3Config(practice=quick(prefetch_rollouts=True))


# ------------------------------------------------------------------ what is learned


def seen_from(folder, world, starts, demonstrations, **config):
    """An iteration's look at episodes that begin at these starts, and the practice."""
    setup = RLSpec("r3", quick(**config), PUBLISHED.objective, critic_objective(ValueLoss(clip=0.2)), reference=True)
    with run_of(folder, world) as run, run.train_rl(small(world), setup) as practice:
        next(practice.iterations())
        played = practice.rollout(starts, parents={one.id: one for one in demonstrations})
        return practice.score(played, rewards=partial(outcome_rewards, wrong_reward=0.2)), practice


def test_given_tokens_have_no_weight_no_credit_and_no_gradient(tmp_path):
    """The states that predict what was given have a gradient of exactly 0, in the policy's loss and the value's."""
    world = Recite()
    (demonstration,) = taught(world, 1)
    start = Start(demonstration.task, 0, Branch(demonstration.id, 0, 2))
    seen, practice = seen_from(tmp_path, world, [start], [demonstration])
    (chain,), (one,) = seen.sequences, seen.trajectories
    first = one.steps[0].generations[0]
    given = int(np.flatnonzero(first.sampled)[0])
    prompt = len(practice.policy.dialect.open("", str(demonstration.steps[0].observation)))
    assert given == prompt + 2, "two tokens of the demonstration are read"
    assert seen.batch.position.tolist() == list(range(given, len(chain))), "parts are what was sampled"
    credit = seen.estimate_advantages(PUBLISHED.estimator)
    assert len(credit.advantage) == len(chain) - given
    gradients = []

    def keep(module, inputs, output):
        output.register_hook(lambda gradient: gradients.append(gradient.clone()))

    hook = practice.learner.policy.model.model.norm.register_forward_hook(keep)
    practice.update(seen, replace(credit, advantage=credit.advantage + 0.5))
    hook.remove()
    # The last layer's state at a place is read by the prediction of the next token and by its value alone.
    size = gradients[0].reshape(-1, gradients[0].shape[-1]).abs().sum(-1)
    assert (size[: given - 1] == 0).all()
    assert (size[given - 1 : len(chain) - 1] > 0).all()


def test_without_states_on_the_way_it_is_outcome_ppo_bit_for_bit(tmp_path):
    world = Shown()
    demonstrations, practised = taught(world), quick(iterations=3, ppo_epochs=2)

    def ppo(run):
        reward = partial(outcome_rewards, wrong_reward=0.2)
        setup = RLSpec("outcome", practised, PUBLISHED.objective, critic_objective(ValueLoss(clip=0.2)), reference=True)
        with run.train_rl(small(world), setup) as practice:
            for _ in practice.iterations():
                seen = practice.score(practice.rollout(practice.next_starts(tasks(world))), rewards=reward)
                practice.update(seen, seen.estimate_advantages(PUBLISHED.estimator))
        return practice.policy

    learned = {}
    configs = {"none": R3Config(stages=0, practice=practised), "outcome": R3Config(kind="outcome", practice=practised)}
    configs |= {"whole": R3Config(whole=1.0, practice=practised), "mixed": R3Config(practice=practised)}
    for name, config in configs.items():
        with run_of(tmp_path / name, world) as run:
            # The seed of a stage depends on its settings; what is compared here is the rest.
            run._compute_key = lambda verb, *arguments, **more: StageKey(verb, verb, verb, ())
            learned[name] = r3(small(world), tasks(world), demonstrations, config=config, run=run)
    with run_of(tmp_path / "ppo", world) as run:
        run._compute_key = lambda verb, *arguments, **more: StageKey(verb, verb, verb, ())
        reference = ppo(run)
    assert (
        same(learned["none"], reference) and same(learned["outcome"], reference) and same(learned["whole"], reference)
    )
    assert not same(learned["mixed"], reference)


@pytest.mark.parametrize("kind", ["mixed", "staged", "adaptive"])
def test_beginnings_are_those_of_the_curriculum_and_are_counted(tmp_path, kind):
    world = Shown()
    config = R3Config(kind=kind, stages=3, practice=quick(iterations=4, tasks_per_iteration=8, group_size=2))
    with run_of(tmp_path, world) as run:
        r3(small(world), tasks(world), taught(world), config=config, run=run)
        run.evaluate(small(world), 4)
        found = list(run.store.trajectories())
        rows = [row for row in read(tmp_path / "metrics.jsonl") if row["kind"] == "practise"]
        stages = [row for row in read(tmp_path / "stages.jsonl") if row["verb"] == "practise"]
    by_round = {n: [one for one in found if "practise-" in one.id and f"/{n}/" in one.id] for n in range(1, 5)}
    assert all(len(played) == 16 for played in by_round.values())
    assert all(one.branch is None for one in found if "evaluate" in one.id), "measured from the beginning only"
    inside = {n: np.mean([one.branch is not None for one in played]) for n, played in by_round.items()}
    assert [row["begun_inside"] for row in rows] == [inside[n] for n in range(1, 5)]
    # An action is a word and its end: four tokens, cut at each of three places.
    met = {(one.branch.step, one.branch.token) for one in found if one.branch}
    if kind == "staged":
        assert inside == {1: 1.0, 2: 1.0, 3: 1.0, 4: 0.0}
        assert [{(b.branch.step, b.branch.token) for b in by_round[n]} for n in (1, 2, 3)] == [
            {(1, 1)},
            {(1, 0)},
            {(0, 1)},
        ]
    else:
        assert met == {(1, 1), (1, 0), (0, 1)} and 0.2 < np.mean(list(inside.values())) < 1.0
    if kind == "adaptive":
        groups = {(one.id.rpartition("/")[0], one.branch) for one in found if "practise-" in one.id}
        assert len(groups) == 4 * 8, "the samples of a task are shown the same"
    steps = sum(len(one.steps) for played in by_round.values() for one in played)
    assert rows[-1]["env_steps"] == steps < 4 * 16 * 2, "steps of demonstrations are nobody's"
    again = {one.branch.parent for played in by_round.values() for one in played if one.branch and one.branch.step}
    assert stages[0]["counts"]["replayed"] == len(again), "and played once for each demonstration"


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_demonstrations_of_another_tokenizer_are_refused(tmp_path):
    world, rows = Shown(), (np.asarray([9999] * 3, np.int32), np.ones(3, np.bool_), np.zeros(3, np.float32))
    shown = [
        replace(one, steps=tuple(replace(step, generations=(Generation(*rows),)) for step in one.steps))
        for one in taught(world, 4)
    ]
    with run_of(tmp_path, world) as run, pytest.raises(VocabularyMismatch, match="written with another tokenizer"):
        r3(small(world), tasks(world, 4), shown, config=R3Config(practice=quick()), run=run)


def test_a_curriculum_needs_demonstrations_of_its_tasks(tmp_path):
    world = Shown()
    every = taught(world, 6)
    failed = [replace(one, score=Score(0.0, 0.0, False)) for one in every[:3]]
    with run_of(tmp_path, world) as run:
        for given in ([], failed, every[3:]):
            with pytest.raises(ev.ConfigError, match="add demonstrations of these tasks, or set kind to 'outcome'"):
                r3(small(world), tasks(world, 3), given, config=R3Config(practice=quick(iterations=1)), run=run)
        r3(small(world), tasks(world, 3), [], config=R3Config(kind="outcome", practice=quick(iterations=1)), run=run)


def test_an_adaptive_practice_that_was_stopped_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    world = Recite()
    config = R3Config(kind="adaptive", practice=quick(iterations=6, tasks_per_iteration=12, group_size=2, save_every=2))
    demonstrations = taught(world)

    def learn(folder):
        with run_of(folder, world) as run:
            return r3(small(world), tasks(world), demonstrations, config=config, run=run)

    whole, improve = learn(tmp_path / "whole"), PolicyTrainer.update

    def stops(self, seen, credit, **more):
        if self.iteration == 4:
            raise KeyboardInterrupt
        improve(self, seen, credit, **more)

    monkeypatch.setattr(PolicyTrainer, "update", stops)
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "cut")
    monkeypatch.undo()
    assert same(learn(tmp_path / "cut"), whole), "bit for bit, with the bounds of every task"
    assert same(learn(tmp_path / "cut"), whole), "and when there is nothing left to do"


@pytest.mark.long
def test_after_a_little_imitation_it_learns_the_rest(tmp_path):
    world, demonstrations = Recite(), taught(Recite())
    slow = TrainConfig(lr=7e-4, weight_decay=0.0, warmup_steps=0, final_lr_ratio=1.0, batch_tokens=2048)
    config = R3Config(
        stages=3,
        partial=0.0,
        kl=0.01,
        value_coef=0.5,
        practice=quick(iterations=60, tasks_per_iteration=24, save_every=60),
    )
    with run_of(tmp_path, world, rl_train=slow) as run:
        base = run.fit(small(world), demonstrations, weighted_nll, tokens=2500)
        learned = r3(base, tasks(world), demonstrations, config=config, run=run)
        before, after = (run.evaluate(policy, n, split="train")[0].mean for n, policy in ((0, base), (99, learned)))
    assert after >= before + 0.3
