"""Pairs by score, read-outs, returns-to-go; and that reward models and values are learned from them."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_training import small_policy

from evolvent.errors import ConfigError, ErrorRecord, SampleInvalid
from evolvent.learn.preferences import add_returns, append_outcome_readout, append_readout, build_pairs
from evolvent.learn.rows import ReadingConfig, read_trajectories
from evolvent.learn.token_sequences import TokenSequence, collate_packed, collate_padded, flatten
from evolvent.learn.windows import Intake
from evolvent.trajectory import Generation, Score, Step, Task, Trajectory

POLICY = small_policy(layers=1)
EOS = 2
SAY = ["go", "take", "drop", "north", "south", "lamp", "key", "door"]


def played(name: str, unit: float | None, *, task: int = 0, group: str | None = None, **more: Any) -> Trajectory:
    action = SAY[int(name.rpartition("-")[2]) % len(SAY)]
    return Trajectory(
        name,
        Task("small", "1", {"n": task}),
        (Step("you see a door", action),),
        score=Score(unit, unit, None),
        group=group,
        **more,
    )


def paired(trajectories: list[Trajectory], **more: Any) -> Any:
    return build_pairs(trajectories, POLICY.dialect, **{"instructions": lambda task: "", "context": 64, **more})


def named(found: Any) -> list[tuple[str, str]]:
    return [(a.trajectory, b.trajectory) for a, b in zip(found.sequences[::2], found.sequences[1::2], strict=True)]


def test_the_better_score_is_chosen_within_a_group_only() -> None:
    episodes = [
        played("a-0", 0.2),
        played("a-1", 1.0),
        played("b-2", 0.9, task=1),
        played("b-3", 0.9, task=1),
        played("g-4", 0.0, task=2, group="g"),
        played("g-5", 0.5, task=3, group="g"),
        played("x-6", None),
        Trajectory("e-7", Task("small", "1", {"n": 0}), (), ended_by="error", error=ErrorRecord("EnvLost", "gone")),
    ]
    found = paired(episodes)
    assert sorted(named(found)) == [("a-1", "a-0"), ("g-5", "g-4")]
    assert (found.ties, found.unscored, found.refused) == (1, 2, [])
    flat = flatten(episodes[:2], POLICY.dialect, instructions=lambda task: "", context=64).sequences
    sides = {parts.trajectory: parts for parts in found.sequences}
    for parts in flat:
        assert np.array_equal(sides[parts.trajectory].ids, parts.ids)
        assert np.array_equal(sides[parts.trajectory].weight, parts.weight)
    assert named(paired(episodes, margin=0.6)) == [("a-1", "a-0")] and paired(episodes, margin=0.6).ties == 2


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.0, 0.5, 1.0])), max_size=14),
    st.integers(1, 5),
    st.integers(0, 3),
)
def test_what_is_taken_depends_on_ids_and_seed_alone(scores: list[tuple[int, float]], most: int, seed: int) -> None:
    episodes = [played(f"e-{n}", unit, task=task) for n, (task, unit) in enumerate(scores)]
    found = paired(episodes, max_per_group=most, seed=seed)
    shuffled = random.Random(seed).sample(episodes, len(episodes))
    again = paired(shuffled, max_per_group=most, seed=seed)
    assert named(found) == named(again) and (found.ties, found.unscored) == (again.ties, again.unscored)
    wins = dict.fromkeys(range(3), 0)
    ties = 0
    by_name = {episode.id: episode for episode in episodes}
    for a in range(len(episodes)):
        for b in range(a):
            if scores[a][0] == scores[b][0]:
                wins[scores[a][0]] += scores[a][1] != scores[b][1]
                ties += scores[a][1] == scores[b][1]
    assert found.ties == ties and len(named(found)) == sum(min(most, won) for won in wins.values())
    assert len(set(named(found))) == len(named(found))
    for chosen, rejected in named(found):
        assert by_name[chosen].task == by_name[rejected].task
        assert (by_name[chosen].score.unit or 0) > (by_name[rejected].score.unit or 0)


def test_seeds_choose_other_pairs() -> None:
    episodes = [played(f"e-{n}", n / 8) for n in range(8)]
    chosen = {tuple(named(paired(episodes, max_per_group=2, seed=seed))) for seed in range(5)}
    assert len(chosen) == 5


def test_refused_episodes_give_way_to_others() -> None:
    fork = (
        Generation(np.int32([1, 9]), np.array([False, True]), np.zeros(2, np.float32)),
        Generation(np.int32([1, 8]), np.array([False, True]), np.zeros(2, np.float32)),
    )
    episodes = [
        played("good-1", 1.0),
        played("bad-2", 0.0),
        replace(played("fork-3", 0.5), steps=(Step("a", "b", generations=fork),)),
        replace(played("long-4", 0.4), steps=(Step("you see a door", "go"),) * 9),
        replace(played("strange-5", 0.3), steps=(Step("a dragon", "go"),)),
        replace(played("none-6", 0.2), steps=()),
    ]
    found = paired(episodes, max_per_group=15)
    assert named(found) == [("good-1", "bad-2")] and found.ties == 0
    told = {problem.where: problem.what for problem in found.refused}
    assert set(told) == {"fork-3", "long-4", "strange-5", "none-6"} and len(found.refused) == 4
    assert "2 of 2" in told["fork-3"] and "do not fit the context of 64" in told["long-4"]
    assert "'dragon'" in told["strange-5"] and "0 of 0" in told["none-6"]


def test_wrong_settings_are_listed_together() -> None:
    with pytest.raises(ConfigError, match=r"most: got 0, expected 1 or more\nmargin: got nan, expected 0 or more"):
        paired([], max_per_group=0, margin=float("nan"))


# ------------------------------------------------------------------ read-outs


def flat(trajectory: Trajectory) -> TokenSequence:
    (parts,) = flatten([trajectory], POLICY.dialect, instructions=lambda task: "", context=64).sequences
    return parts


def test_a_readout_reads_the_state_after_the_last_token() -> None:
    parts = flat(played("a-0", 1.0))
    parts = replace(parts, columns={"reference": np.ones(len(parts), np.float32)})
    read = append_readout(parts, token=EOS)
    assert read.ids.tolist() == [*parts.ids.tolist(), EOS] and read.weight.tolist() == [0.0] * len(parts) + [1.0]
    assert read.feed == len(parts)  # all of it is fed, and not the token after it
    assert not read.written[-1] and read.span[-1] == -1 and read.step[-1] == parts.step[-1]
    assert {getattr(read, name).dtype for name in ("ids", "step", "span")} == {np.dtype(np.int32)}
    assert read.columns["reference"].tolist() == [1.0] * len(parts) + [0.0]
    longer = append_readout(flat(replace(played("b-1", 0.0), steps=(Step("you", "go"),) * 4)), token=EOS)
    for collate, rows in ((collate_padded, [[0], [1]]), (collate_packed, [[0, 1]])):
        batch = collate([replace(read, columns={}), longer], rows)
        states = batch.ids.flatten()[batch.index]
        assert states.tolist() == [read.ids[-2], longer.ids[-2]] and batch.count == 2
        assert batch.sequence is not None and batch.sequence.tolist() == [0, 1]


def test_outcomes_are_unit_scores_and_the_unscored_are_refused() -> None:
    read = append_outcome_readout(played("a-0", 0.25), flat(played("a-0", 0.25)), token=EOS)
    batch = collate_padded([read], [[0]])
    assert batch.columns["outcome"].tolist() == [0.25] and batch.weights.tolist() == [1.0]
    episodes = [played("a-0", 0.25), played("b-1", None), played("c-2", 2.0), played("d-3", 1.0)]
    tally = Intake()
    made = list(
        read_trajectories(
            episodes,
            POLICY,
            ReadingConfig(),
            instructions=lambda task: "",
            transform=partial(append_outcome_readout, token=EOS),
            intake=tally,
        )
    )
    assert [parts.trajectory for parts in made] == ["a-0", "d-3"] and tally.refused == 2
    assert tally.problems[0].what.startswith("episode 'b-1' is not scored: got None")
    cutting = ReadingConfig(context=6, overlong="truncate")  # its end is what is judged
    assert not list(
        read_trajectories(
            episodes,
            POLICY,
            cutting,
            instructions=lambda task: "",
            transform=partial(append_outcome_readout, token=EOS),
        )
    )


# ------------------------------------------------------------------ returns


def stepped(*rewards: float | None, score: float | None = None, **more: Any) -> Trajectory:
    steps = tuple(Step("you", SAY[number], reward) for number, reward in enumerate(rewards))
    return Trajectory("t", Task("small", "1", {}), steps, score=Score(score, None, None), **more)


def test_every_token_of_an_action_has_its_steps_return() -> None:
    episode = stepped(1.0, 0.0, 4.0)
    parts = add_returns(episode, flat(episode), discount=0.5)
    column = parts.columns["returns"]
    assert column.dtype == np.float32 and column[~parts.written].tolist() == [0.0] * int((~parts.written).sum())
    assert column[parts.written].tolist() == [2.0, 2.0, 2.0, 2.0, 4.0, 4.0]  # a word and its stop token each
    batch = collate_padded([parts], [[0]])
    assert batch.columns["returns"].tolist() == [2.0, 2.0, 2.0, 2.0, 4.0, 4.0]


def test_a_score_alone_is_paid_at_the_end() -> None:
    episode = stepped(None, None, score=3.0)
    parts = add_returns(episode, flat(episode), discount=0.5)
    assert parts.columns["returns"][parts.written].tolist() == [1.5, 1.5, 3.0, 3.0]


@pytest.mark.parametrize(
    "episode",
    [
        stepped(None, None),
        stepped(1.0, None),
        stepped(1.0, None, score=1.0),
        stepped(1.0, ended_by="error", error=ErrorRecord("EnvLost", "gone")),
    ],
)
def test_what_is_not_scored_is_never_0(episode: Trajectory) -> None:
    with pytest.raises(SampleInvalid, match="'t' is not scored"):
        add_returns(episode, flat(episode))


def test_truncated_episodes_are_worth_what_they_earned() -> None:
    episode = stepped(1.0, 1.0, ended_by="horizon")
    assert add_returns(episode, flat(episode)).columns["returns"].max() == 2.0
