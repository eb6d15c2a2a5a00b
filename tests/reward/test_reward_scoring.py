"""Scores of spans against the model itself, and each token computed once: growing paths, whole frontiers."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from evolvent.engine.asks import ScoreAsk
from evolvent.engine.driver import run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError, ScoringError, StaleNode
from evolvent.models.heads import fresh_head
from evolvent.models.policy import Policy, tiny_policy
from evolvent.reward.endings import Ending, PathCache, check_scores
from evolvent.reward.generative import GenerativeScorer, VerdictPrompt
from evolvent.reward.process import WORD_TAGS, LabelTags, SpanScorer, TagIds, default_tags
from evolvent.reward.values import OutcomeScorer, ValueScorer
from evolvent.trajectory import sample_rng

POLICY = tiny_policy([f"w{number}" for number in range(30)], context=96, seed=3)
TAGS = TagIds(tag=4, good=5, bad=1)


def path(name: str, count: int) -> tuple[int, ...]:
    return tuple(int(token) for token in sample_rng("path", name).integers(7, 37, count))


def scored(scorer: Any, asked: Sequence[Ending], engine: LocalEngine) -> list[tuple[float, ...]]:
    (done,) = run_jobs([scorer.scores(asked)], engine, slots=1)
    if done.error is not None:
        raise done.error
    return done.value  # type: ignore[return-value]


def logits(ids: Sequence[int], policy: Policy = POLICY) -> torch.Tensor:
    with torch.no_grad():
        return policy.model(torch.tensor([list(ids)])).logits[0, -1].double()


def good(ids: Sequence[int], policy: Policy = POLICY) -> float:
    return float(logits([*ids, TAGS.tag], policy)[[TAGS.good, TAGS.bad]].softmax(-1)[0])


def test_span_scores_are_those_of_the_model_at_the_tag() -> None:
    one, other = path("a", 20), (*path("a", 20)[:9], *path("b", 8))
    asked = [Ending(None, one, (4, 9, 20)), Ending(None, other, (4, 17)), Ending(None, one[:3], ())]
    found = scored(SpanScorer(TAGS), asked, LocalEngine(POLICY))
    for item, scores in zip(asked, found, strict=True):
        assert scores == pytest.approx([good(item.tokens[:end]) for end in item.ends], abs=1e-5)
    assert len({round(score, 6) for scores in found for score in scores}) == 4  # equal prefixes only are equal


def test_a_growing_path_costs_each_token_once_and_a_tag_for_each_span() -> None:
    engine, scorer, tokens = LocalEngine(POLICY), SpanScorer(TAGS), path("grow", 48)
    for span, end in enumerate(range(6, 49, 6), 1):
        ((score,),) = scored(scorer, [Ending(None, tokens[:end], (end,))], engine)
        assert score == pytest.approx(good(tokens[:end]), abs=1e-5)
        assert engine.usage.computed == end + span and engine.usage.recomputed == 0


def test_a_frontier_shares_what_its_paths_share() -> None:
    engine, prompt = LocalEngine(POLICY), path("prompt", 40)
    asked = [Ending(None, (*prompt, 7 + number, *path(str(number), 5)), (43, 46)) for number in range(4)]
    scored(SpanScorer(TAGS), asked, engine)
    assert engine.usage.computed == 40 + 4 * 6 + 4 * 2
    whole = LocalEngine(POLICY)
    scored(SpanScorer(TAGS), [Ending(None, path("one", 30), tuple(range(3, 31, 3)))], whole)
    assert whole.usage.computed == 30 + SpanScorer(TAGS).most(10, 30).computed == 30 + 10
    assert whole.usage.forwards <= 3  # the path at once, then all tags together


def test_a_frontier_of_values_is_one_forward_and_its_paths_are_kept() -> None:
    engine, scorer, prompt = LocalEngine(POLICY), ValueScorer(fresh_head(64, seed=1)), path("values", 30)
    scorer.head.outer.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    scored(scorer, [Ending(None, prompt, (30,))], engine)
    frontier = [(*prompt, 7 + number, *path(str(number), 5)) for number in range(4)]
    before, fed = engine.usage.forwards, engine.usage.computed
    found = scored(scorer, [Ending(None, tokens, (36,)) for tokens in frontier], engine)
    assert engine.usage.forwards - before == 1 and engine.usage.computed - fed == 4 * 6
    assert len({score for (score,) in found}) == 4
    scored(scorer, [Ending(None, (*tokens, 9), (37,)) for tokens in frontier], engine)
    assert engine.usage.computed - fed == 4 * 6 + 4 and engine.usage.recomputed == 0


def test_a_node_of_the_same_engine_goes_on_where_it_ends() -> None:
    engine, scorer, tokens = LocalEngine(POLICY), SpanScorer(TAGS), path("node", 30)

    def work() -> Generator[Any, Any, Any]:
        (begun,) = yield [ScoreAsk(None, tokens[:12])]
        first = yield from scorer.scores([Ending(begun.node, tokens[12:20], (0, 8))])
        (grown,) = yield [ScoreAsk(begun.node, tokens[12:20])]  # what was scored is not computed again
        second = yield from scorer.scores([Ending(grown.node, tokens[20:], (10,))])
        return [*first[0], *second[0]]

    (done,) = run_jobs([work()], engine, slots=1)
    assert done.value == pytest.approx([good(tokens[:end]) for end in (12, 20, 30)], abs=1e-5)
    assert engine.usage.computed == 30 + 3


def test_other_weights_and_other_engines_are_told_from_the_tokens() -> None:
    engine, scorer, tokens = LocalEngine(POLICY), SpanScorer(TAGS), path("other", 10)
    asked = [Ending(None, tokens, (10,))]
    before = scored(scorer, asked, engine)
    changed = tiny_policy([f"w{number}" for number in range(30)], context=96, seed=4)
    engine.sync(replace(changed, version=1))
    ((after,),) = scored(scorer, asked, engine)
    assert after == pytest.approx(good(tokens, changed), abs=1e-5) and abs(after - before[0][0]) > 1e-3
    ((again,),) = scored(scorer, asked, LocalEngine(POLICY))
    assert again == pytest.approx(before[0][0], abs=1e-6)

    def stale() -> Generator[Any, Any, Any]:
        (begun,) = yield [ScoreAsk(None, tokens)]
        engine.sync(replace(changed, version=2))
        return (yield from scorer.scores([Ending(begun.node, (), (0,))]))

    (done,) = run_jobs([stale()], engine, slots=1)
    assert isinstance(done.error, StaleNode)


def test_few_paths_are_held_and_the_oldest_let_go() -> None:
    paths = PathCache(max_paths=2)
    nodes: list[Any] = [object() for _ in range(4)]
    paths.add([1, 2], nodes[0])
    paths.add([1, 2, 3], nodes[1])
    assert paths.find_longest([1, 2, 3, 4]) == (nodes[1], 3) and paths.find_longest([1, 2, 4]) == (nodes[0], 2)
    assert paths.find_longest([2, 1, 3]) == (None, 0) and paths.find_longest([1]) == (None, 0)
    paths.add([5], nodes[2])  # [1, 2, 3] was used least recently
    assert len(paths) == 2 and paths.find_longest([1, 2, 3, 4]) == (nodes[0], 2)
    paths.add([5], nodes[3])
    assert paths.find_longest([5, 5]) == (nodes[3], 1) and len(paths) == 2
    paths.clear()
    assert paths.find_longest([5]) == (None, 0)


def test_values_and_outcomes_read_the_head_at_the_ends() -> None:
    head = fresh_head(64, seed=1)
    with torch.no_grad():
        for weight in head.parameters():
            weight.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(int(weight.numel())))
    tokens, ends = path("values", 24), (6, 12, 24)
    with torch.no_grad():
        states = POLICY.model.model(torch.tensor([list(tokens)])).last_hidden_state[0]
        wanted = head(states[[end - 1 for end in ends]]).double().numpy()
    engine, asked, first = LocalEngine(POLICY), [Ending(None, tokens, ends)], ValueScorer(head)
    assert scored(first, asked, engine)[0] == pytest.approx(wanted, abs=1e-4)
    assert scored(ValueScorer(head, low=-1.0), asked, engine)[0] == pytest.approx((wanted + 1) / 2, abs=1e-4)
    clipped = scored(ValueScorer(head, low=5.0, high=6.0, clip=True), asked, engine)[0]
    assert clipped == (0.0, 0.0, 0.0) and wanted.max() < 5
    assert scored(OutcomeScorer(head), asked, engine)[0] == pytest.approx(1 / (1 + np.exp(-wanted)), abs=1e-4)
    assert (
        engine.usage.computed == 24 + first.most(3, 24).computed + OutcomeScorer(head).most(3, 24).computed == 24
    )  # hidden states are kept: nothing is fed for them
    with torch.no_grad():
        head.outer.bias.fill_(math.nan)
    assert all(math.isnan(score) for score in scored(ValueScorer(head, clip=True), asked, engine)[0])
    assert all(math.isnan(score) for score in scored(OutcomeScorer(head), asked, engine)[0])
    with pytest.raises(ConfigError, match="low"):
        ValueScorer(head, low=1.0)


def test_a_verdict_is_the_chance_of_yes_after_the_question() -> None:
    verdict, tokens = VerdictPrompt((6, 9, 6), yes=20, no=21), path("verdict", 18)
    asked = [Ending(None, tokens, (7, 18)), Ending(None, tokens[:7], ())]

    def yes(ids: Sequence[int]) -> float:
        return float(logits([*ids, *verdict.question])[[20, 21]].softmax(-1)[0])

    engine = LocalEngine(POLICY)
    found = scored(GenerativeScorer(verdict), asked, engine)
    assert found[0] == pytest.approx([yes(tokens[:7]), yes(tokens)], abs=1e-5) and found[1] == ()
    assert engine.usage.computed == 18 + 2 * 3
    reverse = scored(GenerativeScorer(verdict, render=lambda ids: ids[::-1]), asked, engine)
    assert reverse[0] == pytest.approx([yes(tokens[:7][::-1]), yes(tokens[::-1])], abs=1e-5) and reverse[1] == ()
    with pytest.raises(ConfigError):
        VerdictPrompt((), 1, 2)
    with pytest.raises(ConfigError):
        VerdictPrompt((1,), 2, 2)


@pytest.mark.parametrize("ends", [(0,), (2, 1), (4,), (-1,)])
def test_ends_that_are_not_on_their_path(ends: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="path"):
        Ending(None, (7, 8, 9), ends)


def test_not_one_score_for_each_span_is_an_error() -> None:
    with pytest.raises(ScoringError, match="number of scores does not match the spans"):
        check_scores([Ending(None, (7, 8), (1, 2))], [[0.5]])


def test_tags_are_single_tokens_or_refused_all_at_once() -> None:
    found = default_tags(POLICY.tokenizer)
    assert found == WORD_TAGS.encode(POLICY.tokenizer) and len({found.tag, found.good, found.bad}) == 3
    assert POLICY.tokenizer.convert_ids_to_tokens([found.tag, found.good, found.bad]) == ["<obs>", "<act>", "<bos>"]
    with pytest.raises(ConfigError) as caught:
        LabelTags("w1 w2", "nobody", "").encode(POLICY.tokenizer)
    assert [problem.where for problem in caught.value.problems] == ["tag", "good", "bad"]
    with pytest.raises(ConfigError, match="same token"):
        LabelTags("w1", "w2", "w2").encode(POLICY.tokenizer)
