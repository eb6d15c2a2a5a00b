"""Fault 29: interrupted anywhere, a resumed training has the losses and weights of the whole one, bit for bit."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import kill_at, same, small_config, small_parts, small_policy, train

from evolvent.errors import ConfigError
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.learner import Learner, UpdateMetrics
from evolvent.learn.loader import DataOrder
from evolvent.learn.objectives import Objective, Outputs, weighted_nll
from evolvent.learn.token_sequences import Batch


@pytest.fixture(scope="module")
def uninterrupted() -> tuple[Any, list[torch.Tensor]]:
    return train(None)


def per_epoch() -> int:
    parts = small_parts(small_policy())
    return len(DataOrder([p.feed for p in parts], budget=small_config().batch_tokens, seed=5).plan_epoch(0))


def test_killed_in_the_middle_of_an_epoch(tmp_path: Path, uninterrupted: tuple[Any, list[torch.Tensor]]) -> None:
    """A real process, SIGKILL after update 8: the checkpoint is of update 6, or of 3 where that one was still being
    written, and what came after it is done again."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = str(Path(__file__).parent / "small_training.py")
    ended = subprocess.run([sys.executable, script, str(tmp_path), "8"], env=environment, timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL
    newest = Checkpointer(tmp_path).find_newest()
    assert newest is not None and newest.name in ("update-000000003", "update-000000006")
    done: list[int] = []
    assert same(uninterrupted, train(tmp_path, on_update=lambda m: done.append(m.update)))
    assert done[0] == int(newest.name[-1]) + 1 and uninterrupted[0].updates > 10


class Interrupt(Exception):
    """Stands for whatever ends a training."""


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_at_the_epoch_boundary(tmp_path: Path, offset: int, uninterrupted: tuple[Any, list[torch.Tensor]]) -> None:
    boundary = per_epoch() + offset

    def interrupt(metrics: UpdateMetrics) -> None:
        if metrics.update == boundary + 1:
            raise Interrupt

    with pytest.raises(Interrupt):
        train(tmp_path, on_update=interrupt, every=boundary)
    assert same(uninterrupted, train(tmp_path, every=boundary))


def test_in_the_middle_of_gradient_accumulation(tmp_path: Path) -> None:
    calls = [0]

    def loss(outputs: Outputs, batch: Batch) -> tuple[torch.Tensor, int]:
        calls[0] += 1
        if calls[0] == 15:
            raise Interrupt
        return weighted_nll.loss(outputs, batch)

    whole = train(None, max_tokens_per_forward=70)
    with pytest.raises(Interrupt):
        train(
            tmp_path, objective=Objective("weighted_nll", loss, weighted_nll.count), max_tokens_per_forward=70, every=2
        )
    newest = Checkpointer(tmp_path).find_newest()
    assert newest is not None and int(newest.name[-3:]) < 15
    assert same(whole, train(tmp_path, max_tokens_per_forward=70))


def test_after_the_last_update(
    tmp_path: Path, uninterrupted: tuple[Any, list[torch.Tensor]], caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path)
    done: list[UpdateMetrics] = []
    with caplog.at_level(logging.INFO):
        again = train(tmp_path, on_update=done.append)
    assert same(uninterrupted, again) and done == [] and "no work is left" in caplog.text


def test_interrupted_again_and_again(tmp_path: Path, uninterrupted: tuple[Any, list[torch.Tensor]]) -> None:
    tries, finished = 0, False
    while not finished:
        asked: list[int] = []
        result = train(tmp_path, should_stop=lambda asked=asked: bool(asked.append(1) or len(asked) == 4))  # type: ignore[misc]
        tries, finished = tries + 1, result[0].finished
    assert tries > 3 and same(uninterrupted, result)


def test_another_training_is_refused(tmp_path: Path) -> None:
    train(tmp_path, max_steps=4)
    with pytest.raises(ConfigError, match=r"another config: got lr = 0\.5, expected lr = 0\.004"):
        train(tmp_path, max_steps=4, lr=0.5)
    policy = small_policy(dropout=0.1)
    config = small_config(max_steps=4)
    for seed, count, what in ((6, 40, "seed"), (5, 39, "data")):
        learner = Learner(policy, weighted_nll, config, seed=seed)
        with pytest.raises(ConfigError, match=f"another {what}"):
            learner.fit(small_parts(policy, count), checkpoint=Checkpointer(tmp_path))


def test_kill_at_kills() -> None:
    child = os.fork()
    if child == 0:
        kill_at(1)(UpdateMetrics(1, 0.0, 0.0, 0.0, 0, 0, 0))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
