"""TS-LLM: what is learned from what, that a hidden reward stays hidden, going on after a stop."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import evolvent as ev
from evolvent.curate.chosen import select_best_per_task, select_distinct
from evolvent.engine.driver import run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.learn.objectives import outcome, value_objective
from evolvent.learn.preferences import append_readout
from evolvent.learn.token_sequences import TokenSequence, flatten
from evolvent.methods.tsllm import ALIGNMENT, GAME24, GSM8K, RewardModelScores, TSLLMConfig, select_best, tsllm
from evolvent.models.heads import fresh_head
from evolvent.models.policy import Policy
from evolvent.reward.endings import Ending
from evolvent.reward.scoring import build_judge_rows, judge_objective, make_span_splitter, replace_score, score_episodes
from evolvent.reward.values import ValueScorer
from evolvent.run import Run
from evolvent.search.settings import SearchConfig
from evolvent.trajectory import ErrorRecord, Generation, Score, Step, Task, Trajectory
from tests.methods.spelling import WORDS, Hidden, Spell, babbling, run_of, tasks_of
from tests.rl.acting import Echo, talking
from tests.rl.acting import run_of as acting_run

SMALL = SearchConfig(
    method="mcts", paths=1, sampled=True, width=3, depth=4, simulations=3, max_tokens=8, span_tokens=4, temperature=1.0
)


def small(**more):
    return TSLLMConfig(**{"rounds": 1, "samples": 4, "trajectories": 2, "temperature": 1.0, "search": SMALL, **more})


@pytest.fixture(scope="module")
def babbler(tmp_path_factory) -> Policy:
    return babbling(tmp_path_factory.mktemp("babbler"), Spell(), tokens=2500)


def same(first: Policy, second: Policy) -> bool:
    weights = [policy.model.state_dict() for policy in (first, second)]
    return all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


class Noting(Run[Policy]):
    """Keeps what it is told to learn from."""

    def fit(self, policy, data, objective, **more):
        self.__dict__.setdefault("learned", []).append((list(data), objective.name))
        return super().fit(policy, data, objective, **more)


def noting(folder, world):
    """A run whose random numbers do not depend on the code of its world."""
    run = run_of(folder, world)
    run._code = {}  # seeds of later stages follow from it
    run.__class__ = Noting
    return run


def episode(name: str, ids: list[int], unit: float | None, *, task: int = 0, error: bool = False) -> Trajectory:
    sampled = np.arange(2 + len(ids)) >= 2
    wrote = Generation(np.asarray([1, 2, *ids], np.int32), sampled, np.zeros(len(sampled), np.float32))
    ended = {"ended_by": "error", "error": ErrorRecord("E", "e")} if error else {}
    return Trajectory(
        name,
        Task("toy", "1", {"n": task}),
        (Step("o", "a", unit, None, (wrote,)),),
        score=Score(unit, unit, None if unit is None else unit == 1.0),
        **ended,
    )


# ------------------------------------------------------------------ choosing


def test_each_text_is_kept_once_and_so_many_of_a_task() -> None:
    found = [
        episode("a", [5], 1.0),
        episode("b", [5], 1.0),
        episode("c", [6], 0.0),
        episode("d", [7], None),
        episode("e", [5], 1.0, task=1),
        episode("f", [8], 1.0, error=True),
    ]
    assert [one.id for one in select_distinct(found)] == ["a", "c", "d", "e"]
    assert [one.id for one in select_distinct(found, 2)] == ["a", "c", "e"]
    told = [replace(one, steps=(Step("o", text),)) for one, text in zip(found[:3], "xxy", strict=True)]
    assert [one.id for one in select_distinct(told)] == ["a", "c"], "records without tokens are told by their actions"


def test_the_best_of_each_task_are_kept_none_below_the_threshold() -> None:
    found = [
        episode("a", [5], 0.2),
        episode("b", [6], 0.9),
        episode("c", [7], 0.9),
        episode("d", [8], None),
        episode("e", [9], 0.1, task=1),
        episode("g", [6], 0.9),
    ]
    assert [one.id for one in select_best(found, TSLLMConfig(threshold=0.0, per_task=2))] == ["b", "c", "e"]
    assert [one.id for one in select_best(found, TSLLMConfig(threshold=0.15))] == ["b", "c", "a"]
    assert select_best(found, TSLLMConfig()) == []
    assert select_best_per_task(found, lambda one: float("nan")) == []


# ------------------------------------------------------------------ what is learned from what


def test_the_best_are_imitated_and_the_judge_learns_old_and_new(tmp_path, babbler) -> None:
    world, config = Spell(), small(rounds=2, per_task=1, samples=6, distinct=3)
    tasks = tasks_of(world, 12)
    shown = ev.collect_demonstrations([world], [])
    with noting(tmp_path, world) as run:
        tsllm(babbler, tasks, config=config, run=run, demonstrations=shown)
        learned, store = run.learned, list(run.store.trajectories())
    first, *rounds = learned
    assert [name for _, name in learned] == ["value", *["weighted_nll", "value"] * 2]
    by_id = {one.id: one for one in store}
    stages = {one.id: one.id.split("-")[2].split("/")[0] for one in store}
    before = [by_id[part.trajectory] for part in first[0]]
    assert {stages[one.id] for one in before} == {"collect"}
    assert all(sum(one.task.id == task.id for one in before) <= 3 for task in tasks), "at most 3 of a task, distinct"
    assert len({(one.task.id, str(one.actions)) for one in before}) == len(before)
    for number, at in ((1, 0), (2, 2)):
        best, judged = rounds[at][0], rounds[at + 1][0]
        assert best and all(one.success and stages[one.id] == "search" for one in best)
        assert len({one.task.id for one in best}) == len(best), "one of a task, the best of all rounds"
        searched = [part.trajectory for part in judged if stages[part.trajectory] == "search"]
        assert {part.trajectory for part in first[0]} <= {part.trajectory for part in judged}
        assert {name.split("-")[1] for name in searched} == {str(n) for n in range(1, number + 1)}
        for part in judged:  # the outcome at the end of both spans, and nowhere else
            found = part.columns["returns"][part.weight != 0]
            ids = by_id[part.trajectory].steps[0].generations[0]
            ends = make_span_splitter(babbler, SMALL.separators, max_tokens=8)(ids.ids[ids.sampled].tolist())
            assert found.tolist() == [by_id[part.trajectory].score.unit] * len(ends)
            assert np.flatnonzero(part.weight).tolist() == [int((~ids.sampled).sum()) + end for end in ends]
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["arm"], row["round"]) for row in rows] == [
        ("base", 0),
        ("evolve", 1),
        ("guided", 1),
        ("evolve", 2),
        ("guided", 2),
    ]
    assert len(store) == 12 * 6 + 2 * 12 * 2 + 5 * 8


def test_demonstrations_are_imitated_beside_what_was_found(tmp_path, babbler) -> None:
    world = Spell()
    said = {task.id: " ; ".join(task.spec["words"]) for task in tasks_of(world, 20)}
    script = ev.Script(lambda world, task: [said[task.id]])
    shown = list(ev.collect({"spell": world}, [ev.Start(t) for t in tasks_of(world, 20)[12:]], script, engine=None))
    with noting(tmp_path, world) as run:
        tsllm(babbler, tasks_of(world, 4), config=small(guided=False), run=run, demonstrations=shown)
        (imitated, name) = run.learned[1]
    assert name == "weighted_nll" and imitated[: len(shown)] == shown


def test_where_nothing_was_found_the_policy_stays(tmp_path) -> None:
    world = Spell()
    silent = babbling(tmp_path / "silent", world, right=-1.0, tokens=300)
    with noting(tmp_path / "run", world) as run:
        policy, judge = tsllm(silent, tasks_of(world, 3), config=small(guided=False), run=run)
        assert [name for _, name in run.learned] == ["value", "value"]
    assert policy is silent and judge.value_head is not None


def test_a_stopped_run_ends_as_if_it_had_not_been(tmp_path, babbler) -> None:
    world, tasks = Spell(), tasks_of(Spell(), 6)
    config = small(rounds=2, guided=False)

    class Stops(Run[Policy]):
        fits = 0

        def fit(self, *arguments, **more):
            self.fits += 1
            if self.fits == 3:
                raise KeyboardInterrupt
            return super().fit(*arguments, **more)

    with run_of(tmp_path / "whole", world) as run:
        whole = tsllm(babbler, tasks, config=config, run=run)
    with run_of(tmp_path / "cut", world) as run, pytest.raises(KeyboardInterrupt):
        run.__class__ = Stops
        tsllm(babbler, tasks, config=config, run=run)
    for _ in range(2):  # going on, and with nothing left to do
        with run_of(tmp_path / "cut", world) as run:
            again = tsllm(babbler, tasks, config=config, run=run)
        assert same(again[0], whole[0]) and same(again[1], whole[1])
    stages = (tmp_path / "cut" / "stages.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(stages) == len((tmp_path / "whole" / "stages.jsonl").read_text(encoding="utf-8").splitlines())


# ------------------------------------------------------------------ turns, and tokens


def test_episodes_of_turns_are_searched_and_judged_turn_by_turn(tmp_path) -> None:
    world = Echo()
    policy = talking(tmp_path / "talk", world)
    how = SearchConfig(method="mcts", paths=1, sampled=True, width=3, depth=2, simulations=3, span_tokens=3)
    tasks = world.tasks("train", "seen")[:8]
    with acting_run(tmp_path / "run", world) as run:
        run.__class__ = Noting
        _, judge = tsllm(policy, tasks, config=small(samples=6, search=how, threshold=0.5), run=run)
        (first, _), (best, _), _ = run.learned
        found = {one.id: one for one in run.store.trajectories()}
    assert judge.value_head is not None and best and all(len(one.steps) == 2 for one in best)
    assert all(one.score.unit >= 0.5 for one in best)
    for part in first:  # both places where it is to act, and behind the last observation
        assert np.count_nonzero(part.weight) == 3
        assert set(part.columns["returns"][part.weight != 0].tolist()) == {found[part.trajectory].score.unit}


class Inverted(Echo):
    """It pays for wrong words."""

    def play(self, spec):
        said = yield f"say {spec['first']}"
        said = yield f"say {spec['then']}", float(said.strip() != spec["first"])
        return float(said.strip() != spec["then"])


def test_a_judge_alone_guides_unless_the_ends_are_to_be_paid(tmp_path) -> None:
    policy = talking(tmp_path / "talk", Echo())
    head = fresh_head(policy.model.config.hidden_size, seed=3)
    torch.nn.init.normal_(head.outer.weight)
    judge = replace(policy, value_head=head)
    starts = [ev.Start(task) for task in Echo().tasks("train", "seen")[:8]]
    said = {}
    for terminal in ("value", "reward"):
        how = SearchConfig(method="beam", width=4, paths=4, depth=2, span_tokens=3, terminal=terminal)
        for world in (Echo(), Inverted()):
            name = f"{terminal}-{type(world).__name__}"
            with acting_run(tmp_path / name, world) as run:
                said[name] = [one.actions for one in run.search(policy, starts, how, value_model=judge)]
    assert said["value-Echo"] == said["value-Inverted"], "what is earned on the way is no part of what it sees"
    assert said["reward-Echo"] != said["reward-Inverted"]


def test_the_rows_of_a_judge_follow_the_level_and_the_form(babbler) -> None:
    ids = babbler.tokenizer.convert_tokens_to_ids
    text = episode("x", [ids("red"), ids(";"), ids("blue")], 0.5)
    refused = [replace(text, steps=()), replace(text, score=Score()), episode("long", [ids("red")] * 60, 1.0)]
    span = build_judge_rows([text, *refused], babbler, SMALL)
    assert [np.flatnonzero(part.weight).tolist() for part in span] == [[4, 5]]
    token = build_judge_rows([text], babbler, SMALL.model_copy(update={"level": "token", "score": "outcome"}))
    assert np.flatnonzero(token[0].weight).tolist() == [3, 4, 5]
    assert token[0].columns["outcome"][3:].tolist() == [0.5] * 3
    assert repr(judge_objective(SMALL)) == repr(value_objective())
    assert judge_objective(SMALL.model_copy(update={"score": "outcome"})) is outcome
    with pytest.raises(ev.ConfigError, match="cannot learn from outcomes"):
        judge_objective(SMALL.model_copy(update={"score": "process"}))


# ------------------------------------------------------------------ a reward model in the world's place


def compared(policy: Policy, *, likes: str, count: int = 40) -> list[TokenSequence]:
    """Read-outs of pairs: answers with a word against answers without it."""
    world, parts = Spell(), []
    for number in range(count):
        a, b = WORDS[number % 4], WORDS[(number // 4) % 4]
        for side, words in enumerate(((likes, b), (b if b != likes else "grey", "grey"))):
            one = Trajectory(f"pair/{number}/{side}", tasks_of(world)[0], (Step(f"say {a} {b}", " ; ".join(words)),))
            flat = flatten([one], policy.dialect, instructions=lambda task: "", context=policy.context)
            parts.append(append_readout(flat.sequences[0], token=min(policy.dialect.stop_ids)))
    return parts


def test_rewards_are_the_heads_output_behind_the_last_token(babbler) -> None:
    head = fresh_head(babbler.model.config.hidden_size, seed=3)
    torch.nn.init.normal_(head.outer.weight)
    model = replace(babbler, value_head=head)
    found = [
        episode("a", [8, 9, 10], 1.0),
        episode("b", [11], 0.0),
        episode("c", [9], 0.0, error=True),
        episode("d", [8] * 60, 0.0),
    ]
    rewards = score_episodes(model, found)
    paths = [tuple(one.steps[0].generations[0].ids.tolist()) for one in found[:2]]
    asked = [Ending(None, path, (len(path),)) for path in paths]
    (done,) = run_jobs([ValueScorer(head).scores(asked)], LocalEngine(model), slots=1)
    assert rewards[:2] == pytest.approx([score for (score,) in done.value], abs=1e-5)
    assert np.isnan(rewards[2:]).all(), "one that failed, and one that does not fit"


def test_scores_are_normalised_over_the_first_samples_and_replace_all_that_was_paid(babbler) -> None:
    scores = RewardModelScores(babbler, mean=2.0, deviation=0.5)
    assert scores.unit_score(2.0) == 0.5 and scores.unit_score(2.5) == pytest.approx(1 / (1 + np.exp(-1)))
    assert (
        scores.unit_score(float("nan")) is None
        and scores.unit_score(-1e9) == pytest.approx(0.0)
        and scores.unit_score(1e9) == 1.0
    )
    two = replace(episode("a", [5], 1.0), steps=(Step("o", "a", 0.7), Step("o", "b", 0.3)))
    other = replace_score(two, 0.25)
    assert other.rewards == (0.0, 0.25) and other.score == Score(0.25, 0.25, None)
    assert replace_score(two, None).rewards == (None, None) and replace_score(two, None).score == Score()


def test_a_hidden_reward_is_never_learned_from(tmp_path, babbler) -> None:
    """Where the world pays nothing in training the result is the same, bit for bit, as where it pays."""
    config = small(reward="model", threshold=0.0, per_task=1, guided=False)
    liked = compared(babbler, likes="green")
    found = {}
    for name, world in (("told", Spell()), ("hidden", Hidden())):
        with noting(tmp_path / name, world) as run:
            found[name] = tsllm(babbler, tasks_of(world, 8), config=config, run=run, preferences=liked)
            assert [objective for _, objective in run.learned] == ["reward_pairs", "value", "weighted_nll", "value"]
            scores = [one.score for one in run.store.trajectories() if "-evaluate-" not in one.id]
            assert {score.unit for score in scores} == ({None} if name == "hidden" else {0.0, 1.0})
            imitated, judged = run.learned[2][0], run.learned[3][0]
            rows = run.evaluate(found[name][0], 1)
    assert all(same(told, hidden) for told, hidden in zip(found["told"], found["hidden"], strict=True))
    assert all(one.success is None and 0 < one.score.unit < 1 for one in imitated) and len(imitated) == 8
    assert len({part.unit for part in judged}) > 8, "the model's scores, and not two of the world's"
    assert rows[0].mean is not None, "measured by the true reward"


def test_what_a_reward_model_likes_is_what_is_learned(tmp_path, babbler) -> None:
    world = Hidden()
    config = small(reward="model", threshold=0.0, per_task=1, guided=False, trajectories=4)
    with noting(tmp_path, world) as run:
        liked = compared(babbler, likes="green", count=120)
        tsllm(babbler, tasks_of(world, 40), config=config, run=run, preferences=liked)
        tried = [one for one in run.store.trajectories() if "-collect-" in one.id]
        best = run.learned[2][0]
    green = [np.mean(["green" in str(one.actions[0]) for one in these]) for these in (tried, best)]
    assert green[1] >= green[0] + 0.2


# ------------------------------------------------------------------ settings and refusals


@pytest.mark.parametrize("preset", [GSM8K, GAME24, ALIGNMENT])
def test_presets_are_settings(preset) -> None:
    config = TSLLMConfig(**preset)
    assert config.search.sampled and config.search.paths == 1 and config.distinct == 17
    assert (config.search.level == "token") == (config.reward == "model")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"search": SearchConfig(score="process")}, "got 'process', expected 'value' or 'outcome'"),
        ({"search": SearchConfig(value="rollouts")}, "true rewards of evaluation tasks"),
        ({"reward": "model", "search": SearchConfig(value="rollouts")}, "search.value = 'rollouts'"),
        ({"reward": "model", "search": SearchConfig(terminal="reward")}, "search.terminal = 'reward'"),
    ],
)
def test_settings_that_contradict_each_other(settings, what) -> None:
    with pytest.raises(ValueError, match=what):
        TSLLMConfig(**settings)


def test_what_is_measured_is_not_learned_from(tmp_path, babbler) -> None:
    world = Spell()
    with noting(tmp_path, world) as run:
        with pytest.raises(ev.ConfigError, match="training tasks are also evaluation tasks"):
            tsllm(babbler, [*tasks_of(world, 2), world.tasks("test", "seen")[0]], config=small(), run=run)
        with pytest.raises(ev.ConfigError, match="pass pairs, or set reward to 'world'"):
            tsllm(babbler, tasks_of(world, 2), config=small(reward="model"), run=run)
        assert not hasattr(run, "learned")
