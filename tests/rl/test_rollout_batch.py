"""From trajectories to flat parts and back: rewards, ends, what is left out, columns; all by hand."""

from dataclasses import replace

import numpy as np
import pytest

from evolvent.errors import BatchMismatch, ErrorRecord, NonFinite, NothingToLearn
from evolvent.learn.token_sequences import flatten
from evolvent.rl.rollout_batch import (
    CUT_OFF,
    GOES_ON,
    TERMINATED,
    TRUNCATED,
    RolloutBatch,
    add_columns,
    build_rollout_batch,
)
from evolvent.trajectory import Generation, Score, Step, Task, Trajectory

STOP = 9


class Dialect:
    """Of a dialect only the stop token is asked for."""

    name, stop_ids = "numbers", frozenset([STOP])


def generation(read, wrote, *, extends=None, version=0, logp=-0.5):
    ids = [*read, *wrote]
    sampled = [False] * len(read) + [True] * len(wrote)
    return Generation(
        np.asarray(ids, np.int32),
        np.asarray(sampled),
        np.where(sampled, logp, 0).astype(np.float32),
        extends,
        (),
        True,
        version,
    )


def episode(name, steps, *, rewards, ended_by="world", group=None, version=0, **more):
    """Steps are (read, wrote) token lists; each extends the one before it."""
    made, before = [], None
    for number, ((read, wrote), reward) in enumerate(zip(steps, rewards, strict=True)):
        generations = (generation(read, wrote, extends=before, version=version),) if wrote is not None else ()
        before = (0 if before is None else before + 1) if wrote is not None else before
        made.append(Step(f"o{number}", "a", reward, generations=generations))
    return Trajectory(
        name, Task("toy", "1", {"n": name}), tuple(made), "end", ended_by, Score(1.0), group=group, **more
    )


def chains_of(*trajectories, stops=True):
    return flatten(trajectories, Dialect(), instructions=lambda task: "", context=99, stops=stops).sequences


ONE = episode("one", [([1, 2], [3, 4, STOP]), ([5], [6, STOP])], rewards=[0.25, 1.0], group="g")
TWO = episode("two", [([1], [7, STOP])], rewards=[-1.0], ended_by="horizon", group="g", version=3)


def test_parts_actions_and_episodes():
    found, report = build_rollout_batch([ONE, TWO], chains_of(ONE, TWO))
    assert found.action.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert found.episode.tolist() == [0, 0, 1] and found.group.tolist() == [0, 0]
    assert found.reward.tolist() == [0, 0, 0.25, 0, 1.0, 0, -1.0]
    assert found.ended.tolist() == [GOES_ON, TERMINATED, TRUNCATED]
    assert found.version.tolist() == [0] * 5 + [3] * 2
    assert found.sequence.tolist() == [0] * 5 + [1] * 2 and found.position.tolist() == [2, 3, 4, 6, 7, 1, 2]
    assert found.is_last_in_action.tolist() == [False, False, True, False, True, False, True]
    assert (report.episodes, report.episode_index, report.unscored) == (2, (0, 1), 0)
    assert found.describe_position(4) == "episode 0, action 1, part 1"


def test_a_step_without_parts_pays_the_action_before_it():
    silent = episode("s", [([1], [2, STOP]), ([1], None), ([3], [4])], rewards=[0.0, 5.0, 1.0])
    found, _ = build_rollout_batch([silent], chains_of(silent))
    assert found.reward.tolist() == [0, 5.0, 1.0] and found.episode.tolist() == [0, 0]


def test_a_lone_stop_token_is_an_action_of_one_part():
    mute = episode("m", [([1], [STOP])], rewards=[-1.0])
    assert build_rollout_batch([mute], chains_of(mute))[0].num_tokens == 1
    with pytest.raises(NothingToLearn, match=r"none of 1 episodes .* got 1 without a token to learn"):
        build_rollout_batch([mute], chains_of(mute, stops=False))


def test_running_out_of_context_is_an_end():
    full = episode("f", [([1], [2])], rewards=[0.0], ended_by="horizon", meta={"context_full": True})
    assert build_rollout_batch([full], chains_of(full))[0].ended.tolist() == [CUT_OFF]


@pytest.mark.parametrize(("ended_by", "end"), [("world", CUT_OFF), ("agent", CUT_OFF), ("horizon", TRUNCATED)])
def test_a_last_reply_that_was_cut_is_told_from_one_that_ended(ended_by, end):
    """A reply that was cut earlier was answered, and the episode went on."""
    whole = episode("w", [([1], [2]), ([3], [4, STOP])], rewards=[0.0, 1.0], ended_by=ended_by)

    def cut(at):
        steps = list(whole.steps)
        steps[at] = replace(steps[at], generations=(replace(steps[at].generations[0], stop="length"),))
        return replace(whole, steps=tuple(steps))

    assert build_rollout_batch([cut(1)], chains_of(cut(1)))[0].ended.tolist() == [GOES_ON, end]
    goes_on = TRUNCATED if ended_by == "horizon" else TERMINATED
    assert build_rollout_batch([cut(0)], chains_of(cut(0)))[0].ended.tolist() == [GOES_ON, goes_on]


def test_what_cannot_be_scored_is_left_out_and_never_0():
    failed = episode("x", [([1], [2])], rewards=[0.0], ended_by="error", error=ErrorRecord("EnvLost", "gone"))
    unknown = episode("u", [([1], [2])], rewards=[None])
    chains = chains_of(failed, ONE, unknown, TWO)
    found, report = build_rollout_batch([failed, ONE, unknown, TWO], chains)
    assert (report.unscored, report.episode_index) == (2, (1, 3)) and found.reward.sum() == pytest.approx(0.25)
    assert set(found.sequence.tolist()) == {1, 3}
    with pytest.raises(NothingToLearn, match="could not be scored: got 2 of 3"):
        build_rollout_batch([failed, ONE, unknown], chains)


def test_too_old_a_policy():
    found, report = build_rollout_batch([ONE, TWO], chains_of(ONE, TWO), min_version=2)
    assert (report.stale, report.episodes) == (1, 1) and found.version.min() == 3


def test_rewards_of_a_method():
    found, _ = build_rollout_batch([ONE], chains_of(ONE), rewards=lambda t: [0.0, 0.5])
    assert found.reward.tolist() == [0, 0, 0, 0, 0.5]
    with pytest.raises(NonFinite, match="reward of episode 0, action 1, part 1 is not finite"):
        build_rollout_batch([ONE], chains_of(ONE), rewards=lambda t: [0.0, float("nan")])
    for wrong in ([1.0], [0.0, 0.5, 1.0]):
        with pytest.raises(BatchMismatch, match="number of rewards does not match the steps of trajectory 'one'"):
            build_rollout_batch([ONE], chains_of(ONE), rewards=lambda t, wrong=wrong: wrong)


def test_forks_give_their_shared_tokens_once():
    """A generation that is read again by two others: what it wrote is one action, learned once."""
    first = generation([1], [2, STOP])
    second, third = generation([3], [4], extends=0), generation([5], [6], extends=0)
    steps = (
        Step("a", "a", 0.0, generations=(first,)),
        Step("b", "b", 1.0, generations=(second,)),
        Step("c", "c", 2.0, generations=(third,)),
    )
    fork = Trajectory("fork", Task("toy", "1", {}), steps, score=Score(1.0))
    found, _ = build_rollout_batch([fork], chains_of(fork))
    assert found.num_tokens == 4 and found.reward.tolist() == [0, 0, 1, 2] and found.sequence.tolist() == [0, 0, 0, 1]


def test_columns_come_back_to_their_tokens():
    chains = chains_of(ONE, TWO)
    found, _ = build_rollout_batch([ONE, TWO], chains)
    values = np.arange(found.num_tokens, dtype=np.float64) + 1
    one, two = add_columns(chains, found, {"advantages": values})
    assert one.columns["advantages"].tolist() == [0, 0, 1, 2, 3, 0, 4, 5] and two.columns["advantages"].tolist() == [
        0,
        6,
        7,
    ]
    assert (one.weight != 0).tolist() == (one.columns["advantages"] != 0).tolist()
    (rest,) = add_columns(chains, found, {"advantages": values}, learned_mask=values > 5)
    assert rest.trajectory == "two" and rest.weight.tolist() == [0, 1, 1]
    with pytest.raises(BatchMismatch, match="length of the columns differs from the tokens"):
        add_columns(chains, found, {"advantages": values[1:]})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"action": [1, 0, 0]}, "action index of the tokens decreases"),
        ({"action": [0, 2, 2]}, "an action has no tokens"),
        ({"reward": [0.0, 0.0]}, "token arrays differ in length"),
        ({"ended": [TERMINATED, GOES_ON]}, "an episode ends before its last action"),
        ({"group": [0, 1]}, "an episode has no actions"),
    ],
)
def test_refusals(change, what):
    plain = {
        "logp": np.zeros(3, np.float32),
        "version": np.zeros(3, np.int32),
        "span": np.zeros(3, np.int64),
        "action": np.asarray([0, 0, 1]),
        "episode": np.asarray([0, 0]),
        "group": np.asarray([0]),
        "reward": np.zeros(3),
        "ended": np.asarray([GOES_ON, TERMINATED], np.int8),
        "bootstrap": np.zeros(2),
        "sequence": np.zeros(3, np.int64),
        "position": np.arange(3),
    }
    RolloutBatch(**plain)
    with pytest.raises(BatchMismatch, match=what):
        RolloutBatch(**{**plain, **{name: np.asarray(values) for name, values in change.items()}})
