"""A training that was stopped anywhere goes on to the weights and the history of one that was not."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from evolvent.errors import ConfigError, CorruptRecord, ShapeMismatch
from evolvent.methods.decision_transformer import DecisionTransformerConfig, decision_transformer
from evolvent.methods.gato import GatoConfig, build_array_task, gato
from evolvent.methods.online_dt import OnlineDTConfig, online_dt
from evolvent.methods.q_transformer import QTransformerConfig, q_transformer
from evolvent.methods.trajectory_transformer import TrajectoryTransformerConfig, trajectory_transformer
from evolvent.offline.state import SequenceCheckpoint
from tests.sequence_support import chain_episodes, ragged

NET = {
    "context": 2,
    "width": 8,
    "heads": 2,
    "layers": 1,
    "train": {"max_steps": 11, "batch": 4, "lr": 1e-2, "warmup": 3},
}


class Stopped(Exception):
    pass


def played(actor, number):
    return ragged(3, seed=50 + number)


def learned(method: str, keep: SequenceCheckpoint | None = None):
    """The weights, the history, and what else is told of a small training."""
    if method == "dt":
        found = decision_transformer(DecisionTransformerConfig(**NET), chain_episodes(), checkpoint=keep)
    elif method == "tt":
        found = trajectory_transformer(
            TrajectoryTransformerConfig(**NET, bins=4, planning={"memory": 1}), ragged(4, 3), checkpoint=keep
        )
    elif method == "q":
        found = q_transformer(QTransformerConfig(**NET, bins=4, polyak=0.5), ragged(4, 3), checkpoint=keep)
    elif method == "gato":
        found = gato(
            GatoConfig(**{**NET, "dropout": 0.3}), {"chain": build_array_task(chain_episodes())}, checkpoint=keep
        )
    else:
        config = OnlineDTConfig(**NET, acting=2, rounds=2, updates=5, temperature_lr=0.1, replay=3)
        whole = online_dt(config, ragged(4, 3, 2), explore=played, checkpoint=keep)
        return (
            whole.policy.model.state_dict(),
            whole.policy.history,
            (whole.temperature, whole.entropy, whole.online_returns),
        )
    return found.model.state_dict(), found.history, ()


@pytest.mark.parametrize(
    ("method", "stops"),
    [
        ("dt", (4, 7, 9)),
        ("tt", (5,)),
        ("q", (5, 8)),
        ("gato", (6,)),
        ("odt", (5, 12, 17)),
    ],
)
def test_it_goes_on_to_the_same_result(method, stops, tmp_path):
    weights, history, more = learned(method)

    def stop(row, *, at):
        if row["update"] >= at:
            raise Stopped

    for at in stops:  # kept every second update: what came after the last state is done again
        with pytest.raises(Stopped):
            learned(method, SequenceCheckpoint(tmp_path / "state", every=2, on_row=partial(stop, at=at)))
    told = []
    found, rows, others = learned(method, SequenceCheckpoint(tmp_path / "state", every=2, on_row=told.append))
    assert rows == history and others == more and 0 < len(told) < len(history)
    for name, value in weights.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)
    assert learned(method, SequenceCheckpoint(tmp_path / "state", on_row=told.append))[1] == history, (
        "nothing is left to do"
    )


def test_other_settings_and_data_are_refused(tmp_path):
    keep = partial(SequenceCheckpoint, tmp_path / "state")
    decision_transformer(DecisionTransformerConfig(**NET), chain_episodes(), checkpoint=keep())
    with pytest.raises(ConfigError, match="other settings") as caught:
        decision_transformer(DecisionTransformerConfig(**NET, scale=2.0), chain_episodes(), checkpoint=keep())
    assert "scale" in str(caught.value) and "width" not in str(caught.value)
    with pytest.raises(ConfigError, match="other settings"):
        decision_transformer(DecisionTransformerConfig(**NET), chain_episodes(2), checkpoint=keep())


def test_a_file_that_is_no_state(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"torn")
    with pytest.raises(CorruptRecord):
        learned("dt", SequenceCheckpoint(path))
    path.unlink()
    model, optimizer = torch.nn.Linear(2, 2), None
    optimizer = torch.optim.AdamW(model.parameters())
    SequenceCheckpoint(path).write(model, optimizer)
    other = torch.nn.Linear(3, 2)
    with pytest.raises(ShapeMismatch):
        SequenceCheckpoint(path).resume(other, torch.optim.AdamW(other.parameters()), first=0)
    assert np.array_equal(SequenceCheckpoint(path).resume(model, optimizer, first=3).updates, 3)
