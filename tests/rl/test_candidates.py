"""Choosing among listed actions: one distribution in playing and in learning, computed once, and it learns."""

import json

import numpy as np
import pytest
import torch
from acting import Echo, Endless, quick, run_of, small, talking, verbs_of

import evolvent as ev
from evolvent.agents.candidates import CandidateAgent
from evolvent.engine.local import LocalEngine
from evolvent.errors import BatchMismatch, WorldError
from evolvent.learn.forward import compute_outputs
from evolvent.learn.token_sequences import collate_padded, flatten
from evolvent.learn.trees import collate, collate_trees
from evolvent.methods.ppo import PPOConfig, build_objective, ppo
from evolvent.rl.advantages import Advantages
from evolvent.rl.candidates import ChoiceConfig, add_candidates, choice_objective
from evolvent.rl.critic import critic_objective
from evolvent.rl.trainer import RLSpec
from evolvent.rollout.episode import collect

LISTED = ("red", "green", "blue", "grey", "say red blue")


def listing(env):
    step, reset = env.step, env.reset
    env.reset = lambda **more: (reset(**more)[0], {"admissible": LISTED})
    env.step = lambda action: (*step(action)[:4], {"admissible": LISTED})
    return env


class Listed(Echo):
    """Echo, with what can be said."""

    def make(self, task):
        return listing(super().make(task))


class Paying(Endless):
    """Pays 1 a step, with what can be said."""

    def make(self, task):
        return listing(super().make(task))


def by_hand(policy, prefix, temperature):
    """The distribution over the listed actions after a prefix, each computed from its beginning."""
    scores = []
    for action in LISTED:
        ids = policy.dialect.action(action)
        with torch.no_grad():
            logp = policy.model(torch.tensor([[*prefix, *ids]])).logits[0].log_softmax(-1)
        own = sum(float(logp[len(prefix) + at - 1, token]) for at, token in enumerate(ids))
        scores.append(own / len(action.split()) / temperature)
    return torch.tensor(scores, dtype=torch.float64).log_softmax(0)


@pytest.fixture
def played(tmp_path):
    world, policy = Listed(), small(Listed())
    tasks = world.tasks("train", "seen")[:6]
    agent, engine = CandidateAgent(policy, temperature=0.7), LocalEngine(policy, slots=8)
    found = list(collect({world.name: world}, [ev.Start(task) for task in tasks], agent, engine=engine))
    return policy, found, engine


def chains_of(policy, found):
    return flatten(found, policy.dialect, instructions=lambda task: "", context=policy.context, stops=True).sequences


def test_it_samples_from_the_normalised_distribution(played):
    policy, found, _ = played
    for trajectory in found:
        prefix = []
        for step in trajectory.steps:
            (generation,) = step.generations
            prefix += generation.ids[~generation.sampled].tolist()
            logp = by_hand(policy, prefix, 0.7)
            assert float(logp.exp().sum()) == pytest.approx(1.0)
            assert generation.logprobs.sum() == pytest.approx(float(logp[step.info["chosen"]]), abs=1e-5)
            assert LISTED[step.info["chosen"]] == step.action
            prefix += generation.ids[generation.sampled].tolist()


def test_the_learner_scores_branches_as_if_each_was_alone(played):
    policy, found, _ = played
    grown = add_candidates(found, chains_of(policy, found))
    batch = collate_trees(grown, range(len(grown)))
    with torch.no_grad():
        tree = compute_outputs(policy.model, batch).logprobs
    alone = []
    for row, own in enumerate(grown):
        places = np.flatnonzero(own.weight)
        for place in places.tolist():
            path = [place]
            while own.parent[path[-1]] >= 0:
                path.append(int(own.parent[path[-1]]))
            ids = own.ids[path[::-1]]
            with torch.no_grad():
                logp = policy.model(torch.tensor(ids[None].astype(np.int64))).logits[0].log_softmax(-1)
            alone.append(float(logp[-2, int(ids[-1])]))
        assert (batch.sequence == row).sum() == len(places)
    assert torch.allclose(tree, torch.tensor(alone), atol=1e-5)


def test_a_tree_without_branches_is_a_row(played):
    policy, found, _ = played
    chains = chains_of(policy, found)
    plain, tree = collate_padded(chains, [[n] for n in range(len(chains))]), collate_trees(chains, range(len(chains)))
    with torch.no_grad():
        one, other = (compute_outputs(policy.model, batch).logprobs for batch in (plain, tree))
    assert torch.equal(plain.targets, tree.targets) and torch.allclose(one, other, atol=1e-5)
    assert collate(chains, [0]).mask is None


def test_what_candidates_share_is_computed_once(played):
    _, found, engine = played
    prompts = sum(int((~g.sampled).sum()) for t in found for g in t.generations)
    candidates = sum(len(ids) for t in found for step in t.steps for ids in step.info["candidates"])
    assert engine.usage.computed <= prompts + candidates


def test_the_ratio_is_one_before_the_first_update(tmp_path):
    world = Listed()
    config = PPOConfig(level="listed", practice=quick(temperature=0.7))
    setup = RLSpec("twosome", config.practice, build_objective(config), action_level=True)
    with run_of(tmp_path, world) as run, run.train_rl(small(world), setup) as practice:
        next(practice.iterations())
        seen = practice.score(practice.rollout(practice.next_starts(world.tasks("train", "seen"))))
    actions = np.bincount(seen.batch.action, weights=seen.batch.logp), np.bincount(seen.batch.action, weights=seen.old)
    assert np.allclose(*actions, atol=2e-5) and (actions[0] < -0.1).any()


def test_what_is_practised_is_the_choice(tmp_path):
    """The loop of the method itself: actions are chosen, and the first update has ratio 1."""
    world = Listed()
    config = PPOConfig(level="listed", practice=quick(temperature=0.5, iterations=1))
    with run_of(tmp_path, world, action_level=True) as run:
        ppo(small(world), world.tasks("train", "seen"), config=config, run=run)
        steps = [step for one in run.store.trajectories() if "/practise" not in one.id for step in one.steps]
        rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps and all(step.action in LISTED and "candidates" in step.info for step in steps)
    (row,) = [row for row in rows if row["kind"] == "practise" and "kl" in row]
    assert abs(row["kl"]) < 1e-9 and abs(row["mismatch"]) < 1e-9


def test_a_critic_apart_is_fitted_to_what_was_done(tmp_path):
    """Values of a world that pays 2 in all: candidates that were not taken say nothing about them."""
    world = Paying()
    practice = quick(iterations=12, tasks_per_iteration=8, critic="separate", critic_lr=3e-3, ppo_epochs=3)
    values = []
    config = PPOConfig(level="listed", gae_lambda=1.0, gamma=1.0, practice=practice)
    setup = RLSpec("twosome", practice, build_objective(config), critic_objective(), action_level=True)
    with run_of(tmp_path, world) as run, run.train_rl(small(world), setup) as practising:
        for _ in practising.iterations():
            seen = practising.score(practising.rollout(practising.next_starts(world.tasks("train", "seen"))))
            paid = np.ones(seen.batch.num_tokens)
            values.append(seen.values[seen.batch.is_last_in_action].mean())
            practising.update(seen, Advantages(paid, paid))
    assert values[-1] == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize(("level", "fitted"), [("token", "part"), ("action", "action"), ("listed", "action")])
def test_a_decision_has_one_value(tmp_path, level, fitted):
    """The value before a decision alone is fitted, by a critic apart as on a shared trunk."""
    world, asked = Listed(), []
    config = PPOConfig(level=level, practice=quick(iterations=1, tasks_per_iteration=2, critic="separate"))
    with run_of(tmp_path, world, action_level=level == "listed") as run:
        practise = run.train_rl
        run.train_rl = lambda policy, setup, *more: asked.append(setup) or practise(policy, setup, *more)
        ppo(small(world), world.tasks("train", "seen"), config=config, run=run)
    assert dict(asked[0].critic.settings)["level"] == fitted


def test_gradients_do_not_depend_on_micro_batches(tmp_path):
    world = Listed()
    config = PPOConfig(level="listed", practice=quick())
    setup = RLSpec("twosome", config.practice, build_objective(config), action_level=True)
    with run_of(tmp_path, world) as run, run.train_rl(small(world), setup) as practice:
        next(practice.iterations())
        seen = practice.score(practice.rollout(practice.next_starts(world.tasks("train", "seen"))))
        noise = np.random.default_rng(0).normal(size=seen.batch.num_tokens)
        from evolvent.rl.rollout_batch import add_columns

        columns = {"old": seen.old, "advantages": noise, "returns": noise, "old_values": noise}
        grown = add_candidates(seen.trajectories, add_columns(seen.sequences, seen.batch, columns))
        found = []
        for pieces in (1, 2, 7):
            model, chosen = practice.learner, build_objective(config)
            total = sum(chosen.count(collate(grown, part)) for part in np.array_split(np.arange(len(grown)), pieces))
            model.policy.model.zero_grad()
            for part in np.array_split(np.arange(len(grown)), pieces):
                batch = collate(grown, part.tolist())
                loss, _ = chosen.loss(compute_outputs(model.policy.model, batch, needs=chosen.needs), batch)
                (loss / total).backward()
            found.append(torch.cat([w.grad.flatten() for w in model.policy.model.parameters() if w.grad is not None]))
    assert torch.allclose(found[0], found[1], atol=1e-6) and torch.allclose(found[0], found[2], atol=1e-6)


def test_it_learns(tmp_path):
    world = Listed()
    beginner = talking(tmp_path / "talks", world)
    practice = quick(iterations=15, tasks_per_iteration=16, group_size=4, save_every=15, minibatches=2)
    with run_of(tmp_path, world, action_level=True) as run:
        before, learned = (
            run.evaluate(beginner, 0, split="train")[0].mean,
            ppo(beginner, world.tasks("train", "seen"), config=PPOConfig(level="listed", practice=practice), run=run),
        )
        (after,) = run.evaluate(learned, 99, split="train")
    assert after.mean >= max(0.4, before + 0.2)


def test_refusals(played, tmp_path):
    policy, found, engine = played
    silent = Echo()
    (failed,) = collect(
        {silent.name: silent}, [ev.Start(silent.tasks("train", "seen")[0])], CandidateAgent(policy), engine=engine
    )
    assert failed.error.kind == WorldError.__name__ and "does not list its admissible actions" in failed.error.message
    steps = [ev.Step(s.observation, s.action, s.reward, generations=s.generations) for s in found[0].steps]
    bare = ev.Trajectory("bare", found[0].task, tuple(steps))
    with pytest.raises(BatchMismatch, match="has no candidates"):
        add_candidates([bare], chains_of(policy, [bare]))
    with pytest.raises(ValueError, match="kl, restrict_to_admissible and top_k cannot be used"):
        PPOConfig(level="listed", kl=0.1)
    assert choice_objective(ChoiceConfig()).needs == ("logprobs",) and verbs_of(silent, action_level=True).action_level


@pytest.mark.parametrize("normalization", ["words", "tokens", "sum"])
def test_a_listed_action_is_divided_alike_in_playing_and_learning(tmp_path, normalization):
    """TWOSOME's three settings, of which the last is GLAM: no divergence before the first update, by any divisor."""
    world = Listed()
    config = PPOConfig(level="listed", normalization=normalization, practice=quick(temperature=0.5, iterations=1))
    with run_of(tmp_path, world) as run:
        ppo(small(world), world.tasks("train", "seen"), config=config, run=run)
        steps = [step for one in run.store.trajectories() for step in one.steps if "candidates" in step.info]
        rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["kind"] == "practise" and "kl" in row]
    assert abs(row["kl"]) < 1e-9 and abs(row["mismatch"]) < 1e-9
    lengths = [len(ids) for ids in steps[0].info["candidates"]]
    expected = {"words": [len(action.split()) for action in LISTED], "tokens": lengths, "sum": [1] * len(LISTED)}
    assert steps and all(step.info["words"] == expected[normalization] for step in steps)
    assert len(set(lengths)) > 1


def test_a_divisor_is_for_listed_actions():
    with pytest.raises(ValueError, match="normalization divides listed actions; got it with level action"):
        PPOConfig(normalization="tokens")
