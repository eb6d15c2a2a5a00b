"""Searches over texts on a real engine: what they cost to the token, what they depend on, and what may go wrong."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.engine.asks import GREEDY, LogitsAsk, SampleAsk, Sampling, ScoreAsk
from evolvent.engine.driver import MultiModelEngine, run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.errors import ConfigError, ContextOverflow, EngineError, NoLegalAction, ScoringError, WeightsChanged
from evolvent.learn.token_sequences import flatten
from evolvent.models.dialects import Words
from evolvent.reward.generative import GenerativeScorer, VerdictPrompt
from evolvent.reward.process import SpanScorer, TagIds
from evolvent.search.beam import beam
from evolvent.search.gumbel import gumbel_mcts
from evolvent.search.mcts import Commit, Descend, Explore, mcts
from evolvent.search.meter import Meter
from evolvent.search.records import Budget, ExpandRequest, Request, Response, SearchResult, Spent
from evolvent.search.samples import best_of_n, search_greedy
from evolvent.search.scorers import Ending, FunctionScorer, GraderScorer, RolloutScorer
from evolvent.search.texts import search_text
from evolvent.search.trajectories import text_trajectory, text_tree
from evolvent.search.writing import TextState, Writing, begin_text
from evolvent.trajectory import Score, Task
from tests.engine.models import CONTEXT, Letters, llama

STOPS = frozenset([7, 8])
PROMPT = [1, 2, 3, 4]
TASK = Task("letters", "1", {"number": 1})
TAGS = TagIds(40, 41, 42)


@pytest.fixture(scope="module")
def policy():
    return llama()


@pytest.fixture(scope="module")
def judge():
    return llama(seed=5)


def writing(level="span", **changes) -> Writing:
    usual = {"level": level, "separators": ("e", "k"), "span_tokens": 6} | changes
    return Writing(Letters().decode, STOPS, CONTEXT, usual.pop("max_tokens", 24), **usual)


def number(ids: list[int]) -> float:
    return sum((at + 1) * token for at, token in enumerate(ids)) * 37 % 101 / 101


VALUE = FunctionScorer(number)
SEARCHES = {
    "greedy": lambda root, budget, rng: search_greedy(root, budget, rng, valued=True),
    "best_of_n": lambda root, budget, rng: best_of_n(root, budget, rng, n=5),
    "beam": lambda root, budget, rng: beam(root, budget, rng, width=3, keep=2, depth=24),
    "mcts": lambda root, budget, rng: mcts(root, budget, rng, width=3, depth=24, start=Commit(simulations=4)),
    "descend": lambda root, budget, rng: mcts(root, budget, rng, width=3, depth=24, start=Descend(paths=2)),
    "leaves": lambda root, budget, rng: mcts(root, budget, rng, width=3, depth=24, start=Commit(6), leaves=3),
    "widened": lambda root, budget, rng: mcts(
        root, budget, rng, width=2, depth=24, start=Commit(simulations=5), leaves=2, explore=Explore(widen=0.6)
    ),
    "gumbel": lambda root, budget, rng: gumbel_mcts(root, budget, rng, width=3, depth=24, simulations=4, considered=3),
}


def begun(name, *, budget=None, seed=3, prompt=PROMPT):
    return SEARCHES[name](begin_text(prompt, seed=seed), budget or Budget(), np.random.default_rng(seed))


def alone(search, engine, *, how=None, scorer=VALUE) -> SearchResult:
    (done,) = run_jobs([search_text(search, writing=how or writing(), scorer=scorer)], engine, slots=1)
    if done.error is not None:
        raise done.error
    return done.value


def shape(result: SearchResult) -> tuple:
    tree, size = result.tree, len(result.tree)
    states = [(state.written, state.ends, state.stop) for state in tree.states]
    numbers = (tree.parent[:size].tolist(), tree.visits[:size].tolist(), tree.counts)
    values = [None if np.isnan(value) else round(value, 5) for value in tree.value[:size].tolist()]
    return states, numbers, values, result.finished, result.best_node, result.ended_by


# ------------------------------------------------------------------ what it costs


@pytest.mark.parametrize("level", ["span", "token"])
@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("scoring", ["function", "same model", "another model"])
def test_what_is_spent_is_what_the_engine_counts(policy, judge, name, level, scoring):
    ours, theirs = LocalEngine(policy, slots=32), LocalEngine(judge, slots=32)
    scorer = {"function": VALUE, "same model": SpanScorer(TAGS), "another model": SpanScorer(TAGS, "judge")}[scoring]
    found = alone(
        begun(name),
        MultiModelEngine({"policy": ours, "judge": theirs}),
        how=writing(level, max_tokens=14),
        scorer=scorer,
    )
    assert found.spent.generated == ours.usage.generated
    assert found.spent.computed == ours.usage.computed + theirs.usage.computed
    assert ours.usage.recomputed == theirs.usage.recomputed == 0
    assert (theirs.usage.computed > 0) == (scoring == "another model")
    assert found.best_node is not None and found.tree.states[found.best_node].stop


@pytest.mark.parametrize("name", ["beam", "mcts", "gumbel"])
def test_a_token_level_tree_feeds_each_of_its_inner_tokens_once(policy, name):
    engine = LocalEngine(policy, slots=64)
    found = alone(begun(name), engine, how=writing("token"))
    size = len(found.tree)
    inner = sum(found.tree.first[node] >= 0 for node in range(1, size))
    assert engine.usage.computed == len(PROMPT) + inner and engine.usage.generated == 0
    assert inner < size - 1


def test_spans_share_their_beginnings_and_last_tokens_are_not_fed(policy):
    engine = LocalEngine(policy, slots=64)
    found = alone(begun("beam"), engine, scorer=VALUE)
    tree = found.tree
    fed = len(PROMPT)
    for node in range(1, len(tree)):
        own = len(tree.states[node].written) - len(tree.states[int(tree.parent[node])].written)
        fed += tree.counts[node] * (own - 1) + (tree.first[node] >= 0)  # its last token only when it is expanded
    assert engine.usage.computed == fed == found.spent.computed


def test_a_search_elsewhere_in_the_engine_changes_nothing_but_is_not_charged(policy):
    engine = LocalEngine(policy, slots=64)
    first = alone(begun("beam"), engine)
    before = replace(engine.usage)
    again = alone(begun("beam"), engine)
    assert shape(again) == shape(first)
    assert again.spent.generated == first.spent.generated == engine.usage.generated - before.generated
    assert again.spent.computed == first.spent.computed > engine.usage.computed - before.computed


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(SEARCHES)),
    level=st.sampled_from(["span", "token"]),
    limit=st.integers(1, 160),
    kind=st.sampled_from(["generated", "computed", "expansions"]),
    scoring=st.integers(0, 2),
)
def test_a_budget_is_never_exceeded(policy, judge, name, level, limit, kind, scoring):
    engine = MultiModelEngine({"policy": LocalEngine(policy, slots=32), "judge": LocalEngine(judge, slots=32)})
    rollouts = RolloutScorer(number_of, 2, writing(level), len(PROMPT), 1)
    scorer = (VALUE, SpanScorer(TAGS, "judge"), rollouts)[scoring]
    budget = Budget(**{kind: limit})
    found = alone(begun(name, budget=budget), engine, how=writing(level, max_tokens=12, reduce="min"), scorer=scorer)
    assert engine.usage.generated <= (budget.generated or math.inf)
    assert engine.usage.computed <= (budget.computed or math.inf)
    assert found.spent.expansions <= (budget.expansions or math.inf)
    assert found.ended_by in ("done", kind) and found.spent.generated == engine.usage.generated


QUESTION = VerdictPrompt((9, 10, 11), 40, 41)
SCORERS = {
    "tags": lambda how: SpanScorer(TAGS, "judge"),
    "own tags": lambda how: SpanScorer(TAGS),
    "verifier": lambda how: GenerativeScorer(QUESTION, model="judge"),
    "rollouts": lambda how: RolloutScorer(number_of, 2, how, len(PROMPT), 1),
}


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(set(SEARCHES) - {"greedy"})),
    limit=st.integers(20, 400),
    kind=st.sampled_from(["generated", "computed"]),
    scoring=st.sampled_from(sorted(SCORERS)),
    reduce=st.sampled_from(["last", "min"]),
    level=st.sampled_from(["span", "token"]),
)
def test_what_is_drawn_can_be_judged(policy, judge, name, limit, kind, scoring, reduce, level):
    """Nothing is sampled for which there is no room to value it: a search decides for nothing unjudged."""
    engine = MultiModelEngine({"policy": LocalEngine(policy, slots=32), "judge": LocalEngine(judge, slots=32)})
    how = writing(level, max_tokens=12, reduce=reduce)
    found = alone(begun(name, budget=Budget(**{kind: limit})), engine, how=how, scorer=SCORERS[scoring](how))
    assert np.isfinite(found.tree.value[1 : len(found.tree)]).all()
    assert getattr(found.spent, kind) <= limit


def test_what_a_budget_has_room_for_is_judged_in_order(policy):
    """A scorer that says too little is stopped, but what fits is told."""

    @dataclass
    class Sly:
        model: str | None = None

        def scores(self, asked):
            yield [LogitsAsk(None, [9 + at, *range(10, 19)]) for at in range(len(asked))]
            return [(0.5,) * len(item.ends) for item in asked]

        def most(self, ends, length):
            return Spent()

    root, engine = begin_text(PROMPT, seed=3), LocalEngine(policy, slots=8)
    (free,) = told(engine, ExpandRequest(root, 8), scorer=Sly()).children
    shares = []
    for limit in range(60, 110, 5):
        search = wish(ExpandRequest(root, 8), left=Budget(computed=limit))
        found = alone(search, LocalEngine(policy, slots=8), scorer=Sly())
        assert found.spent.computed <= limit
        if found.children[0] is not None:
            known = [child.value is not None for child in found.children[0]]
            assert known == sorted(known, reverse=True) and (all(known) or found.short == "computed")
            shares.append(sum(known))
    assert len(set(shares)) > 1 and shares == sorted(shares) and max(shares) <= len(free)


def number_of(text: str) -> float:
    return len(text) % 5 / 4


def test_scorers_that_ask_more_than_they_said_are_stopped(policy):
    @dataclass
    class Greedy:
        model: str | None = None

        def scores(self, asked):
            yield [LogitsAsk(None, [9] * 40) for _ in asked]
            return [(0.5,) * len(item.ends) for item in asked]

        def most(self, ends, length):
            return Spent()

    engine = LocalEngine(policy, slots=8)
    found = alone(begun("beam", budget=Budget(computed=40)), engine, scorer=Greedy())
    assert engine.usage.computed <= 40 and found.ended_by == "computed" and found.best_node is None
    assert len(found.tree) > 1 and np.isnan(found.tree.value[1])


# ------------------------------------------------------------------ what it depends on


@pytest.mark.parametrize("level", ["span", "token"])
def test_searches_do_not_depend_on_what_else_runs(policy, level):
    names = sorted(SEARCHES) * 2
    prompts = [[1 + at % 3, 2, 3] for at in range(len(names))]
    works = [
        search_text(begun(name, seed=at, prompt=prompt), writing=writing(level, max_tokens=10), scorer=VALUE)
        for at, (name, prompt) in enumerate(zip(names, prompts, strict=True))
    ]
    together = {done.index: done.value for done in run_jobs(works, LocalEngine(policy, slots=16), slots=9)}
    for at, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        search = begun(name, seed=at, prompt=prompt)
        single = alone(search, LocalEngine(policy, slots=16), how=writing(level, max_tokens=10))
        assert shape(single) == shape(together[at]), name
        assert replace(single.spent, seconds=0) == replace(together[at].spent, seconds=0)


@pytest.mark.parametrize("level", ["span", "token"])
def test_an_engine_that_shares_nothing_gives_the_same_tree(policy, level):
    shared, oracle = LocalEngine(policy, slots=16), RecomputeEngine(policy)
    how = writing(level, max_tokens=8)
    assert shape(alone(begun("mcts"), shared, how=how)) == shape(alone(begun("mcts"), oracle, how=how))
    assert shared.usage.computed < oracle.usage.computed


class Watching(LocalEngine):
    """Remembers what is sampled."""

    def __init__(self, policy):
        super().__init__(policy, slots=16)
        self.samples: list[SampleAsk] = []

    def submit(self, ask):
        self.samples += [ask] if isinstance(ask, SampleAsk) else []
        return super().submit(ask)


def test_samples_derive_from_the_tokens_before_them(policy):
    """The children of a state that was come to by other searches are the same."""
    engine = LocalEngine(policy, slots=16)
    one, other = (alone(begun(name), engine, scorer=VALUE).tree for name in ("beam", "mcts"))
    below = [{state.written for state in tree.states[tree.children(0)]} for tree in (one, other)]
    assert below[0] == below[1]
    different = alone(begun("beam", seed=4), engine).tree
    assert {state.written for state in different.states[different.children(0)]} != below[0]


def test_no_two_samples_of_a_search_share_their_random_numbers(policy):
    for name in ("beam", "widened"):
        engine = Watching(policy)
        alone(begun(name), engine)
        seeds = [seed for ask in engine.samples for seed in ask.seeds]
        assert len(seeds) == len(set(seeds)) > 20


# ------------------------------------------------------------------ what is written


def wish(*wanted: ExpandRequest, evaluate=(), left=None):
    """A search that wants this once and returns what it was told."""
    found = yield Request(wanted, evaluate, left or Budget())
    return found


def told(engine, *wanted: ExpandRequest, how=None, scorer=VALUE, evaluate=()) -> Response:
    return alone(wish(*wanted, evaluate=evaluate), engine, how=how, scorer=scorer)


def test_children_are_what_was_sampled(policy):
    engine, root = LocalEngine(policy, slots=16), begin_text(PROMPT, seed=3)
    (children,) = told(engine, ExpandRequest(root, 8)).children
    assert sum(child.count for child in children) == 8 and len({child.state.written for child in children}) == len(
        children
    )
    for child in children:
        state = child.state
        assert state.node.tokens() == [*PROMPT, *state.written] and state.pending == ()
        assert child.logprob == pytest.approx(np.mean(state.logprobs)) and child.value == number(state.node.tokens())
        assert state.ends == (len(state.written),) and child.generated == child.count * len(state.written)
        text = Letters().decode(list(state.written))
        assert child.action == state.text == "".join(letter for letter in text if letter not in "hi")
        marks = [at for at, letter in enumerate(text) if letter in "ek"]
        stops = [at for at, letter in enumerate(text) if letter in "hi"]
        assert marks in ([], [len(text) - 1]) and stops in ([], [len(text) - 1])
        assert child.terminal == bool(stops) == (state.stop == "stop")
        assert len(text) == 6 or marks or stops


def test_equal_samples_are_one_child(policy):
    engine, root = LocalEngine(policy, slots=16), begin_text(PROMPT)
    (children,) = told(engine, ExpandRequest(root, 5), how=writing(sampling=GREEDY)).children
    assert [child.count for child in children] == [5]
    assert children[0].generated == 5 * len(children[0].state.written)
    parts = [told(engine, ExpandRequest(root, 5, first=first)).children[0] for first in (0, 5)]
    (whole,) = told(engine, ExpandRequest(root, 10)).children
    written = [[child.state.written for child in children] for children in (*parts, whole)]
    assert list(dict.fromkeys([*written[0], *written[1]])) == written[2] and set(written[1]) - set(written[0])


def test_tokens_are_the_likeliest_ones(policy):
    engine, root = LocalEngine(policy, slots=16), begin_text(PROMPT)
    (children,) = told(
        engine, ExpandRequest(root, 6), how=writing("token", sampling=Sampling(temperature=0.5))
    ).children
    (done,) = run_jobs([asked(LogitsAsk(None, PROMPT))], engine, slots=1)
    logits = done.value.astype(np.float64) / 0.5
    order = np.argsort(-logits, kind="stable")[:6].tolist()
    assert [child.state.written for child in children] == [(token,) for token in order]
    expected = logits - np.log(np.exp(logits).sum())
    np.testing.assert_allclose([child.logprob for child in children], expected[order], atol=1e-6)
    assert all(child.state.pending == child.state.written and child.generated == 0 for child in children)
    (later,) = told(engine, ExpandRequest(root, 2, first=4, after=4), how=writing("token")).children
    assert [child.state.written for child in later] == [(token,) for token in order[4:]]
    (only,) = told(engine, ExpandRequest(root, 6, greedy=True), how=writing("token")).children
    assert [child.state.written for child in only] == [(order[0],)]


def asked(*asks):
    answers = yield asks
    return answers[0]


def test_a_whole_text_has_the_spans_that_one_after_another_would_have(policy):
    engine, how = LocalEngine(policy, slots=16), writing(span_tokens=24, separators=("t", "bc"), reduce="prod")
    root = begin_text(PROMPT)
    (whole,) = told(engine, ExpandRequest(root, 1, to_end=True, greedy=True), how=how).children[0]
    state = root
    while not state.stop:
        ((child,),) = told(engine, ExpandRequest(state, 1, greedy=True), how=how).children
        state = child.state
    assert (whole.state.written, whole.state.ends, whole.state.stop) == (state.written, state.ends, state.stop)
    assert len(whole.scores) == len(state.ends) > 1, "several spans, or nothing was tested"
    assert list(whole.scores) == [number([*PROMPT, *state.written[:end]]) for end in state.ends]
    last = writing(span_tokens=24, separators=("t", "bc"))
    (only,) = told(engine, ExpandRequest(root, 1, to_end=True, greedy=True), how=last).children[0]
    assert only.scores == whole.scores[-1:], "where the last one counts alone, no other is asked for"


def test_a_text_is_over_where_it_says_so(policy):
    engine, root = LocalEngine(policy, slots=16), begin_text(PROMPT)
    open_ = told(engine, ExpandRequest(root, 12, to_end=True)).children[0]
    mark = next(child.state.text[:4] for child in open_ if len(child.state.ends) > 2)
    how = writing(finished=lambda text: mark in text)
    closed = told(engine, ExpandRequest(root, 12, to_end=True), how=how).children[0]
    cut = [child for child in closed if child.state.stop == "finished"]
    assert cut and all(child.terminal for child in closed)
    for child in cut:
        state = child.state
        assert mark in state.text and mark not in how.text(
            state.written[: state.ends[-2]] if len(state.ends) > 1 else ()
        )
        assert (state.node.tokens() if state.node else []) + list(state.pending) == [*PROMPT, *state.written]
    assert told(engine, ExpandRequest(cut[0].state, 4), how=how).children[0] == []


def test_a_text_ends_with_its_tokens_and_with_the_context(policy):
    engine = LocalEngine(policy, slots=16)
    (short,) = told(engine, ExpandRequest(begin_text(PROMPT), 6), how=writing(max_tokens=2)).children
    assert all(len(child.state.written) <= 2 and child.terminal for child in short)
    assert {child.state.stop for child in short if child.state.written[-1] not in STOPS} == {"length"}
    (full,) = told(engine, ExpandRequest(begin_text([1] * (CONTEXT - 1)), 3)).children
    assert all(len(child.state.written) == 1 and child.terminal for child in full)
    with pytest.raises(ContextOverflow):
        told(engine, ExpandRequest(begin_text([1] * CONTEXT), 3))


# ------------------------------------------------------------------ values


@pytest.mark.parametrize("reduce", ["last", "min", "prod"])
def test_values_are_made_of_the_scores_of_the_path(policy, reduce):
    engine = LocalEngine(policy, slots=16)
    found = alone(begun("beam"), engine, how=writing(reduce=reduce))
    tree = found.tree
    deep = [node for node in range(len(tree)) if tree.depth[node] > 1]
    assert deep
    for node in deep:
        spans = tree.spans(node)
        assert len(spans) == len(tree.states[node].ends)
        expected = {"last": spans[-1], "min": min(spans), "prod": math.prod(spans)}[reduce]
        assert tree.value[node] == pytest.approx(expected)


def test_spans_that_were_not_scored_are_when_they_are_needed(policy):
    engine, how = LocalEngine(policy, slots=16), writing(reduce="min")
    calls: list[list[int]] = []

    def noted(ids: list[int]) -> float:
        calls.append(ids)
        return number(ids)

    def search(root):
        first = yield Request([ExpandRequest(root, 1, valued=False)])
        state = first.children[0][0].state
        second = yield Request([ExpandRequest(state, 1, valued=False)], [root])
        below = second.children[0][0].state
        third = yield Request((), [below, state, root])
        return second.values, third.values, (state, below)

    seen, values, (state, below) = alone(
        search(begin_text(PROMPT, seed=1)), engine, how=how, scorer=FunctionScorer(noted)
    )
    paths = [[*PROMPT, *each.written] for each in (state, below)]
    scores = [number(path) for path in paths]
    assert values == [min(scores), scores[0], number(PROMPT)] and seen == [number(PROMPT)]
    assert calls == [PROMPT, *paths]


def test_without_a_scorer_nothing_has_a_value(policy):
    engine = LocalEngine(policy, slots=16)
    found = told(engine, ExpandRequest(begin_text(PROMPT), 2), scorer=None, evaluate=[begin_text(PROMPT)])
    assert all(child.value is None and not child.problem for child in found.children[0])
    assert np.isnan(found.values[0])


def test_what_a_scorer_fails_at_is_dropped_with_its_reason(policy):
    def moody(ids: list[int]) -> float:
        if ids[len(PROMPT)] % 4 == 0:
            raise ZeroDivisionError("no such letter")
        return math.nan if ids[len(PROMPT)] % 4 == 1 else number(ids)

    search = beam(begin_text(PROMPT), Budget(), np.random.default_rng(0), width=12, keep=2, depth=24)
    found = alone(search, LocalEngine(policy, slots=16), scorer=FunctionScorer(moody))
    reasons = {each.reason for each in found.dropped}
    assert any("no such letter" in reason for reason in reasons) and "its value is nan" in reasons
    assert all(state.written[0] % 4 > 1 for state in found.tree.states[1:]) and found.best_node is not None

    def broken(ids):
        raise ZeroDivisionError("always")

    with pytest.raises(NoLegalAction, match="always"):
        alone(begun("beam"), LocalEngine(policy, slots=16), scorer=FunctionScorer(broken))


def test_a_scorer_must_give_one_score_for_each_end(policy):
    @dataclass
    class Short:
        model: str | None = None

        def scores(self, asked):
            yield from ()
            return [() for _ in asked]

    with pytest.raises(ScoringError, match="number of scores does not match"):
        alone(begun("beam"), LocalEngine(policy, slots=8), scorer=Short())


def test_outcomes_and_rollouts(policy):
    engine, how = LocalEngine(policy, slots=16), writing()
    root = begin_text(PROMPT, seed=2)
    grade = {True: 1.0, False: 0.0}
    outcome = GraderScorer(lambda text: None if "b" in text else grade["c" in text], how, len(PROMPT))
    (children,) = told(engine, ExpandRequest(root, 8, to_end=True), scorer=outcome).children
    for child in children:
        text = child.state.text
        assert np.isnan(child.value) if "b" in text else child.value == grade["c" in text]
    rollouts = RolloutScorer(lambda text: grade[len(text) % 2 == 0], 4, how, len(PROMPT), seed=9)
    (over,) = told(engine, ExpandRequest(root, 4, to_end=True), scorer=rollouts).children
    assert all(child.value == grade[len(child.state.text) % 2 == 0] for child in over), "nothing is added to them"
    (children,) = told(engine, ExpandRequest(root, 4), scorer=rollouts).children
    for child in children:
        state = child.state
        if state.stop:
            assert child.value == grade[len(state.text) % 2 == 0]
            continue
        seeds = rollouts._build_ask(
            Ending(None, (*PROMPT, *state.written), (state.length,)), state.length, [*PROMPT, *state.written]
        ).seeds
        ask = SampleAsk(None, [*PROMPT, *state.written], 24 - len(state.written), STOPS, seeds=seeds)
        (done,) = run_jobs([asked(ask)], engine, slots=1)
        lengths = [len(how.text([*state.written, *sample.ids.tolist()])) for sample in done.value]
        assert child.value == pytest.approx(np.mean([length % 2 == 0 for length in lengths]))
    unknown = RolloutScorer(lambda text: None, 2, how, len(PROMPT), seed=9)
    assert np.isnan(told(engine, evaluate=[root], scorer=unknown).values[0])


def test_a_grader_that_hangs_costs_its_child_alone(policy):
    release = threading.Event()

    def grade(text: str) -> float:
        if text.startswith("j"):
            release.wait(60)
        return len(text) / 100

    engine, how = LocalEngine(policy, slots=16), writing()
    root = begin_text(PROMPT, seed=3)
    plain = told(
        engine, ExpandRequest(root, 12), scorer=GraderScorer(lambda text: len(text) / 100, how, len(PROMPT))
    ).children[0]
    letters = {child.action[:1] for child in plain}
    hangs = sorted(letters)[0]
    patient = GraderScorer(lambda text: grade("j" if text.startswith(hangs) else text), how, len(PROMPT), timeout_s=0.3)
    try:
        (children,) = told(engine, ExpandRequest(root, 12), scorer=patient).children
    finally:
        release.set()
    for child, expected in zip(children, plain, strict=True):
        if child.action.startswith(hangs):
            assert "deadline" in child.problem
        else:
            assert child.value == expected.value and not child.problem
    assert len(letters) > 1


# ------------------------------------------------------------------ what goes wrong


class Fragile(LocalEngine):
    """Fails at every ask that has one of these seeds, or at all of them."""

    def __init__(self, policy, *, bad=(), error=EngineError):
        super().__init__(policy, slots=16)
        self.bad, self.error, self.asks = set(bad), error, 0

    def submit(self, ask):
        self.asks += 1
        if isinstance(ask, SampleAsk) and ask.max_tokens > 1 and self.bad & set(ask.seeds):
            raise self.error("the endpoint has lost it")
        return super().submit(ask)


def seeds_of(policy) -> tuple[int, ...]:
    """The seeds of a root's samples."""
    engine = Watching(policy)
    told(engine, ExpandRequest(begin_text(PROMPT, seed=3), 3))
    return engine.samples[0].seeds


def test_a_sample_that_fails_is_dropped_and_the_others_are_as_they_were(policy):
    seeds = seeds_of(policy)
    sound = alone(begun("beam"), LocalEngine(policy, slots=16))
    engine = Fragile(policy, bad=seeds[1:2])
    found = alone(begun("beam"), engine)
    assert [each.reason for each in found.dropped if each.node == 0] == ["the endpoint has lost it"]
    below = [[state.written for state in each.tree.states[each.tree.children(0)]] for each in (found, sound)]
    assert len(below[0]) == len(below[1]) - 1 and set(below[0]) < set(below[1])
    assert found.spent.computed >= engine.usage.computed
    with pytest.raises(NoLegalAction, match="lost it"):
        alone(begun("beam"), Fragile(policy, bad=seeds))


def test_after_failures_the_budget_holds_too(policy):
    engine = Fragile(policy, bad=seeds_of(policy)[1:2])
    budget = Budget(generated=30)
    found = alone(begun("beam", budget=budget), engine)
    assert engine.usage.generated <= 30 and found.spent.generated <= 30


def test_new_weights_end_the_search(policy):
    with pytest.raises(WeightsChanged):
        alone(begun("beam"), Fragile(policy, bad=seeds_of(policy)[:1], error=WeightsChanged))


def test_settings_are_checked_together():
    with pytest.raises(ConfigError) as caught:
        Writing(Letters().decode, STOPS, 0, 0, separators=("",))
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigError):
        begin_text([])
    with pytest.raises(ConfigError):
        RolloutScorer(number_of, 0, writing(), 1, 1)
    with pytest.raises(ConfigError):
        Ending(None, (1, 2), (0, 1))


def test_a_meter_counts_a_failed_batch_as_the_most_it_could_cost():
    meter = Meter()
    ask = SampleAsk(None, [1, 2], 5, seeds=(1, 2))
    work = meter.ask([ask, ScoreAsk(None, [1, 2, 3])])
    next(work)
    with pytest.raises(EngineError):
        work.throw(EngineError("lost"))
    assert (meter.spent.generated, meter.spent.computed) == (10, 2 + 2 * 4)  # what they share is fed once


# ------------------------------------------------------------------ records


def test_a_path_is_an_episode_that_a_learner_takes(policy):
    engine = LocalEngine(policy, slots=16)
    found = alone(begun("beam"), engine)
    state: TextState = found.tree.states[found.best_node]
    record = text_trajectory(state, TASK, name="a", observation="say it", score=Score(0.5, 0.5, True))
    (generation,) = record.generations
    assert generation.ids.tolist() == [*PROMPT, *state.written] and generation.sampled.sum() == len(state.written)
    assert generation.spans == tuple(len(PROMPT) + end for end in state.ends)
    (done,) = run_jobs([asked(ScoreAsk(None, generation.ids.tolist()))], engine, slots=1)
    np.testing.assert_allclose(generation.logprobs[len(PROMPT) :], done.value.logprobs[len(PROMPT) :], atol=1e-5)
    (parts,) = flatten([record], words(), instructions=lambda task: "", context=CONTEXT).sequences
    assert parts.weight.tolist() == generation.sampled.astype(float).tolist()
    assert parts.span.max() == len(state.ends) - 1 and parts.reward == 0.5
    with pytest.raises(ConfigError):
        text_trajectory(begin_text(PROMPT), TASK, name="a", observation="")


def test_a_tree_is_branches_in_which_every_token_is_learned_once(policy):
    found = alone(begun("mcts"), LocalEngine(policy, slots=16))
    tree = found.tree
    record = text_tree(found, TASK, name="t", observation="say it")
    leaves = [node for node in tree.leaves() if node]
    assert len(record.trajectories) == len(leaves)
    flat = flatten(record.trajectories, words(), instructions=lambda task: "", context=CONTEXT)
    assert not flat.refused
    own = [
        len(tree.states[node].written) - len(tree.states[int(tree.parent[node])].written)
        for node in range(1, len(tree))
    ]
    assert sum(parts.weight.sum() for parts in flat.sequences) == sum(own)
    by_name = {each.id: each for each in record.trajectories}
    for trajectory, leaf in zip(record.trajectories, leaves, strict=True):
        ids = next(trajectory.generations).ids.tolist()
        assert ids == [*PROMPT, *tree.states[leaf].written]
        if trajectory.branch is not None:
            parent = next(by_name[trajectory.branch.parent].generations)
            shared = len(PROMPT) + trajectory.branch.token
            assert ids[:shared] == parent.ids[:shared].tolist() and parent.sampled[shared - 1], "it wrote that itself"
    values = [each for each in record.annotations if each.scorer == "t/value"]
    visits = [each for each in record.annotations if each.scorer == "t/visits"]
    assert len(values) == len(visits) == len(tree) - 1
    assert sorted(each.value for each in visits) == sorted(tree.visits[1 : len(tree)].astype(float).tolist())
    for each in values:
        generation = next(by_name[each.trajectory].generations)
        end = generation.spans[each.target.span]
        assert each.value == pytest.approx(number(generation.ids[:end].tolist()))


def words() -> Words:
    class Few(Words):
        def __init__(self):
            self.stop_ids = STOPS

    return Few()
