"""OpenR: process rewards by hand, scores against the engine's, every way of learning, going on after a stop."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import evolvent as ev
from evolvent.engine.driver import run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.errors import BatchMismatch
from evolvent.learn.token_sequences import flatten
from evolvent.methods.openr import PUBLISHED, OpenRConfig, build_preset, openr
from evolvent.models.policy import Policy
from evolvent.reward.endings import Ending
from evolvent.reward.labelling import LabellingConfig
from evolvent.reward.offline import build_sibling_pairs
from evolvent.reward.paying import add_process_rewards, span_credit
from evolvent.reward.process import SpanScorer, default_tags
from evolvent.reward.scoring import (
    build_advantage_rows,
    collect_solutions,
    group_siblings,
    make_span_splitter,
    mark_spans,
    score_spans,
)
from evolvent.reward.solutions import Solution
from evolvent.rl.advantages import normalize_over_buffer
from evolvent.rl.presets import GRPO, OPENR_APPO, OPENR_TPPO
from evolvent.rl.rollout_batch import build_rollout_batch
from evolvent.rl.scored_rollout import ScoredRollout
from evolvent.rl.trainer import PolicyTrainer
from evolvent.run import Run
from evolvent.search.settings import SearchConfig
from evolvent.trajectory import Generation, Score, Step, Task, Trajectory
from tests.methods.spelling import Hidden, Spell, babbling, run_of, tasks_of
from tests.rl.acting import Echo, quick, talking
from tests.rl.acting import run_of as acting_run

LABELLING = LabellingConfig(kind="shepherd", count=4, max_tokens=8)
GUIDED = SearchConfig(method="beam", score="process", width=3, paths=2, depth=4, max_tokens=8, span_tokens=4)


def small(**more):
    practice = more.pop("practice", quick(iterations=2, tasks_per_iteration=6, group_size=4))
    return OpenRConfig(**{"samples": 4, "labelling": LABELLING, "search": GUIDED, "practice": practice, **more})


@pytest.fixture(scope="module")
def babbler(tmp_path_factory) -> Policy:
    return babbling(tmp_path_factory.mktemp("babbler"), Spell(), tokens=2500)


def same(first: Policy, second: Policy) -> bool:
    weights = [policy.model.state_dict() for policy in (first, second)]
    return all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def episode(name: str, read: list[int], wrote: list[int], *, unit: float | None = 1.0, task: int = 0) -> Trajectory:
    sampled = np.arange(len(read) + len(wrote)) >= len(read)
    one = Generation(np.asarray([*read, *wrote], np.int32), sampled, np.full(len(sampled), -0.5, np.float32) * sampled)
    return Trajectory(
        name,
        Task("toy", "1", {"n": task}),
        (Step("o", "a", unit, None, (one,)),),
        score=Score(unit, unit, None if unit is None else unit == 1.0),
    )


def after(*tokens: int):
    """Spans that end behind these tokens."""
    return lambda ids: [at + 1 for at, token in enumerate(ids) if token in tokens or at == len(ids) - 1]


def seen_of(played: list[Trajectory], policy: Policy) -> ScoredRollout:
    chains = flatten(played, policy.dialect, instructions=lambda task: "", context=64, stops=True).sequences
    found, report = build_rollout_batch(played, chains)
    return ScoredRollout(played, chains, found, report, {}, tuple(played[number] for number in report.episode_index))


# ------------------------------------------------------------------ process rewards by hand


TWO = [episode("a", [1, 2], [8, 7, 9, 9, 7, 10]), episode("b", [1, 2, 3], [8, 9], unit=0.0)]
SCORES = {"a": np.array([0.5, 0.75, 0.25]), "b": np.array([0.1])}


def test_spans_are_noted_where_credit_looks_for_them(babbler) -> None:
    first, second = (mark_spans(one, after(7)) for one in TWO)
    assert first.steps[0].generations[0].spans == (4, 7, 8) and second.steps[0].generations[0].spans == (5,)
    seen = seen_of([first, second], babbler)
    assert seen.batch.span.tolist() == [0, 0, 1, 1, 1, 2, 3, 3]
    read = replace(TWO[0].steps[0].generations[0], sampled=np.roll(TWO[0].steps[0].generations[0].sampled, 1))
    odd = replace(TWO[0], steps=(replace(TWO[0].steps[0], generations=(read,)),))
    assert mark_spans(odd, after(7)) == odd, "what is no prompt with a response behind it stays"


def test_each_spans_score_is_paid_on_its_last_part(babbler) -> None:
    seen = seen_of([mark_spans(one, after(7)) for one in TWO], babbler)
    assert seen.batch.reward.tolist() == [0, 0, 0, 0, 0, 1, 0, 0], "what the world paid stays: here all of it"
    paid = add_process_rewards(seen, SCORES)
    assert paid.batch.reward.tolist() == pytest.approx([0, 0.5, 0, 0, 0.75, 1.25, 0, 0.1])
    gain = add_process_rewards(seen, SCORES, gain=True).batch.reward
    assert gain.tolist() == pytest.approx([0, 0.5, 0, 0, 0.25, 0.5, 0, 0.1])
    assert gain[:6].sum() == pytest.approx(1.25), "the last score and the outcome, however many spans there are"
    assert seen.batch.reward.sum() == 1, "the handed-in record stays"
    with pytest.raises(BatchMismatch, match="a score for each span"):
        add_process_rewards(seen, {"a": SCORES["a"]})
    with pytest.raises(BatchMismatch, match="'a'"):
        add_process_rewards(seen, {**SCORES, "a": np.array([0.5, 0.5])})


def test_spans_are_compared_over_the_whole_buffer(babbler) -> None:
    seen = seen_of(
        [replace(mark_spans(one, after(7)), steps=_unpaid(mark_spans(one, after(7)))) for one in TWO], babbler
    )
    found = span_credit(add_process_rewards(seen, SCORES).batch)
    each = (np.array([0.5, 0.75, 0.25, 0.1]) - 0.4) / np.std([0.5, 0.75, 0.25, 0.1])
    assert found.advantage == pytest.approx(each[[0, 0, 1, 1, 1, 2, 3, 3]])
    assert found.returns.tolist() == pytest.approx([0.5, 0.5, 0.75, 0.75, 0.75, 0.25, 0.1, 0.1])
    assert normalize_over_buffer([0.5, 0.75, 0.25, 0.1]) == pytest.approx(each)


def test_a_first_span_is_compared_with_the_first_spans_of_its_task(babbler) -> None:
    """Paid over 0, the first span of every solution looks better than any that follows, whatever it says."""
    other = episode("c", [1, 2, 3], [8, 9], task=1)
    seen = seen_of(
        [replace(one, steps=_unpaid(one)) for one in (mark_spans(each, after(7)) for each in (*TWO, other))], babbler
    )
    scores = {**SCORES, "c": np.array([0.8])}
    paid = add_process_rewards(seen, scores, gain=True, over_task_mean=True).batch
    # The mean first score of the task of a and b is .3, and c is its task's only solution.
    assert paid.reward.tolist() == pytest.approx([0, 0.2, 0, 0, 0.25, -0.5, 0, -0.2, 0, 0])
    over_zero = add_process_rewards(seen, scores, gain=True).batch
    assert span_credit(over_zero).advantage[-1] > 1 > span_credit(paid).advantage[-1] > 0


def _unpaid(one: Trajectory) -> tuple[Step, ...]:
    return tuple(replace(step, reward=0.0) for step in one.steps)


def test_scores_are_those_of_the_search_at_the_same_places(babbler) -> None:
    tags = default_tags(babbler.tokenizer)
    solutions = {
        "a": Solution((1, 2, 8), ((9, 7), (10,), (11, 8))),
        "b": Solution((1, 2), ((8,),)),
        "long": Solution((1, 2), ((8,) * 20, (9,) * 25)),
    }
    found = score_spans(babbler, solutions, tags)
    assert set(found) == {"a", "b"}, "no room for a tag behind 47 of 48 tokens"
    asked = [Ending(None, one.ids, one.ends) for one in list(solutions.values())[:2]]
    (done,) = run_jobs([SpanScorer(tags).scores(asked)], LocalEngine(babbler), slots=1)
    for mine, theirs in zip(found.values(), done.value, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)
    assert len({round(float(score), 5) for own in found.values() for score in own}) == 4


# ------------------------------------------------------------------ offline


SOLUTIONS = {
    "a": Solution((1,), ((5,), (6, 7))),
    "b": Solution((1,), ((5,), (8,))),
    "c": Solution((1,), ((9,),)),
    "other": Solution((2,), ((5,),)),
    "unscored": Solution((1,), ((4,),)),
}
JUDGED = {"a": np.array([0.6, 0.9]), "b": np.array([0.6, 0.1]), "c": np.array([0.2]), "other": np.array([0.3])}


def test_siblings_are_what_was_written_after_one_prefix() -> None:
    first, second = group_siblings(SOLUTIONS, JUDGED)
    assert (first.prompt, first.prefix, first.spans, first.values) == ((1,), (), ((5,), (9,)), (0.6, 0.2))
    assert (second.prefix, second.spans, second.values) == ((5,), ((6, 7), (8,)), (0.9, 0.1))
    chosen = build_sibling_pairs([first, second])
    assert [part.ids.tolist() for part in chosen] == [[1, 5], [1, 9], [1, 5, 6, 7], [1, 5, 8]]


def test_spans_are_weighted_by_what_they_gain() -> None:
    tasks = {"a": "t", "b": "t", "c": "t", "other": "u", "unscored": "t"}
    parts = build_advantage_rows(SOLUTIONS, JUDGED, tasks, beta=0.5)
    before = (0.6 + 0.6 + 0.2) / 3
    assert [part.ids.tolist() for part in parts] == [[1, 5, 6, 7], [1, 5, 8], [1, 9], [2, 5]]
    weights = [np.exp(np.array(gain) / 0.5) for gain in ([0.6 - before, 0.3], [0.6 - before, -0.5], [0.2 - before])]
    assert parts[0].weight == pytest.approx([0, weights[0][0], weights[0][1], weights[0][1]])
    assert parts[1].weight == pytest.approx([0, *weights[1]]) and parts[2].weight == pytest.approx([0, *weights[2]])
    assert parts[3].weight.tolist() == [0, 1], "alone in its task: nothing is known to compare it with"
    assert build_advantage_rows(SOLUTIONS, JUDGED, tasks, beta=0.01)[0].weight.max() == pytest.approx(20.0), "capped"


# ------------------------------------------------------------------ all of it


class Noting(Run[Policy]):
    """Keeps what it is told to learn from."""

    def fit(self, policy, data, objective, **more):
        self.__dict__.setdefault("learned", []).append((list(data), objective.name))
        return super().fit(policy, data, objective, **more)


def results(folder):
    lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [(row["arm"], row["round"]) for row in map(json.loads, lines)]


@pytest.mark.parametrize(
    ("online", "offline"),
    [("none", "rft"), ("appo", "none"), ("tppo", "awr"), ("grpo", "dpo"), ("grpo_buffer", "none"), ("none", "none")],
)
def test_every_way_of_learning(tmp_path, babbler, online, offline) -> None:
    world, tasks = Spell(), tasks_of(Spell(), 10)
    config = small(online=online, offline=offline, per_task=1, margin=0.0)
    with run_of(tmp_path, world) as run:
        run.__class__ = Noting
        policy, prm = openr(babbler, tasks, config=config, run=run)
        learned, found = run.learned, {one.id: one for one in run.store.trajectories()}
    rounds = [("evolve", 2)] * (online != "none") + [("evolve", 3 if online != "none" else 2)] * (offline != "none")
    last = rounds[-1][1] if rounds else 1
    assert results(tmp_path) == [("base", 0), *rounds, ("guided", last)]
    assert learned[0][1] == "span_labels" and not same(policy, prm)
    assert same(policy, babbler) == (online == offline == "none")
    if offline == "rft":
        best = learned[1][0]
        assert best and all(one.success for one in best) and len({one.task.id for one in best}) == len(best)
        right = [one for one in found.values() if "-collect-" in one.id and one.success]
        spans = make_span_splitter(babbler, LABELLING.separators, max_tokens=8)
        scores = score_spans(prm, collect_solutions(right, spans), default_tags(prm.tokenizer))
        for one in best:
            rivals = [scores[other.id].min() for other in right if other.task.id == one.task.id]
            assert scores[one.id].min() == pytest.approx(max(rivals), abs=1e-6), "that of the best weakest span"
    if offline == "awr":
        assert all(part.trajectory in found and part.weight.max() <= 20 for part in learned[1][0])
    if offline == "dpo":
        (pairs, name) = learned[1]
        assert name == "dpo" and len(pairs) % 2 == 0 and all("reference" in part.columns for part in pairs)


def test_online_learning_is_paid_by_the_judge_alone(tmp_path, babbler, monkeypatch) -> None:
    """The world pays nothing in training; with an outcome to be paid too, such episodes are not scored."""
    world, tasks = Spell(), tasks_of(Spell(), 10)
    looks: list[tuple[ScoredRollout, Policy]] = []
    improve = PolicyTrainer.update

    def noted(self, seen, credit, **more):
        looks.append((seen, self.policy))
        improve(self, seen, credit, **more)

    monkeypatch.setattr(PolicyTrainer, "update", noted)
    with run_of(tmp_path / "told", world) as run:
        _, prm = openr(babbler, tasks, config=small(), run=run)
    spans = make_span_splitter(babbler, LABELLING.separators, max_tokens=8)
    for seen, _ in looks:
        assert {one.score.unit for one in seen.trajectories} <= {0.0, 1.0} and len(seen.episodes) == len(
            seen.trajectories
        )
        scores = score_spans(prm, collect_solutions(seen.trajectories, spans), default_tags(prm.tokenizer))
        ends = np.flatnonzero(np.append(np.diff(seen.batch.span), 1))
        paid = np.concatenate([scores[one.id] for one in seen.episodes])
        assert seen.batch.reward[ends] == pytest.approx(paid, abs=1e-6)
        assert np.count_nonzero(seen.batch.reward) == len(paid) and len(paid) > len(seen.episodes)
    looks.clear()
    with run_of(tmp_path / "both", world) as run:
        openr(babbler, tasks, config=small(reward="gain", outcome=2.0), run=run)
    for seen, _ in looks:
        scores = score_spans(prm, collect_solutions(seen.trajectories, spans), default_tags(prm.tokenizer))
        per_episode = np.bincount(seen.batch.episode_of_token, weights=seen.batch.reward)
        wanted = [scores[one.id][-1] + 2.0 * one.score.unit for one in seen.episodes]
        assert per_episode == pytest.approx(wanted, abs=1e-5)


def test_labels_come_from_the_samples_of_each_task(tmp_path, babbler) -> None:
    world, tasks = Spell(), tasks_of(Spell(), 4)
    for kind in ("shepherd", "omega"):
        labelling = LabellingConfig(kind=kind, count=8, rollouts=48, searches=4, max_tokens=8)
        with run_of(tmp_path / kind, world) as run:
            asked = []
            label = run.label
            run.label = lambda policy, data, how, label=label, asked=asked: (
                asked.extend(data) or label(policy, data, how)
            )
            openr(babbler, tasks, config=small(online="none", labelling=labelling), run=run)
        of = [one.task.id for one in asked]
        assert set(of) == {task.id for task in tasks}
        assert (len(of) == len(set(of))) == (kind == "omega"), "a whole task is explored from its prompt, once"
        assert len({(one.task.id, str(one.actions)) for one in asked}) == len(asked), "no text is labelled twice"


def test_a_stopped_run_ends_as_if_it_had_not_been(tmp_path, babbler, monkeypatch) -> None:
    world, tasks = Spell(), tasks_of(Spell(), 6)
    config = small(offline="awr", practice=quick(iterations=3, tasks_per_iteration=4, group_size=2, critic="separate"))

    def learn(folder):
        with run_of(folder, world) as run:
            return openr(babbler, tasks, config=config, run=run)

    whole, improve = learn(tmp_path / "whole"), PolicyTrainer.update

    def stops(self, seen, credit, **more):
        if self.iteration == 2:
            raise KeyboardInterrupt
        improve(self, seen, credit, **more)

    monkeypatch.setattr(PolicyTrainer, "update", stops)
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "cut")
    monkeypatch.undo()
    for _ in range(2):  # going on, and with nothing left to do
        again = learn(tmp_path / "cut")
        assert same(again[0], whole[0]) and same(again[1], whole[1])
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


# ------------------------------------------------------------------ settings and refusals


def test_the_settings_of_the_paper() -> None:
    config = OpenRConfig(**PUBLISHED)
    assert build_preset(config) == OPENR_APPO and config.labelling.count == 16 and config.search.rule == "vote"
    assert build_preset(OpenRConfig(online="tppo")) == OPENR_TPPO and build_preset(OpenRConfig(online="grpo")) == GRPO
    own = build_preset(OpenRConfig(practice=quick(critic="separate", temperature=0.7)))
    assert own.loss.value_loss is None and own.loss.temperature == 0.7


@pytest.mark.parametrize(
    ("search", "what"),
    [
        (SearchConfig(method="mcts"), "the judge is a process model"),
        (SearchConfig(score="process", value="rollouts"), "asks for true rewards when measuring"),
        (SearchConfig(score="process", level="token"), "the judge knows ends of spans"),
        (SearchConfig(score="process", separators=("x",)), "others than labelling.separators"),
    ],
)
def test_a_judge_is_asked_where_it_was_trained(search, what) -> None:
    with pytest.raises(ValueError, match=what):
        OpenRConfig(search=search)


def test_refusals(tmp_path, babbler) -> None:
    world = Spell()
    with (
        run_of(tmp_path / "held", world) as run,
        pytest.raises(ev.ConfigError, match="training tasks are also evaluation tasks"),
    ):
        openr(babbler, [*tasks_of(world, 2), world.tasks("test", "seen")[0]], config=small(), run=run)
    hidden = Hidden()
    with run_of(tmp_path / "hidden", hidden) as run, pytest.raises(ev.ConfigError, match="no solution could be"):
        openr(babbler, tasks_of(hidden, 2), config=small(), run=run)
    echo = Echo()
    with (
        acting_run(tmp_path / "turns", echo) as run,
        pytest.raises(ev.ConfigError, match="single-turn responses, some correct and some incorrect"),
    ):
        openr(talking(tmp_path / "talk", echo), echo.tasks("train", "seen")[:2], config=small(), run=run)
