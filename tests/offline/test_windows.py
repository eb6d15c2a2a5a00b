"""Windows hold what the episodes held, padded on the left, and are drawn as published."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import BatchMismatch, ConfigError, NonFinite, SampleInvalid
from evolvent.offline.losses import action_error, action_nll, temperature_loss
from evolvent.offline.windows import History, ObservationScaler, WindowSource, recent_window, returns_to_go
from evolvent.store.episodes import Episodes, concatenate_episodes
from tests.sequence_support import chain_episodes, ragged


def test_a_window_by_hand():
    data = ragged(2, 4, terminated=[True, False])
    source = WindowSource(data, context=3, standard=ObservationScaler.identity(3))
    read = source.windows_from([0, 1, 2, 5])  # the first episode's two, the second's first and last
    assert read.seen.tolist() == [[False, True, True], [False, False, True], [True] * 3, [False, False, True]]
    assert torch.equal(read.decided, read.seen)
    assert read.time.tolist() == [[0, 0, 1], [0, 0, 1], [0, 1, 2], [0, 0, 3]]
    assert read.terminated.tolist() == [True, True, False, False], "the second episode was cut"
    np.testing.assert_allclose(read.observation[2], data.observation[2:5], rtol=1e-5)
    np.testing.assert_allclose(read.action[0, 1:], data.action[:2])
    assert not read.action[0, 0].any() and not read.observation[0, 0].any()
    expected = [data.reward[0] + data.reward[1], data.reward[1]]
    np.testing.assert_allclose(read.to_go[0, 1:], expected, rtol=1e-6)


def test_the_final_observation_is_seen_and_not_decided():
    data = ragged(2, 4, terminated=[True, False])
    read = WindowSource(data, context=3, standard=ObservationScaler.identity(3), ahead=True).windows_from([0, 1, 3, 5])
    assert read.decided.tolist() == [[True, True, False], [False, True, False], [True] * 3, [False, True, False]]
    assert read.seen.tolist() == [[True] * 3, [False, True, True], [True] * 3, [False, True, True]]
    np.testing.assert_allclose(read.observation[0, 2], data.final[0], rtol=1e-5)
    np.testing.assert_allclose(read.observation[3, 2], data.final[1], rtol=1e-5)
    assert read.terminated.tolist() == [True, True, False, False]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 5), st.booleans())
def test_every_window_is_a_piece_of_its_episode(lengths, context, ahead):
    data = ragged(*lengths)
    source = WindowSource(data, context=context, standard=ObservationScaler.identity(3), ahead=ahead)
    read = source.windows_from(np.arange(len(data.reward)))
    for decision in range(len(data.reward)):
        episode = int(data.episode_index[decision])
        start, length = int(data.starts[episode]), lengths[episode]
        whole = np.concatenate([data.observation[start : start + length], data.final[[episode]]])
        last = length + 1 if ahead else length
        expected = whole[decision - start : min(last, decision - start + context)]
        np.testing.assert_allclose(
            read.observation[decision, context - len(expected) :], expected, rtol=1e-4, atol=1e-5
        )
        assert int(read.seen[decision].sum()) == len(expected)


def test_episodes_are_drawn_in_proportion_to_their_length():
    data = ragged(1, 9)
    read = WindowSource(data, context=1).sample(np.random.default_rng(0), 4000)
    whole = WindowSource(data, context=1).windows_from(np.arange(10)).observation[:, 0]
    at = (read.observation[:, 0, None] - whole).abs().sum(-1).argmin(1)
    share = np.bincount(at.numpy(), minlength=10) / 4000
    np.testing.assert_allclose(share, 0.1, atol=0.02)


def test_returns_to_go_end_with_their_episode():
    data = ragged(2, 3)
    expected = []
    for rewards in (data.reward[:2], data.reward[2:]):
        expected += [sum(0.5 ** (j - i) * rewards[j] for j in range(i, len(rewards))) for i in range(len(rewards))]
    np.testing.assert_allclose(returns_to_go(data, gamma=0.5), expected)


def test_observations_are_standardised():
    data = ragged(5, 5)
    read = WindowSource(data, context=1).windows_from(np.arange(10))
    np.testing.assert_allclose(read.observation.mean((0, 1)), 0.0, atol=1e-6)
    np.testing.assert_allclose(read.observation.std((0, 1), correction=0), 1.0, atol=1e-4)


def test_a_number_that_never_varies_is_not_blown_up():
    data = ragged(4)
    data.observation[:, 1] = 3.0
    assert ObservationScaler.from_episodes(data)([0.0, 4.0, 0.0])[1] == pytest.approx(1.0, rel=1e-5)


def test_what_was_earned_is_taken_off_the_target():
    history = History(
        observation=np.zeros((2, 4, 3), np.float32),
        action=np.zeros((2, 3, 2), np.float32),
        reward=np.array([[1.0, 2, 4], [0, 0, 1]]),
        seed=np.array([1, 2]),
    )
    read = recent_window(history, 3, standard=ObservationScaler.identity(3), target=10.0)
    assert read.to_go.tolist() == [[9, 7, 3], [10, 10, 9]]
    assert read.time.tolist() == [[1, 2, 3]] * 2 and read.action.shape == (2, 3, 2)
    assert recent_window(history, 3, standard=ObservationScaler.identity(3), target=[10.0, 0.0]).to_go[1].tolist() == [
        0,
        0,
        -1,
    ]


def test_what_cannot_be_asked_for_is_refused():
    history = History(
        observation=np.zeros((2, 1, 3), np.float32),
        action=np.zeros((2, 0), np.int64),
        reward=np.zeros((2, 0)),
        seed=np.array([1, 2]),
    )
    assert recent_window(history, 3, standard=ObservationScaler.identity(3)).action.tolist() == [[-1], [-1]]
    with pytest.raises(NonFinite, match="target"):
        recent_window(history, 3, standard=ObservationScaler.identity(3), target=float("nan"))
    with pytest.raises(BatchMismatch):
        recent_window(history, 3, standard=ObservationScaler.identity(3), target=[1.0, 2.0, 3.0])
    history.observation[1, 0, 2] = np.nan
    with pytest.raises(NonFinite, match="episode 1, step 0"):
        recent_window(history, 3, standard=ObservationScaler.identity(3))
    with pytest.raises(ConfigError):
        WindowSource(ragged(2), context=0)
    for size in (1, 4):  # one number would be stretched over three
        with pytest.raises(BatchMismatch, match="observation size differs from the data"):
            ObservationScaler.identity(3)(np.zeros((2, size)))


def test_bad_episodes_are_refused_with_their_place():
    good = chain_episodes()
    fields = {name: getattr(good, name) for name in Episodes.__dataclass_fields__}
    with pytest.raises(SampleInvalid, match="episode 1, step 1"):
        Episodes(**{**fields, "action": np.array([0, 1, 0, 2, 0, 0, 1, 1])})
    reward = good.reward.copy()
    reward[6] = np.inf
    with pytest.raises(SampleInvalid, match="reward of episode 3, step 0"):
        Episodes(**{**fields, "reward": reward})
    with pytest.raises(SampleInvalid, match="no decisions"):
        Episodes(**{**fields, "lengths": np.array([8, 0, 0, 0])})
    with pytest.raises(ConfigError):
        concatenate_episodes([good, ragged(2)])
    with pytest.raises(SampleInvalid):
        good.select([])


def test_chosen_and_joined_keep_episodes_whole():
    data = ragged(2, 1, 3)
    again = concatenate_episodes([data.select([2]), data.select([0, 1])]).select([1, 2, 0])
    assert again.digest == data.digest
    assert data.select([1]).digest != data.select([0]).digest


def test_losses_by_hand():
    predicted, action = torch.tensor([[[1.0, 0.0], [5.0, 5.0]]]), torch.tensor([[[0.0, 2.0], [0.0, 0.0]]])
    total, count = action_error(predicted, action, torch.tensor([[True, False]]))
    assert (float(total), int(count)) == (5.0, 2)
    logits = torch.tensor([[[0.0, 0.0], [1.0, float("nan")]]])
    total, count = action_nll(logits, torch.tensor([[1, -1]]), torch.tensor([[True, False]]))
    assert float(total) == pytest.approx(np.log(2)) and int(count) == 1
    log_temperature = torch.tensor(np.log(0.1), requires_grad=True)
    temperature_loss(log_temperature, torch.tensor(-2.0), floor=-1.0).backward()
    assert float(log_temperature.grad) == pytest.approx(-0.1), "descent raises T while the entropy is too low"
