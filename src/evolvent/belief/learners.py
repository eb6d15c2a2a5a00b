"""Learners of stable-baselines3: construction, and networks written and read as safetensors.

`model.save` of stable-baselines3 writes a pickle, which can run anything when it is read; a state dict cannot.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evolvent.errors import ConfigError, CorruptRecord, MissingExtra, ShapeMismatch, unknown_name_problem
from evolvent.files import write_atomic

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env import VecEnv

__all__ = ["LEARNERS", "make_learner", "move_to_cpu", "preserve_generators", "read_networks", "write_networks"]

_OFF_POLICY = {
    "buffer_size": 100_000,
    "learning_starts": 5_000,
    "batch_size": 256,
    "train_freq": 1,
    "gradient_steps": 4,
}
LEARNERS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "dqn": {
            **_OFF_POLICY,
            "target_update_interval": 4_000,
            "exploration_fraction": 0.3,
            "exploration_final_eps": 0.05,
        },
        "ppo": {"n_steps": 64, "n_epochs": 8, "ent_coef": 0.005},
        "ddpg": {**_OFF_POLICY, "noise": 0.3},
        "sac": _OFF_POLICY,
    }
)
"""What each learner is given beside learning rate, discount, width and seed; PPO's batch is an eighth of a rollout.

`noise` is the standard deviation of the normal noise on DDPG's actions, each in -1..1, while it learns: left alone,
stable-baselines3's DDPG does not explore.
"""


def make_learner(
    algorithm: str,
    env: VecEnv,
    *,
    lr: float,
    gamma: float,
    width: int,
    seed: int,
    device: str = "cpu",
    **settings: object,
) -> BaseAlgorithm:
    """Builds a learner with two hidden layers.

    Args:
        algorithm: A name in `LEARNERS`.
        env: The vectorized environment.
        lr: Initial learning rate; it falls linearly to 0, since the last networks are kept.
        gamma: Discount.
        width: Width of the hidden layers.
        seed: Seed of the learner.
        device: Where the networks learn.
        settings: Replace those of `LEARNERS`.
    Raises:
        MissingExtra: stable-baselines3 is not installed. ConfigError: an unknown algorithm.
    """
    if algorithm not in LEARNERS:
        raise ConfigError([unknown_name_problem("algorithm", algorithm, LEARNERS)])
    try:
        import stable_baselines3
        from stable_baselines3.common import noise
    except ImportError as missing:
        raise MissingExtra("control", "learning with stable-baselines3") from missing
    learner_settings: dict[str, Any] = {**LEARNERS[algorithm], **settings}
    if (sigma := learner_settings.pop("noise", 0.0)) > 0:
        shape = env.action_space.shape or (1,)
        learner_settings["action_noise"] = noise.NormalActionNoise(np.zeros(shape), np.full(shape, sigma))
    if algorithm == "ppo":  # parts of one size, whatever is played at once
        learner_settings.setdefault("batch_size", max(2, learner_settings["n_steps"] * env.num_envs // 8))
    algorithm_model: BaseAlgorithm = getattr(stable_baselines3, algorithm.upper())(
        "MlpPolicy",
        env,
        learning_rate=lambda left: lr * left,
        gamma=gamma,
        seed=seed,
        device=device,
        policy_kwargs={"net_arch": [width, width]},
        **learner_settings,
    )
    return algorithm_model


def move_to_cpu(model: BaseAlgorithm) -> None:
    """Moves a learner's networks to the CPU, where they choose actions from now on."""
    import torch

    model.device = torch.device("cpu")
    model.policy.to(model.device)


def write_networks(model: BaseAlgorithm, path: Path) -> None:
    """Writes the networks of a learner's policy, targets included, as one safetensors file."""
    from safetensors.torch import save

    tensors = {name: value.detach().contiguous().clone() for name, value in model.policy.state_dict().items()}
    write_atomic(path, save(tensors, metadata={"format": "pt"}))


def read_networks(model: BaseAlgorithm, path: Path) -> None:
    """Loads the networks of a file into a learner's policy, which stays unchanged where they do not fit.

    Raises:
        ShapeMismatch: networks of another shape or algorithm. CorruptRecord: no safetensors file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(path.read_bytes())
    except SafetensorError as error:
        raise CorruptRecord(f"{path}: cannot read networks: {error}", offset=0) from error
    current = model.policy.state_dict()
    mismatched = sorted(
        name
        for name in {*tensors, *current}
        if name not in tensors or name not in current or tensors[name].shape != current[name].shape
    )
    if mismatched:
        raise ShapeMismatch(
            "networks have the wrong shape", value=mismatched, expected="the shapes of the settings in the same folder"
        )
    model.policy.load_state_dict(tensors)


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Restores the global generators, which stable-baselines3 seeds and uses, at the end of the context."""
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
