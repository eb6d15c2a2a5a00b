"""Q-Transformer: its backup is the optimal one, its network learns it, and pieces of episodes are put together."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from evolvent.errors import Incomplete, SampleInvalid
from evolvent.methods.q_transformer import QTransformerConfig, load_q_transformer, q_transformer, save_q_transformer
from evolvent.models.q_sequence import QSequence, QShape, bin_actions, bin_middles
from evolvent.offline.losses import conservative_loss
from evolvent.offline.q_targets import mark_learned_steps, window_q_targets
from evolvent.offline.windows import ObservationScaler, WindowSource
from evolvent.rollout.arrays import play_arrays
from evolvent.store.episodes import Episodes
from evolvent.worlds.stitching import Stitching, StitchingEnv, compute_reachable, demonstrations
from tests.sequence_support import ragged

# two states, actions of two parts: (reward, next state), None: the end
TABLE = {
    (0, 0, 0): (0, 0),
    (0, 0, 1): (1, 1),
    (0, 1, 0): (0, 1),
    (0, 1, 1): (2, None),
    (1, 0, 0): (4, None),
    (1, 0, 1): (0, 0),
    (1, 1, 0): (0, 1),
    (1, 1, 1): (1, 0),
}
FIRST = torch.tensor([[3.0, 2.0], [4.0, 2.5]])
SECOND = torch.tensor([[[1.5, 3.0], [2.0, 2.0]], [[4.0, 1.5], [2.0, 2.5]]])


def two_states() -> Episodes:
    """Every action once, each an episode of its own; one that does not end is cut."""
    eye, rows = np.eye(2, dtype=np.float32), list(TABLE.items())
    return Episodes(
        observation=np.stack([eye[s] for (s, _, _), _ in rows]),
        reward=np.array([float(r) for _, (r, _) in rows]),
        final=np.stack([eye[0 if n is None else n] for _, (_, n) in rows]),
        lengths=np.ones(8, np.int64),
        action=np.array([[a - 0.5, b - 0.5] for (_, a, b), _ in rows], np.float32),
        actions=0,
        terminated=np.array([n is None for _, (_, n) in rows]),
    )


def test_the_backup_has_the_optimal_values():
    """Value iteration on a table, by the targets that the network is trained on."""
    read = WindowSource(
        two_states(), context=2, standard=ObservationScaler.identity(2), gamma=0.5, ahead=True
    ).windows_from(np.arange(8))
    state, bins = read.observation.argmax(-1), torch.from_numpy(bin_actions(read.action.numpy(), bins=2))
    assert mark_learned_steps(read).tolist() == [[True, False]] * 8
    first, second = torch.zeros(2, 2), torch.zeros(2, 2, 2)
    for _ in range(60):
        value = torch.stack([first.amax(-1)[state], second.amax(-1)[state, bins[..., 0]]], -1)
        found = window_q_targets(value, read, gamma=0.5)[:, 0]
        first[state[:, 0], bins[:, 0, 0]] = found[:, 0]
        second[state[:, 0], bins[:, 0, 0], bins[:, 0, 1]] = found[:, 1]
    torch.testing.assert_close(first, FIRST)
    torch.testing.assert_close(second, SECOND)


def test_targets_by_hand():
    data = ragged(2, 3, dim=2, terminated=[True, False])
    read = WindowSource(data, context=3, standard=ObservationScaler.identity(3), gamma=0.5, ahead=True).windows_from(
        [0, 2, 4]
    )
    value = torch.arange(18.0).view(3, 3, 2)
    found = window_q_targets(value, read, gamma=0.5, monte_carlo=False)
    r = data.reward
    expected = torch.zeros(3, 3, 2)
    expected[0, 0] = torch.tensor([1.0, r[0] + 0.5 * 2])  # the next dimension; the next step's first
    expected[0, 1] = torch.tensor([3.0, r[1]])  # the end: nothing follows
    expected[1, 0] = torch.tensor([7.0, r[2] + 0.5 * 8])
    expected[1, 1] = torch.tensor([9.0, r[3] + 0.5 * 10])  # the window ends, the episode goes on
    expected[2, 1] = torch.tensor([15.0, r[4] + 0.5 * 16])  # cut: its final observation has a value
    torch.testing.assert_close(found, expected)
    bounded = window_q_targets(value - 100, read, gamma=0.5)
    torch.testing.assert_close(bounded[0, 0], torch.full((2,), float(r[0] + 0.5 * r[1])))


def test_unseen_bins_by_hand():
    q = torch.tensor([[1.0, 2.0, 5.0], [9.0, 9.0, 9.0]])
    total, count = conservative_loss(q, torch.tensor([1, 0]), torch.tensor([True, False]), floor=1.0)
    assert float(total) == pytest.approx((0 + 16) / 2 / 2) and int(count) == 1


def test_a_value_depends_on_the_dimensions_before_it_alone():
    torch.manual_seed(0)
    net = QSequence(QShape(observation=3, dims=3, bins=4, context=2, width=16, heads=2, layers=1))
    torch.nn.init.normal_(net.heads)
    observation, bins = torch.randn(2, 2, 3), torch.randint(4, (2, 2, 3))
    base = net(observation, bins)
    changed = bins.clone()
    changed[:, 1, 1] = (changed[:, 1, 1] + 1) % 4
    after = net(observation, changed)
    torch.testing.assert_close(after[:, 0], base[:, 0])
    torch.testing.assert_close(after[:, 1, :2], base[:, 1, :2])
    assert not torch.allclose(after[:, 1, 2], base[:, 1, 2])
    best = net.best(observation, torch.full_like(bins, -1))
    again = net(observation, torch.stack([torch.full_like(best, -1), best], 1))
    assert torch.equal(again[:, 1].argmax(-1), best), "each the best given those before"
    middles = bin_middles(np.arange(4), bins=4)
    assert middles.tolist() == [-0.75, -0.25, 0.25, 0.75] and bin_actions(middles, bins=4).tolist() == [0, 1, 2, 3]


def test_the_network_learns_the_optimal_values(tmp_path):
    config = QTransformerConfig(
        bins=2,
        gamma=0.5,
        conservative=0.0,
        polyak=0.2,
        width=16,
        heads=1,
        layers=1,
        train={"max_steps": 250, "lr": 1e-2, "batch": 32, "warmup": 0, "grad_norm": 10.0},
    )
    policy = q_transformer(config, two_states())
    eye, standard = np.eye(2), policy.scaler
    observation = torch.from_numpy(standard(eye))[:, None]
    for part in (0, 1):
        q = policy.model(observation, torch.tensor([[[part, -1]]] * 2))[:, 0]
        torch.testing.assert_close(q[:, 0], FIRST, atol=0.15, rtol=0)
        torch.testing.assert_close(q[:, 1], SECOND[:, part], atol=0.15, rtol=0)
    save_q_transformer(policy, tmp_path)
    again = load_q_transformer(tmp_path)
    torch.testing.assert_close(
        again.model(observation, torch.zeros(2, 1, 2, dtype=torch.long)),
        policy.model(observation, torch.zeros(2, 1, 2, dtype=torch.long)),
    )


def test_pieces_are_put_together():
    maze = Stitching()
    data = demonstrations(maze)
    config = QTransformerConfig(
        gamma=0.9,
        scale=10.0,
        polyak=0.2,
        conservative=0.5,
        width=16,
        heads=1,
        layers=1,
        train={"max_steps": 250, "lr": 1e-2, "batch": 32, "warmup": 0, "grad_norm": 10.0},
    )
    policy = q_transformer(config, data)
    found = play_arrays(policy.build_actor(), lambda: StitchingEnv(maze), episodes=1, horizon=12, num_actions=4, seed=0)
    limit = compute_reachable(maze, data)
    assert found.returns[0] == limit.stitched > limit.conditioned


def steps_of_a_world():
    """Every step of a random world of six states and three actions, each an episode that is cut after it."""
    rng, eye = np.random.default_rng(0), np.eye(6, dtype=np.float32)
    after, paid = rng.integers(0, 6, (6, 3)), rng.normal(size=(6, 3)) - 1.0
    state, action = np.divmod(np.arange(18), 3)
    data = Episodes(
        observation=eye[state],
        final=eye[after[state, action]],
        action=action,
        reward=paid.ravel(),
        lengths=np.ones(18, np.int64),
        terminated=np.zeros(18, np.bool_),
        actions=3,
    )
    best = np.zeros(6)
    for _ in range(200):
        best = (paid + 0.8 * best[after]).max(1)
    return data, paid + 0.8 * best[after]


def test_values_are_bootstrapped_as_they_are_learned():
    """What follows is valued with as many steps in sight as are learned with, and a cut is no end that pays 0."""
    data, optimal = steps_of_a_world()
    config = QTransformerConfig(
        gamma=0.8,
        conservative=0.0,
        floor=-20.0,
        polyak=0.2,
        width=16,
        heads=1,
        layers=1,
        train={"max_steps": 300, "lr": 1e-2, "batch": 32, "warmup": 0, "grad_norm": 10.0},
    )
    policy = q_transformer(config, data)
    observation = torch.from_numpy(policy.scaler(np.eye(6)))[:, None]
    q = policy.model(observation, torch.full((6, 1, 1), -1))[:, 0, 0].detach().numpy()
    np.testing.assert_allclose(q, optimal, atol=0.4)
    assert policy.model.shape.context == config.context


def test_what_was_cut_off_counts_as_the_least_return():
    """Rewards of -1 for ever, cut after two steps: no target may say that it ends there."""
    ones = np.ones((2, 1), np.float32)
    data = Episodes(
        observation=ones,
        final=ones[:1],
        action=np.zeros(2, np.int64),
        reward=-np.ones(2),
        actions=2,
        lengths=np.array([2]),
        terminated=np.zeros(1, np.bool_),
    )
    read = WindowSource(
        data, context=2, standard=ObservationScaler.identity(1), gamma=0.5, cut_return=-2.0, ahead=True
    ).windows_from([0, 1])
    assert read.to_go[0].tolist() == [-2.0, -2.0] and read.to_go[1].tolist() == [-2.0, 0.0]
    found = window_q_targets(torch.full((2, 2, 1), -2.0), read, gamma=0.5)
    assert found[:, 0, 0].tolist() == [-2.0, -2.0]
    ended = WindowSource(
        two_states(), context=2, standard=ObservationScaler.identity(2), cut_return=-9.0, ahead=True
    ).windows_from([3])
    assert float(ended.to_go[0, 0]) == 2.0, "an end pays nothing more"


def test_all_actions_are_looked_at_before_the_first_update():
    data = ragged(50)
    data.action[49, 1] = 1.5
    with pytest.raises(SampleInvalid, match="action out of range"):
        q_transformer(QTransformerConfig(train={"max_steps": 1, "batch": 1}), data)


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        ({"mean": None}, "invalid observation statistics"),
        ({"deviation": [0.0] * 2}, "invalid observation statistics"),
        ({"mean": [0.0]}, "invalid observation statistics"),
        ({"discrete": ...}, "discrete"),
    ],
)
def test_a_folder_that_does_not_say_enough(tmp_path, extra, match):
    policy = q_transformer(QTransformerConfig(bins=2, width=8, heads=1, layers=1, train={"max_steps": 1}), two_states())
    save_q_transformer(policy, tmp_path)
    path = tmp_path / "sequence.json"
    row = json.loads(path.read_text())
    row["extra"] = {name: value for name, value in {**row["extra"], **extra}.items() if value is not ...}
    path.write_text(json.dumps(row))
    with pytest.raises(Incomplete) as caught:
        load_q_transformer(tmp_path)
    assert match in str(caught.value.value)
