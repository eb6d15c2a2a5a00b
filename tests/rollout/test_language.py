"""The language agent in real worlds: token-exact records, independent of slots, full contexts by the named policy."""

import numpy as np
import pytest

import evolvent as ev
from evolvent.agents.history import Refuse, Summarise, Window
from evolvent.engine.asks import GREEDY


@pytest.fixture(scope="module")
def setting():
    world = ev.Lookup()
    return (
        world,
        ev.make_policy([world], seed=3),
        [ev.Start(t, s) for t in world.tasks("test", "seen")[:12] for s in (0, 1)],
    )


def play(setting, agent, slots, starts=None, seed=0):
    world, policy, all_starts = setting
    engine = ev.LocalEngine(policy, slots=slots)
    found = ev.collect({"lookup": world}, starts or all_starts, agent, engine=engine, slots=slots, seed=seed)
    return {t.id: t for t in found}, engine


@pytest.mark.parametrize("sampling", [ev.Sampling(temperature=1.0), GREEDY, ev.Sampling(top_k=5, top_p=0.9)])
def test_trajectories_do_not_depend_on_slots_or_order(setting, sampling):
    agent = ev.LanguageAgent(setting[1], sampling, max_tokens=6)
    one, _ = play(setting, agent, 1)
    many, _ = play(setting, agent, 64, starts=setting[2][::-1])
    assert one == many


def test_records_are_token_exact(setting):
    policy = setting[1]
    found, engine = play(setting, ev.LanguageAgent(policy, max_tokens=6), 8)
    for t in found.values():
        generations = list(t.generations)
        assert [g.extends for g in generations] == [None, *range(len(generations) - 1)]
        text = policy.dialect.open("", str(t.steps[0].observation))
        assert generations[0].ids[: len(text)].tolist() == text
        for step in t.steps:
            (g,) = step.generations
            assert policy.dialect.text(g.ids[g.sampled]).strip() == step.action
            assert np.all(g.logprobs[g.sampled] < 0) and np.all(g.logprobs[~g.sampled] == 0)
    assert engine.usage.generated == sum(t.count_generated_tokens() for t in found.values())


def test_computed_tokens_are_at_most_those_of_the_trajectories(setting):
    found, engine = play(setting, ev.LanguageAgent(setting[1], max_tokens=6), 8)
    assert engine.usage.computed <= sum(len(g.ids) for t in found.values() for g in t.generations)
    assert engine.usage.recomputed == 0


def test_choosing_among_admissible_actions_is_always_admissible():
    world = ev.Crafting()
    policy = ev.make_policy([world], seed=1)
    agent = ev.LanguageAgent(policy, max_tokens=24, restrict_to_admissible=True)
    starts = [ev.Start(t) for t in world.tasks("test", "seen")[:10]]
    found = list(ev.collect({"crafting": world}, starts, agent, engine=ev.LocalEngine(policy, slots=4), slots=4))
    for t in found:
        admissible = {
            " ".join(action.replace(",", " ,").split()) for action in world.make(t.task).reset()[1]["admissible"]
        }
        assert t.actions
        assert {str(action) for action in t.actions} <= admissible


@pytest.mark.parametrize("history", [Refuse(), Window(), Summarise()])
def test_full_contexts(history):
    world = ev.Lookup()
    policy = ev.make_policy([world], context=52)
    starts = [ev.Start(t) for t in world.tasks("test", "longer")[:10]]
    agent = ev.LanguageAgent(policy, max_tokens=10, history=history)
    found = list(ev.collect({"lookup": world}, starts, agent, engine=ev.LocalEngine(policy, slots=4), slots=4))
    assert all(t.error is None for t in found), [t.error for t in found]
    for t in found:
        lengths, total = [], 0
        for g in t.generations:
            total = len(g.ids) + (0 if g.extends is None else total)
            lengths.append(total)
        assert max(lengths) <= 52
    roots = sum(step.info.get("new_root", False) for t in found for step in t.steps)
    if history.name == "refuse":
        assert roots == 0 and any(t.ended_by == "horizon" and len(t.steps) < world.horizon for t in found)
    else:
        assert roots > 0
