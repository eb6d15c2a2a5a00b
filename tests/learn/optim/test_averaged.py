"""Optimizers that learn at one point and average another: what is played, saved and shown is the average.

The reference is the recursion of the paper (arXiv 2405.15682, equations 3 to 5), computed by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import small_config, small_parts, small_policy
from torch import Tensor

from evolvent.errors import ConfigError
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim.make import OptimizerConfig, build_optimizer
from evolvent.learn.progress import LEARNING, TrainState
from evolvent.models.writing import open_checkpoint
from evolvent.rl.presets import DR_GRPO
from evolvent.rl.trainer import PolicyTrainer, RLSpec, run_epochs
from tests.rl.acting import Echo, quick, run_of, talking

pytest.importorskip("pytorch_optimizer")
AVERAGING = ("schedulefreeadamw", "schedulefreeradam", "schedulefreesgd")
BETA, LR = 0.9, 0.1


def weights_of(learner: Learner) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in learner.trained.named_weights().items()}


def average_of(learner: Learner, learning: dict[str, Tensor]) -> dict[str, Tensor]:
    """`x = (y - (1 - beta) z) / beta`, of the weights y that learn."""
    state = learner.optimizer.state
    return {
        name: (learning[name] - (1 - BETA) * state[weight]["z"]) / BETA
        for name, weight in learner.trained.named_weights().items()
    }


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def close(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


def fit(folder: Path | None, name: str, *, every: int = 50, stop: int = 99) -> tuple[Learner, dict[str, Tensor]]:
    """A learner that is finished or stopped, and the weights that its last update left."""
    train = small_config(epochs=2, lr=1e-2)
    learner = Learner(small_policy(dropout=0.1), weighted_nll, train, seed=5, optimizer=OptimizerConfig(name=name))
    last: dict[str, Tensor] = {}
    keeper = None if folder is None else Checkpointer(folder, every=every)
    learner.fit(
        small_parts(learner.policy, 20),
        checkpoint=keeper,
        on_update=lambda _: last.update(weights_of(learner)),
        should_stop=lambda: learner.updates >= stop,
    )
    return learner, last


def test_outside_of_learning_the_weights_are_the_papers_average() -> None:
    """Gradients at y of (w - target)^2 / 2; with one rate, the average weighs all steps alike."""
    start, target = np.asarray([[1.0, -2.0], [0.5, 3.0]]), np.asarray([[0.2, 0.1], [-1.0, 1.0]])
    weight = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    config = OptimizerConfig(name="schedulefreesgd")
    trained = TrainState(
        {"w": weight}, build_optimizer(config, [("w", weight)], lr=LR, betas=(0.9, 0.98), weight_decay=0.0)
    )
    x = z = start
    for turn in range(1, 8):
        with trained.learning():
            for step in (2 * turn - 1, 2 * turn):
                y = (1 - BETA) * z + BETA * x
                assert np.allclose(weight.detach().numpy(), y, atol=1e-12)
                weight.grad = weight.detach() - torch.tensor(target)
                z = z - LR * (y - target)
                x = (1 - 1 / step) * x + z / step
                trained.optimizer.step()
        assert np.allclose(weight.detach().numpy(), x, atol=1e-12)


@pytest.mark.parametrize("name", AVERAGING)
def test_after_a_fit_the_policy_is_the_average(name: str) -> None:
    learner, learning = fit(None, name)
    found = weights_of(learner)
    assert close(found, average_of(learner, learning)) and not close(found, learning)
    assert {group["train_mode"] for group in learner.optimizer.param_groups} == {False}


@pytest.mark.parametrize("name", AVERAGING)
def test_a_checkpoint_has_the_average_to_show_and_the_rest_to_go_on_with(tmp_path: Path, name: str) -> None:
    learner, learning = fit(tmp_path, name, stop=3)
    newest = Checkpointer(tmp_path).find_newest()
    assert newest is not None
    groups = open_checkpoint(newest).groups
    shown, kept = ({key: index.whole(key) for key in index} for index in (groups["model"], groups[LEARNING]))
    assert equal(kept, learning) and equal(shown, weights_of(learner))
    assert close(shown, average_of(learner, learning))


@pytest.mark.parametrize("name", AVERAGING)
def test_checkpoints_on_the_way_change_nothing_bit_for_bit(tmp_path: Path, name: str) -> None:
    plain, kept = fit(None, name), fit(tmp_path / "often", name, every=2)
    fit(tmp_path / "cut", name, every=2, stop=3)
    resumed = fit(tmp_path / "cut", name, every=2)
    for learner, learning in (kept, resumed):
        assert equal(learning, plain[1]) and equal(weights_of(learner), weights_of(plain[0]))


def test_a_finished_training_that_is_taken_up_again_is_the_same_policy(tmp_path: Path) -> None:
    whole, again = fit(tmp_path, "schedulefreeadamw")[0], fit(tmp_path, "schedulefreeadamw")[0]
    assert equal(weights_of(whole), weights_of(again))


def test_a_checkpoint_from_before_goes_on_with_its_only_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions saved the weights that learn as the model, and nothing beside it."""
    whole = fit(None, "schedulefreeadamw")[0]
    with monkeypatch.context() as patch:
        patch.setattr(TrainState, "averages", False)
        fit(tmp_path, "schedulefreeadamw", stop=3)
    assert equal(weights_of(fit(tmp_path, "schedulefreeadamw")[0]), weights_of(whole))


def test_passes_leave_the_average_and_go_on_from_what_learns() -> None:
    learner = Learner(
        small_policy(), weighted_nll, small_config(lr=1e-2), seed=5, optimizer=OptimizerConfig(name="schedulefreeadamw")
    )
    parts, seen = small_parts(learner.policy, 12), []
    update = learner.update

    def noted(batches: Any) -> Any:
        metrics = update(batches)
        seen.append(weights_of(learner))
        return metrics

    learner.update = noted  # type: ignore[method-assign]
    for turn in range(3):
        run_epochs(learner, parts, num_epochs=1, minibatches=2, rng=np.random.default_rng(turn))
        found = weights_of(learner)
        assert close(found, average_of(learner, seen[-1])) and not close(found, seen[-1])


def test_most_optimizers_have_one_set_of_weights(tmp_path: Path) -> None:
    learner, last = fit(tmp_path, "adamw", stop=3)
    newest = Checkpointer(tmp_path).find_newest()
    assert newest is not None and LEARNING not in open_checkpoint(newest).groups
    assert not learner.trained.averages and equal(weights_of(learner), last)


def test_an_optimizer_that_cannot_turn_says_which() -> None:
    """SPlus has an average of the weights that were stepped alone."""
    weights = {name: torch.ones(2, 2, requires_grad=True) for name in ("a", "b")}
    trained = TrainState(
        weights,
        build_optimizer(OptimizerConfig(name="splus"), weights.items(), lr=0.1, betas=(0.9, 0.98), weight_decay=0.0),
    )
    weights["a"].grad = torch.ones(2, 2)
    with pytest.raises(ConfigError, match="SPlus could not turn its weights to 'eval'"), trained.learning():
        trained.optimizer.step()


def test_a_practice_from_before_plays_the_average_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions saved the weights that learn, and that they do; there may be no iteration left to turn them."""
    world, optimizer = Echo(), OptimizerConfig(name="schedulefreeadamw")
    setup = RLSpec("dr_grpo", quick(iterations=2), DR_GRPO.objective)
    tasks = world.tasks("train", "seen")

    def stops(self: PolicyTrainer, number: int) -> None:
        save(self, number)
        if number == 2:
            raise KeyboardInterrupt

    save = PolicyTrainer._save
    with monkeypatch.context() as patch, run_of(tmp_path, world, optimizer=optimizer) as run:
        patch.setattr(TrainState, "averages", False)
        patch.setattr(PolicyTrainer, "_save", stops)
        with pytest.raises(KeyboardInterrupt), run.train_rl(talking(tmp_path / "talks", world), setup) as practice:
            for _ in practice.iterations():
                seen = practice.score(practice.rollout(practice.next_starts(tasks)))
                practice.update(seen, seen.estimate_advantages(DR_GRPO.estimator))
        learning = weights_of(practice.learner)
    with run_of(tmp_path, world, optimizer=optimizer) as run:
        start = talking(tmp_path / "talks", world)
        with run.train_rl(start, setup) as practice:
            assert list(practice.iterations()) == []
            found = {name: practice.policy.model.state_dict()[name] for name in learning}
            assert close(found, average_of(practice.learner, learning)) and not close(found, learning)
