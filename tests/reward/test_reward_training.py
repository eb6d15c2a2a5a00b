"""Rows of reward models: trees against each prefix alone, targets by hand, and that all of them are learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from evolvent.engine.driver import run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError, SampleInvalid
from evolvent.learn.forward import compute_outputs
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import Objective, outcome, span_labels_objective, value_objective, weighted_nll
from evolvent.learn.token_sequences import TokenSequence, collate_padded
from evolvent.learn.trees import collate
from evolvent.models.heads import fresh_head
from evolvent.models.policy import Policy, tiny_policy
from evolvent.reward.calibration import evaluate_calibration
from evolvent.reward.endings import Ending, Scorer
from evolvent.reward.generative import GenerativeScorer, VerdictPrompt, build_verdict_tree
from evolvent.reward.labels import SpanLabels
from evolvent.reward.process import SpanScorer, TagIds, build_tagged_tree, default_tags, prepare_rows
from evolvent.reward.solutions import Solution, find_span_ends, tokenize_solution
from evolvent.reward.states import extract_solution
from evolvent.reward.values import OutcomeScorer, ValueScorer, build_outcome_row, build_value_row, td_targets
from evolvent.trajectory import Generation, Step, Trajectory, sample_rng
from evolvent.worlds.deduction.world import Deduction
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.question import format_demonstration, split_rationale

WORDS = [f"w{number}" for number in range(12)]
TAGS = TagIds(tag=4, good=5, bad=1)
SOLUTION = Solution((1, 4, 8, 9, 5), ((10, 11), (12,), (13, 14, 15)), "s")


def policy(*, seed: int = 0) -> Policy:
    return tiny_policy(WORDS, context=48, seed=seed)


# ------------------------------------------------------------------ solutions


def test_a_solution_knows_where_its_spans_end() -> None:
    parts = SOLUTION.to_sequence()
    assert SOLUTION.ids == (1, 4, 8, 9, 5, 10, 11, 12, 13, 14, 15) and SOLUTION.ends == (7, 8, 11)
    assert parts.span.tolist() == [-1] * 5 + [0, 0, 1, 2, 2, 2] and not parts.weight.any()
    for prompt, written in (((), ((1,),)), ((1,), ((),))):
        with pytest.raises(SampleInvalid, match="empty"):
            Solution(prompt, written)


def test_spans_end_after_separators_and_before_marks() -> None:
    assert find_span_ends([1, 9, 2, 3, 9, 4, 4, 5], {9}, opening={4}) == (2, 5, 8)  # one end, though both say so
    assert find_span_ends([1, 4, 4, 2], {9}, opening={4}) == (1, 4)
    assert find_span_ends([4, 9], {9}, opening={4}) == (2,) and find_span_ends([], {9}) == ()


def whole(written: Sequence[int]) -> Sequence[int]:
    """All of it is one span."""
    return (len(written),)


def test_texts_and_episodes_become_the_tokens_that_a_policy_would_have_written() -> None:
    world = Deduction(depth=4, sizes=Sizes(train=4, dev=1, test=1))
    task = world.tasks("train", "seen")[0]
    question = world.question(task)
    said = format_demonstration(question) or ""
    own = tiny_policy([*(world.vocabulary() or ())], context=512)
    ids = own.dialect.action(said)
    separator, mark = own.tokenizer.convert_tokens_to_ids([";", "#"])
    ends = find_span_ends(ids, {separator}, opening={mark})
    labels = tuple(map(float, world.check_steps(task, said)))
    assert len(ends) == len(labels) + 1 and set(labels) == {1.0}  # the answer is a span of its own
    told = tokenize_solution(SpanLabels(question.text, split_rationale(said), labels), own.dialect, separator=" ;")
    assert told.response == tuple(ids[: ends[-2]]) and told.prompt == tuple(own.dialect.open("", question.text))
    assert [len(span) for span in told.spans] == np.diff([0, *ends[:-1]]).tolist()
    by_hand = tokenize_solution(
        SpanLabels("w", ("a", "b"), (None, 1.0)), _Letters(), encode=lambda text: [ord(c) for c in text]
    )
    assert by_hand.spans == ((97, 10), (98,)) and by_hand.prompt == (1, 119)
    size = len(told.prompt)
    sampled = np.arange(size + len(ids)) >= size
    wrote = Generation(
        np.asarray([*told.prompt, *ids], np.int32),
        sampled,
        np.zeros(len(sampled), np.float32),
        spans=tuple(size + end for end in ends),
    )
    found = extract_solution(Trajectory("t", task, (Step(question.text, said, generations=(wrote,)),)), whole)
    assert (found.prompt, found.name) == (told.prompt, "t")
    assert found.spans == tuple(tuple(ids[a:b]) for a, b in pairwise([0, *ends]))
    broken = replace(wrote, sampled=np.roll(sampled, 1))
    for generations in ((), (wrote, wrote), (broken,), (replace(wrote, extends=0),)):
        with pytest.raises(SampleInvalid, match="episode 't'"):
            extract_solution(Trajectory("t", task, (Step("", said, generations=generations),)), whole)


class _Letters:
    """A dialect of letters, for prompts."""

    name, stop_ids = "letters", frozenset([0])

    def open(self, instructions: str, observation: str) -> list[int]:
        return [1, *map(ord, instructions + observation)]

    def turn(self, observation: str, *, stopped: bool) -> list[int]:
        return []

    def action(self, text: str) -> list[int]:
        return [*map(ord, text), 0]

    def text(self, ids: object) -> str:
        return ""


# ------------------------------------------------------------------ the discriminative model


def test_a_tree_is_each_prefix_alone_with_its_tag_behind() -> None:
    """Loss and gradient are those of as many sequences: later spans never see earlier tags."""
    own, labels = policy(), (0.25, None, 1.0)
    model = own.model
    batch = collate([build_tagged_tree(SOLUTION, labels, TAGS)], [0])
    total, count = span_labels_objective().loss(compute_outputs(model, batch, needs=("teacher",)), batch)
    total.backward()
    from_tree = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    alone = torch.zeros(())
    for end, label in ((7, 0.25), (11, 1.0)):
        two = (
            model(torch.tensor([[*SOLUTION.ids[:end], TAGS.tag]])).logits[0, -1, [TAGS.good, TAGS.bad]].log_softmax(-1)
        )
        alone = alone - label * two[0] - (1 - label) * two[1]
    alone.backward()
    assert count == 2 and total.item() == pytest.approx(alone.item(), rel=1e-5)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(from_tree[name], weight.grad, atol=2e-5, rtol=2e-4)


def test_what_cannot_be_learned_is_refused_with_its_reason() -> None:
    rows = [(SOLUTION, (1.0, 0.0, None)), (SOLUTION, (1.0,)), (SOLUTION, (None, None, None))]
    found = prepare_rows(rows, TAGS, context=13)
    assert len(found.sequences) == 1 and [problem.where for problem in found.refused] == ["s", "s"]
    assert found.sequences[0].ids.tolist()[11:] == [4, 5, 4, 5] and found.sequences[0].weight.tolist()[11:] == [
        0,
        1,
        0,
        1,
    ]
    assert found.sequences[0].parent is not None and found.sequences[0].parent.tolist()[11:] == [6, 11, 7, 13]
    assert "13 tokens" in prepare_rows(rows[:1], TAGS, context=12).refused[0].what


# ------------------------------------------------------------------ values


def test_targets_by_hand() -> None:
    assert td_targets(-1.0, 3).tolist() == [-1, -1, -1]
    assert td_targets(1.0, 3, discount=0.5).tolist() == [0.25, 0.5, 1.0]
    # G_3 = 1; G_2 = .2 * .5 + .8 * 1 = .9; G_1 = .2 * .25 + .8 * .9 = .77
    assert td_targets(1.0, 3, lam=0.8, values=[9.0, 0.25, 0.5]) == pytest.approx([0.77, 0.9, 1.0])
    assert td_targets(1.0, 3, lam=0.0, values=[9.0, 0.25, 0.5]).tolist() == [0.25, 0.5, 1.0]
    with pytest.raises(ConfigError) as caught:
        td_targets(float("nan"), 2, discount=2.0, lam=0.5, values=[1.0])
    assert [problem.where for problem in caught.value.problems] == ["discount", "values", "outcome"]


def test_a_value_is_read_at_the_last_token_of_a_span() -> None:
    own = policy()
    own.model.value_head = fresh_head(64, seed=0)
    with torch.no_grad():
        own.model.value_head.outer.weight.normal_(generator=torch.Generator().manual_seed(0))
    rows = [build_value_row(SOLUTION, [1.0, 2.0, 3.0], token=2), build_outcome_row(SOLUTION, 0.5, token=2)]
    with torch.no_grad():
        states = own.model.model(torch.tensor([SOLUTION.ids])).last_hidden_state[0]
        wanted = own.model.value_head(states[[6, 7, 10]])
        for row, expected in zip(rows, (wanted, wanted[-1:]), strict=True):
            batch = collate_padded([row], [[0]])
            found = compute_outputs(own.model, batch, needs=("values",)).values
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            assert batch.real == 11  # the token behind the end is never fed
    assert collate_padded(rows[:1], [[0]]).columns["returns"].tolist() == [1, 2, 3]
    assert collate_padded(rows[1:], [[0]]).columns["outcome"].tolist() == [0.5]
    for targets in ([1.0], [1.0, 2.0, float("nan")]):
        with pytest.raises(SampleInvalid):
            build_value_row(SOLUTION, targets, token=2)
    with pytest.raises(SampleInvalid):
        build_outcome_row(SOLUTION, 1.5, token=2)


# ------------------------------------------------------------------ verdicts


def test_a_verdict_is_learned_at_its_one_word() -> None:
    own, verdict = policy(), VerdictPrompt((8, 9, 8), yes=16, no=17)
    tree = build_verdict_tree(SOLUTION, (1.0, None, 0.25), verdict)
    assert tree.ids.tolist()[11:] == [8, 9, 8, 16, 8, 9, 8, 17]
    batch = collate([tree], [0])
    with torch.no_grad():
        total, count = weighted_nll.loss(compute_outputs(own.model, batch), batch)
        wanted = [
            own.model(torch.tensor([[*SOLUTION.ids[:end], 8, 9, 8]])).logits[0, -1].log_softmax(-1)[word].item()
            for end, word in ((7, 16), (11, 17))
        ]
    assert count == 2 and total.item() == pytest.approx(-sum(wanted), rel=1e-5)
    assert not build_verdict_tree(SOLUTION, (None, None, None), verdict).weight.any()
    with pytest.raises(SampleInvalid):
        build_verdict_tree(SOLUTION, (1.0,), verdict)


# ------------------------------------------------------------------ it is learned


def drawn(number: int) -> tuple[Solution, tuple[float, ...]]:
    """A span is good if it begins with the word of the prompt; a solution if all its spans are."""
    rng = sample_rng("drawn", number)
    asked = int(rng.integers(7, 11))
    begins = [asked if rng.random() < 0.75 else int(rng.integers(7, 11)) for _ in range(3)]
    written = tuple((begin, int(rng.integers(12, 18))) for begin in begins)
    return Solution((1, asked, 11), written, f"d{number}"), tuple(float(begin == asked) for begin in begins)


def trained(objective: Objective, parts: Sequence[TokenSequence], *, updates: int = 60) -> Policy:
    own = policy(seed=1)
    if "values" in objective.needs:
        own = replace(own, value_head=fresh_head(64, seed=0))
    learner = Learner(own, objective, TrainConfig(lr=3e-3, warmup_steps=5, max_steps=updates), seed=0)
    rng = np.random.default_rng(0)
    for _ in range(updates):
        learner.update([collate(parts, rng.choice(len(parts), 32, replace=False).tolist())])
    own.model.eval()
    return own.next_version()


def judged(scorer: Scorer, own: Policy, *, last: bool = False) -> tuple[list[float], list[float]]:
    """Scores and truths of spans (or of whole solutions) that were not learned."""
    rows = [drawn(1000 + number) for number in range(100)]
    asked = [Ending(None, one.ids, one.ends[-1:] if last else one.ends) for one, _ in rows]
    (done,) = run_jobs([scorer.scores(asked)], LocalEngine(own), slots=1)
    assert done.value is not None
    truth = [[float(all(labels))] if last else list(labels) for _, labels in rows]
    return [score for own in done.value for score in own], [one for own in truth for one in own]


ROWS = [drawn(number) for number in range(400)]


def test_a_process_reward_model_learns_which_spans_are_good() -> None:
    found = prepare_rows(ROWS, default_tags(policy().tokenizer), context=48)
    assert not found.refused
    own = trained(span_labels_objective(), found.sequences)
    report = evaluate_calibration(*judged(SpanScorer(default_tags(own.tokenizer)), own))
    assert report.accuracy > 0.95 and report.auc > 0.97 and report.error < 0.1


def test_a_verifier_learns_to_say_which_spans_are_good() -> None:
    verdict = VerdictPrompt((11, 4), yes=5, no=2)
    own = trained(
        weighted_nll, [build_verdict_tree(solution, labels, verdict) for solution, labels in ROWS], updates=40
    )
    assert evaluate_calibration(*judged(GenerativeScorer(verdict), own)).accuracy > 0.93


def test_values_and_outcomes_are_learned() -> None:
    valued = [build_value_row(one, td_targets(2.0 * all(labels) - 1.0, 3), token=2) for one, labels in ROWS]
    own = trained(value_objective(), valued)
    assert own.value_head is not None
    scores, truth = judged(ValueScorer(own.value_head, low=-1.0), own, last=True)
    assert evaluate_calibration(np.clip(scores, 0, 1), truth).accuracy > 0.8
    own = trained(outcome, [build_outcome_row(one, float(all(labels)), token=2) for one, labels in ROWS])
    assert own.value_head is not None
    report = evaluate_calibration(*judged(OutcomeScorer(own.value_head), own, last=True))
    assert report.accuracy > 0.9 and report.auc > 0.93
