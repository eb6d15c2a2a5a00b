"""Practice: one look tells what the sampler said, values of final observations, going on after a stop, learning."""

import json
from dataclasses import replace
from functools import partial
from threading import Event

import numpy as np
import pytest
import torch
from acting import Echo, Endless, quick, run_of, small, talking, verbs_of

import evolvent as ev
from evolvent.agents.base import recorded_turn
from evolvent.agents.history import Window
from evolvent.errors import ConfigError, NothingToLearn
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import Objective
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.token_sequences import Batch
from evolvent.methods.etpo import ETPOConfig, Networks, etpo, run_backup
from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.methods.ntpo import NTPOConfig
from evolvent.methods.poad import POADConfig as PoadConfig
from evolvent.methods.poad import poad
from evolvent.methods.ppo import TOKEN, PPOConfig, ppo
from evolvent.models.policy import tiny_policy
from evolvent.rl import trainer
from evolvent.rl.advantages import Advantages, decomposed_gae
from evolvent.rl.critic import critic_objective
from evolvent.rl.objective import PolicyGradient, policy_gradient
from evolvent.rl.prefetch import RolloutPrefetcher
from evolvent.rl.presets import GRPO, POAD
from evolvent.rl.rollout_batch import CUT_OFF, TRUNCATED, add_columns
from evolvent.rl.scored_rollout import add_top_k_support, score_sequences
from evolvent.rl.soft_values import mask_impossible
from evolvent.rl.trainer import PolicyTrainer, RLSpec, run_epochs
from evolvent.trajectory import Start, Task


def tasks(world):
    return world.tasks("train", "seen")


def setup_of(preset=POAD, *, valued=True, **config):
    return RLSpec(preset.name, quick(**config), preset.objective, critic_objective() if valued else None)


def looked(folder, world, setup):
    """What a first look at one iteration's episodes gives, and the practice."""
    with run_of(folder, world) as run, run.train_rl(small(world), setup) as practice:
        next(practice.iterations())
        return practice.score(practice.rollout(practice.next_starts(tasks(world)))), practice


@pytest.mark.parametrize(
    "config",
    [{}, {"temperature": 0.6}, {"temperature": 1.4, "top_k": 3}, {"restrict_to_admissible": True, "temperature": 0.8}],
    ids=["plain", "heat", "top-k", "chosen"],
)
def test_the_learner_computes_with_the_distribution_that_was_sampled(tmp_path, config):
    world = Listed() if config.get("restrict_to_admissible") else Echo()
    seen, _ = looked(tmp_path, world, setup_of(GRPO, valued=False, **config))
    assert np.allclose(seen.old, seen.batch.logp, atol=2e-5), "the ratio is 1 before the first update"
    assert seen.batch.logp.std() > 0.05, "and says something"


def test_a_sequence_without_targets_changes_nothing_of_what_is_said_of_the_others(tmp_path):
    """Of top-k too: the tokens that could be drawn are those of each sequence, wherever it stands."""
    seen, practice = looked(tmp_path, Echo(), setup_of(GRPO, valued=False, temperature=1.4, top_k=3))
    plain = [replace(chain, columns={}) for chain in seen.sequences[:4]]
    silent = replace(plain[0], weight=np.zeros(len(plain[0]), np.float32))

    def said(chains):
        drawn = add_top_k_support(practice.policy, chains, top_k=3, temperature=1.4)
        return score_sequences(practice.policy, drawn, temperature=1.4)

    for one, other in zip(said(plain), said([silent, *plain])[1:], strict=True):
        assert np.allclose(one["logprobs"], other["logprobs"], atol=1e-5)


class Listed(Echo):
    """Echo, listing what can be said."""

    def make(self, task):
        env = super().make(task)
        step, reset = env.step, env.reset
        env.reset = lambda **more: (reset(**more)[0], {"admissible": ("red", "green blue", "grey")})
        env.step = lambda action: (*step(action)[:4], {"admissible": ("red", "green blue", "grey")})
        return env


def test_sampled_probabilities_of_a_support_sum_to_one(tmp_path):
    """Over every token that could have been drawn at a place, `exp(logp)` adds up to 1."""
    seen, practice = looked(tmp_path, Listed(), setup_of(GRPO, valued=False, restrict_to_admissible=True))
    from evolvent.learn.forward import support_logprobs, target_logits
    from evolvent.learn.token_sequences import collate_padded

    batch = collate_padded(seen.sequences, [[0]])
    support = batch.columns["support"].long()
    with torch.no_grad():
        logits = target_logits(practice.policy.model, batch).float()
    total = sum(
        torch.where(support[:, k] >= 0, support_logprobs(logits, support[:, k].clamp(min=0), support)[0].exp(), 0.0)
        for k in range(support.shape[1])
    )
    assert torch.allclose(total, torch.ones(len(total)), atol=1e-5)
    assert {int(n) for n in (support >= 0).sum(1)} >= {1, 3}, "one way to end a word, three to begin"


def test_a_truncated_episode_has_the_value_of_its_final_observation(tmp_path):
    world = Endless()
    setup = setup_of()
    seen, practice = looked(tmp_path, world, setup)
    last = np.flatnonzero(seen.batch.ended)
    assert set(seen.batch.ended[last].tolist()) == {TRUNCATED}
    assert (seen.batch.bootstrap[last] == 0).all(), "a new head says 0 everywhere"
    with torch.no_grad():
        practice.policy.value_head.outer.bias.fill_(0.5)
        practice.policy.value_head.outer.weight.normal_(generator=torch.Generator().manual_seed(0))
    again = practice.score(seen.trajectories)
    dialect, trajectory = practice.policy.dialect, again.episodes[0]
    ids = [int(i) for generation in trajectory.generations for i in generation.ids]
    ids += dialect.turn(trajectory.final_observation, stopped=trajectory.steps[-1].generations[-1].stop != "length")
    with torch.no_grad():
        hidden = practice.policy.model.model(torch.tensor([ids])).last_hidden_state[0, -1]
        expected = float(practice.policy.value_head(hidden))
    assert again.batch.bootstrap[last[0]] == pytest.approx(expected, abs=1e-5)
    found = decomposed_gae(again.values, again.batch, gamma=0.9, gae_lambda=0.95)
    assert np.isfinite(found.advantage).all()


def test_an_episode_that_fills_the_context_has_no_next_action(tmp_path):
    world = Endless()
    with run_of(tmp_path, world) as run, run.train_rl(small(world), setup_of()) as practice:
        for _ in practice.iterations():
            played = practice.rollout(practice.next_starts(tasks(world)))
            seen = practice.score(played)
            assert (seen.batch.ended[seen.batch.ended > 0] == TRUNCATED).all()
            long = [
                ev.Trajectory(t.id, t.task, t.steps, "say red " * 20, t.ended_by, t.score, group=t.group)
                for t in played
            ]
            assert (practice.score(long).batch.ended[seen.batch.ended > 0] == CUT_OFF).all()
            break


@pytest.mark.parametrize("config", [{}, {"critic": "separate"}, {"temperature": 1.4, "top_k": 3}], ids=str)
def test_a_history_policy_goes_on_at_a_cut_where_the_context_is_full(tmp_path, config):
    """What the agent would have read next has a value, though it does not fit behind what was read before."""
    world, setup = Endless(), setup_of(**config)
    with run_of(tmp_path, world) as run, run.train_rl(small(world), setup) as practice:
        next(practice.iterations())
        with torch.no_grad():
            practice.value_policy.value_head.outer.bias.fill_(0.5)
            practice.value_policy.value_head.outer.weight.normal_(generator=torch.Generator().manual_seed(0))
        dialect, context, roots = practice.policy.dialect, practice.policy.context, {}

        def shorter(one):
            turns = [recorded_turn(step, dialect, render=str) for step in one.steps]
            roots[one.id] = Window()(dialect, "", turns, one.final_observation, context - 3)
            return roots[one.id]

        played = practice.rollout(practice.next_starts(tasks(world)))
        room = {chain.trajectory: context - len(chain) for chain in practice.score(played).sequences}
        full = [replace(one, final_observation="red " * room[one.id]) for one in played]
        without = practice.score(full)
        practice.truncate_history = shorter
        seen = practice.score(full)
    last = np.flatnonzero(seen.batch.ended)
    assert (without.batch.ended[last] == CUT_OFF).all() and (seen.batch.ended[last] == TRUNCATED).all()
    assert np.allclose(seen.old, without.old, atol=1e-5) and len(seen.sequences) == len(without.sequences)
    assert len(roots) == len(last) and not without.batch.bootstrap.any()
    for one, action in zip(seen.episodes, last.tolist(), strict=True):
        with torch.no_grad():
            hidden = practice.value_policy.model.model(torch.tensor([roots[one.id]])).last_hidden_state[0, -1]
            expected = float(practice.value_policy.value_head(hidden))
        assert seen.batch.bootstrap[action] == pytest.approx(expected, abs=1e-5)


ETPO_PRACTICE = {"ppo_epochs": 4, "critic_lr": 3e-4, "iterations": 40, "save_every": 40}
SEEDS = {"poad": 3}  # the middle of so many: one in twelve learns to say one word of the two
RLOO_PRACTICE = {"iterations": 30, "save_every": 30}
SEPARATE_PRACTICE = {"critic": "separate", "iterations": 40, "save_every": 40}  # eight of eight seeds end above .65
METHODS = {
    "poad": (poad, PoadConfig),
    "poad-separate-critic": (
        poad,
        lambda practice: PoadConfig(practice=practice.model_copy(update=SEPARATE_PRACTICE)),
    ),
    "ntpo": (poad, lambda practice: NTPOConfig(gamma=0.9, practice=practice)),
    "ppo-action": (ppo, PPOConfig),
    "ppo-token": (ppo, lambda practice: PPOConfig(practice=practice, **{**TOKEN, "kl": 0.01})),
    "grpo": (grpo, lambda practice: GRPOConfig(practice=practice, kl=0.01)),
    "rloo": (
        grpo,
        lambda practice: GRPOConfig(
            practice=practice.model_copy(update=RLOO_PRACTICE), kind="rloo", kl=0.02
        ),  # without one in four collapses
    ),
    "gigpo": (grpo, lambda practice: GRPOConfig(practice=practice, kind="gigpo")),
    "etpo": (etpo, lambda practice: ETPOConfig(practice=practice.model_copy(update=ETPO_PRACTICE))),
    "dapo": (grpo, lambda practice: GRPOConfig(practice=practice, kind="dapo", refill=1)),
}


@pytest.fixture(scope="module")
def beginner(tmp_path_factory):
    return talking(tmp_path_factory.mktemp("talking"), Echo())


SHORT = ("ppo-token", "grpo", "poad-separate-critic")  # with a critic on the trunk, without one, with one of its own


@pytest.mark.parametrize("name", [n if n in SHORT else pytest.param(n, marks=pytest.mark.long) for n in METHODS])
def test_every_method_learns_to_say_what_is_shown(tmp_path, beginner, name):
    """Words at random are right in one episode of sixteen."""
    method, config = METHODS[name]
    world = Echo()
    practice = quick(iterations=22, tasks_per_iteration=16, group_size=4, save_every=22, minibatches=2)

    def learned(verbs, seed):
        with ev.Run(tmp_path / f"{verbs.train.layout}-{seed}", verbs, seed=seed, settings=verbs.settings()) as run:
            policy = method(beginner, tasks(world), config=config(practice=practice), run=run)
            (after,) = run.evaluate(policy, 99, split="train")
            return after.mean

    usual = verbs_of(world)
    assert np.median([learned(usual, seed) for seed in range(SEEDS.get(name, 1))]) >= 0.4
    if name in SEEDS:  # the first seed alone, with rows apart
        apart = verbs_of(world, train=usual.train.model_copy(update={"layout": "bucketed"}))
        assert learned(apart, 0) >= 0.4


@pytest.mark.parametrize(("method", "depth"), [("grpo", 1), ("poad", 1), ("grpo", 3)])
def test_playing_ahead_is_so_many_versions_behind_whoever_is_faster(tmp_path, beginner, method, depth):
    """With a critic on the policy's trunk too: what plays has no value head."""
    world = Echo()
    practice = quick(prefetch_rollouts=True, max_policy_lag=depth, iterations=5, measure_every=2)
    call, config = METHODS[method]
    found = []
    for n in range(2):
        with run_of(tmp_path / str(n), world) as run:
            found.append(call(beginner, tasks(world), config=config(practice=practice), run=run))
        rows = [json.loads(line) for line in (tmp_path / str(n) / "metrics.jsonl").read_text().splitlines()]
        lags = [row["lag"] for row in rows if "lag" in row]
        assert lags == [min(n, depth) for n in range(5)], "the first iteration has nothing before it to overlap with"
        assert [row["lag_max"] for row in rows if "lag" in row] == lags
    first, second = (policy.model.state_dict() for policy in found)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", ["poad", "etpo", "ahead", "far ahead", "counting", "warming"])
def test_a_stopped_practice_ends_as_if_it_had_not_been_stopped(tmp_path, monkeypatch, name):
    """Critic, Q, target network and what optimizers count come back too; what was played is not played again.

    While it warms, an optimizer that averages has learned some of the weights and not the others.
    """
    optimizer = OptimizerConfig(name="schedulefreeadamw" if name in ("counting", "warming") else "adamw")
    if optimizer.name != "adamw":
        pytest.importorskip("pytorch_optimizer")
    world, config = Echo(), quick(critic="separate", save_every=2, iterations=5)
    if name == "warming":
        config = config.model_copy(update={"critic": "shared", "critic_warmup": 3})
    config = config.model_copy(update={"prefetch_rollouts": "ahead" in name, "max_policy_lag": 1 + ("far" in name)})
    method, settings = (etpo, ETPOConfig(practice=config)) if name == "etpo" else (poad, PoadConfig(practice=config))
    with run_of(tmp_path / "whole", world, optimizer=optimizer) as run:
        whole = method(small(world), tasks(world), config=settings, run=run)
    improve = PolicyTrainer.update

    def stops(self, seen, credit, **more):
        if self.iteration == 4:
            raise KeyboardInterrupt
        improve(self, seen, credit, **more)

    monkeypatch.setattr(PolicyTrainer, "update", stops)
    with run_of(tmp_path / "cut", world, optimizer=optimizer) as run, pytest.raises(KeyboardInterrupt):
        method(small(world), tasks(world), config=settings, run=run)
    monkeypatch.undo()
    with run_of(tmp_path / "cut", world, optimizer=optimizer) as run:
        resumed = method(small(world), tasks(world), config=settings, run=run)
        again = method(small(world), tasks(world), config=settings, run=run)
    first, second, third = (policy.model.state_dict() for policy in (whole, resumed, again))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.equal(first[name], third[name]) for name in third)
    assert first.keys() - third.keys() == {name for name in first if name.startswith("value_head.")}


def test_a_play_ahead_has_the_horizon_that_was_set_when_it_was_launched(tmp_path):
    """Whenever its turn comes: the thread is held until another horizon is set."""
    world, goes_on, horizons = Echo(), Event(), {}
    setup = RLSpec("horizons", quick(iterations=3, prefetch_rollouts=True, horizon=2), POAD.objective)
    with run_of(tmp_path, world) as run, run.train_rl(small(world), setup) as practice:
        play = practice._play

        def play_and_record(policy, starts, iteration, **more):
            horizons[iteration] = more["horizon"]
            return play(policy, starts, iteration, **more)

        practice._play = play_and_record
        practice._prefetcher._pool.submit(goes_on.wait, 60)
        for number in practice.iterations():
            episodes = practice.rollout(practice.next_starts(tasks(world)))
            assert {len(episode.steps) for episode in episodes} == {horizons[number]}
            practice.horizon = 1
            pending = practice._prefetcher.describe_pending()
            goes_on.set()
    assert horizons == {1: 2, 2: 2, 3: 1} and pending == []


def test_an_older_practice_that_was_one_iteration_ahead_goes_on_so(tmp_path, monkeypatch, caplog):
    """Version 0.1 played one iteration ahead whatever `max_policy_lag` allowed, and stored one copy of weights."""
    world = Echo()
    settings = GRPOConfig(practice=quick(save_every=2, iterations=5, prefetch_rollouts=True, max_policy_lag=3))
    improve, describe = PolicyTrainer.update, RolloutPrefetcher.describe_pending

    def stops(self, seen, credit, **more):
        if self.iteration == 4 and "cut" in str(self._checkpointer.folder):
            raise KeyboardInterrupt
        improve(self, seen, credit, **more)

    def describe_as_before(self):
        return {name: number for row in describe(self) for name, number in row.items() if name != "horizon"}

    monkeypatch.setattr(PolicyTrainer, "update", stops)
    monkeypatch.setattr(RolloutPrefetcher, "describe_pending", describe_as_before)
    one_ahead = partial(RolloutPrefetcher, depth=1)
    monkeypatch.setattr(trainer, "RolloutPrefetcher", lambda policy, play, depth: one_ahead(policy, play))
    with run_of(tmp_path / "whole", world) as run:
        whole = grpo(small(world), tasks(world), config=settings, run=run)
    with run_of(tmp_path / "cut", world) as run, pytest.raises(KeyboardInterrupt):
        grpo(small(world), tasks(world), config=settings, run=run)
    monkeypatch.undo()
    with run_of(tmp_path / "cut", world) as run:
        resumed = grpo(small(world), tasks(world), config=settings, run=run)
        lags = {row["step"]: row["lag_max"] for row in run.metrics("practise") if "lag_max" in row}
    assert lags == {1: 0, 2: 1, 3: 1, 4: 1, 5: 1} and "1 iteration ahead" in caplog.text
    first, second = (policy.model.state_dict() for policy in (whole, resumed))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_first_soft_backup_is_the_reward(tmp_path):
    """One step of backup: where Q is 0 and the policy is rho, only an action's last token has a value: its reward."""
    world, networks = Echo(), Networks(ETPOConfig(beta=0.5, gae_lambda=0.0, token_lambda=0.0))
    objective = Objective("etpo", networks.policy_loss, lambda batch: batch.count, ("logits",))
    setup = RLSpec("etpo", quick(iterations=1), objective, on_start=networks.create)
    with run_of(tmp_path, world) as run, run.train_rl(talking(tmp_path / "talks", world), setup) as practice:
        for _ in practice.iterations():
            seen = practice.score(practice.rollout(practice.next_starts(tasks(world))))
            fitted = {}
            practice.update_network = lambda name, seen, columns, fitted=fitted: fitted.update(columns)
            backup = run_backup(practice, seen, networks)
            networks.update(practice, seen, backup)
            practice.update(backup.rollout, backup.advantages)
    assert seen.batch.reward.sum() > 0 and np.allclose(fitted["returns"], seen.batch.reward, atol=1e-5)
    assert practice.metrics["loss"] < 1e-4, "the policy is already where Q would have it"


def test_an_update_beyond_its_limit_is_not_taken_and_ends_the_passes(tmp_path):
    world = Echo()
    objective = policy_gradient(PolicyGradient(target_kl=1e-9), name="careful")
    setup = RLSpec("careful", quick(ppo_epochs=5, minibatches=2, iterations=1), objective)
    with run_of(tmp_path, world) as run, run.train_rl(small(world), setup) as practice:
        for _ in practice.iterations():
            seen = practice.score(practice.rollout(practice.next_starts(tasks(world))))
            noise = np.random.default_rng(0).normal(size=seen.batch.num_tokens)
            practice.update(seen, Advantages(noise, noise))
        assert practice.learner.updates == 1, "the first update has ratio 1; the second would go on from another policy"
        steps = {int(state["step"]) for state in practice.learner.optimizer.state.values()}
        assert steps == {1}


def test_nothing_to_learn_is_said_after_a_while(tmp_path):
    world = Endless()
    config = GRPOConfig(practice=quick(iterations=30, tasks_per_iteration=2, group_size=2))
    with run_of(tmp_path, world) as run, pytest.raises(NothingToLearn, match=r"in 40 of 40 groups all .* the same"):
        grpo(small(world), tasks(world), config=config, run=run)


def test_the_critic_may_learn_alone_first(tmp_path):
    world = Endless()
    setup = setup_of(critic_warmup=4)
    with run_of(tmp_path, world) as run, run.train_rl(small(world), setup) as practice:
        for _ in practice.iterations():
            seen = practice.score(practice.rollout(practice.next_starts(tasks(world))))
            practice.update(seen, seen.estimate_advantages(POAD.estimator))
            rows = practice.metrics
            assert "critic_loss" in rows and "loss" not in rows, "the policy's loss is not looked at"
        said = practice.policy.model.state_dict()
        assert all(
            torch.equal(weight, said[name]) for name, weight in practice.initial_policy.model.state_dict().items()
        )
        assert all(weight.requires_grad for weight in practice.policy.model.parameters())
    assert seen.values.mean() > 0.01, "every step pays 1"


def test_a_finished_practice_is_the_same_policy_to_what_comes_after_it(tmp_path):
    """Its critic's head is part of it, on the model or beside it: a measurement is not done again."""
    world, config = Echo(), PoadConfig(practice=quick(iterations=2))
    for _ in range(2):
        with run_of(tmp_path, world) as run:
            run.evaluate(poad(small(world), tasks(world), config=config, run=run))
    stages = [json.loads(line) for line in (tmp_path / "stages.jsonl").read_text().splitlines()]
    assert [row["verb"] for row in stages].count("evaluate") == 1
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len({(row["round"], row["arm"], row["tier"]) for row in lines}) == len(lines)


def test_how_an_update_is_cut_does_not_change_what_is_in_it(tmp_path, beginner):
    world, found = Echo(), []
    setup = setup_of(GRPO, valued=False, iterations=1)
    with run_of(tmp_path, world) as run, run.train_rl(beginner, setup) as practice:
        next(practice.iterations())
        seen = practice.score(practice.rollout(practice.next_starts(tasks(world))))
        noise = np.random.default_rng(0).normal(size=seen.batch.num_tokens)
        columns = {"old": seen.old, "behaviour": seen.batch.logp, "advantages": noise, "reference": seen.old}
        chains = add_columns(seen.sequences, seen.batch, columns)
    for most in (2048, 48):
        config = TrainConfig(lr=1e-3, weight_decay=0.0, warmup_steps=0, batch_tokens=most)
        learner = Learner(beginner.clone(), GRPO.objective, config, seed=0)
        tally = run_epochs(learner, chains, num_epochs=2, minibatches=2, rng=np.random.default_rng(3))
        assert tally.updates == 4
        found.append(torch.cat([weight.detach().flatten() for weight in learner.policy.model.parameters()]))
    before = torch.cat([weight.detach().flatten() for weight in beginner.model.parameters()])
    moved = float((found[0] - before).norm())
    assert float((found[0] - found[1]).norm()) < 0.02 * moved, "Adam turns rounding into steps here and there"


def test_soft_values_are_of_what_could_be_drawn():
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.1, 0.2]])
    batch = Batch(*[torch.zeros(0)] * 4, (0,), 0, columns={"support": torch.tensor([[2, 0, -1], [-1, -1, -1]])})
    kept = mask_impossible(logits, batch).log_softmax(-1).exp()
    assert torch.allclose(
        kept[0], torch.tensor([1.0, 0.0, 3.0]).sub(3).exp() * torch.tensor([1.0, 0, 1]) / (1 + np.exp(-2))
    )
    assert torch.allclose(kept[1], logits[1].softmax(-1)), "after a final observation nothing was drawn"


@pytest.mark.parametrize("wrong", [{"max_policy_lag": 0}, {"top_k": 4}])
def test_what_does_not_go_with_playing_ahead(wrong):
    with pytest.raises(ValueError, match="prefetch_rollouts"):
        quick(prefetch_rollouts=True, **wrong)


def test_a_first_policy_is_left_as_it_was(tmp_path):
    world = Echo()
    policy = small(world)
    before = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    with run_of(tmp_path, world) as run:
        learned = grpo(policy, tasks(world), config=GRPOConfig(practice=quick(), kl=0.1), run=run)
    assert all(torch.equal(before[name], weight) for name, weight in policy.model.state_dict().items())
    assert learned.version == policy.version + 4


def test_an_adapter_practises_on_one_base(tmp_path, beginner):
    """Policy, reference and critic share the weights below the adapter, which stay; a finished practice comes back."""
    from evolvent.models.adapters import AdapterConfig, adapt

    world = Echo()
    tuned = adapt(beginner, AdapterConfig(kind="lora", rank=4), seed=0)
    config = PPOConfig(practice=quick(iterations=2, critic="separate"), **{**TOKEN, "kl": 0.01})
    frozen = {name: weight for name, weight in tuned.model.named_parameters() if "lora" not in name}
    before = {name: weight.clone() for name, weight in frozen.items()}
    with run_of(tmp_path, world) as run:
        learned = ppo(tuned, tasks(world), config=config, run=run)
    own = dict(learned.model.named_parameters())
    assert all(own[name].data_ptr() == weight.data_ptr() for name, weight in frozen.items())
    assert all(torch.equal(before[name], weight) for name, weight in frozen.items())
    assert any("lora_B" in name and weight.abs().sum() > 0 for name, weight in own.items())
    with run_of(tmp_path, world) as run:
        again = dict(ppo(tuned, tasks(world), config=config, run=run).model.named_parameters())
    assert all(torch.equal(weight, again[name]) for name, weight in own.items() if "lora" in name)


def test_other_tasks_than_those_that_are_played_ahead_are_refused():
    """Their episodes would be played twice, and a copy of weights would change under a game."""
    task, other = (Start(Task("lock", "1", {"n": number}, "k")) for number in range(2))
    prefetcher = RolloutPrefetcher(tiny_policy(["go"]), lambda policy, starts, iteration, *, horizon: [])
    try:
        prefetcher.launch(tiny_policy(["go"]), [task], 1, horizon=None)
        with pytest.raises(ConfigError, match="needs the same tasks in every iteration"):
            prefetcher.take([other], 1)
        assert prefetcher.take([task], 1) == [] and prefetcher.take([task], 2) is None
    finally:
        prefetcher.close()
