"""Online Decision Transformer: trained on data, then on its own episodes, with a lower bound on its entropy.

"Online Decision Transformer" (arXiv 2202.05607). The policy is a squashed Gaussian; it maximizes the likelihood
of the data under the bound that its entropy is at least `-dim`, whose multiplier is a temperature that is
learned beside it. Online it plays episodes, conditioned on twice the return that it is evaluated at, and stores
them whole in a replay of the latest. Their returns-to-go are those that were really earned (hindsight), not
those that were requested.

It departs from the paper in its optimizer (AdamW for LAMB). Where actions are choices, the policy is a categorical
distribution whose entropy is exact and has a bound above 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from evolvent.config import Config
from evolvent.errors import ConfigError
from evolvent.methods.decision_transformer import ReturnConditionedPolicy
from evolvent.offline.settings import SequenceTrainingConfig
from evolvent.store.episodes import Episodes, concatenate_episodes

if TYPE_CHECKING:
    from torch import Tensor

    from evolvent.models.sequences import DecisionModel
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import SequenceCheckpoint

__all__ = ["OnlineDTConfig", "TrainedOnlineDT", "find_entropy_floor", "online_dt"]


class OnlineDTConfig(Config):
    """Settings of Online Decision Transformer; the defaults are the paper's."""

    context: int = Field(default=20, ge=1, description="steps that are read while learning")
    acting: int = Field(default=5, ge=1, description="steps that are read while playing")
    scale: float = Field(default=1000.0, gt=0, description="what returns are divided by")
    width: int = Field(default=512, ge=1, description="of the network")
    heads: int = Field(default=4, ge=1, description="of its attention")
    layers: int = Field(default=4, ge=1, description="blocks")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="while training")
    temperature: float = Field(default=0.1, gt=0, description="of the entropy, at first")
    temperature_lr: float = Field(default=1e-4, gt=0, description="its learning rate")
    entropy_floor: float | None = Field(
        default=None,
        description="least entropy in nats; none: minus the numbers of an action, or a tenth of log A for A choices",
    )
    target: float = Field(default=3600.0, description="the return that the policy is evaluated at")
    explore: float = Field(default=2.0, gt=0, description="the return asked for while exploring, in targets")
    replay: int = Field(default=1000, ge=1, description="episodes that are kept")
    rounds: int = Field(default=0, ge=0, description="episodes that are played online")
    updates: int = Field(default=300, ge=1, description="of the weights after each of them")
    train: SequenceTrainingConfig = Field(
        default=SequenceTrainingConfig(max_steps=10_000, batch=256, weight_decay=5e-4),
        description="how it is trained offline",
    )
    seed: int = Field(default=0, ge=0, description="of everything random")


@dataclass(frozen=True)
class TrainedOnlineDT:
    """A trained policy.

    `entropy`: of the policy on each batch's windows; `online_returns`: returns of the episodes that were played
    online.
    """

    policy: ReturnConditionedPolicy
    temperature: float
    entropy: tuple[float, ...]
    online_returns: tuple[float, ...]


class _EntropyDual:
    """The loss of the policy, and the temperature that keeps its entropy above the bound."""

    def __init__(self, config: OnlineDTConfig, model: DecisionModel) -> None:
        import torch

        self.model, self.batch = model, config.train.batch
        self.floor = find_entropy_floor(config, choices=model.shape.actions, dim=model.shape.dim)
        self.log = torch.tensor(np.log(config.temperature), dtype=torch.float32, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.log], config.temperature_lr)
        self.entropy: list[float] = []

    def loss(self, source: Any, rng: np.random.Generator) -> Any:
        """Computes `-(log-likelihood + T entropy)` over the decided steps, and their number."""

        device = next(self.model.parameters()).device
        windows = source.sample(rng, self.batch).to(device)
        outputs = self.model(
            windows.observation, windows.action, to_go=windows.to_go, time=windows.time, attention_mask=windows.seen
        )
        logp, entropy = self._score(outputs[windows.decided], windows.action[windows.decided], rng)
        self.entropy.append(float(entropy.detach()))
        temperature, count = self.log.detach().exp().to(device), windows.count
        return -(logp.sum() + temperature * entropy * count), count

    def _score(self, outputs: Tensor, action: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Computes the log-probability of each action, and the mean entropy: exact of choices, else by one sample."""
        import torch

        from evolvent.models.sequences import squashed_logp, squashed_sample

        if self.model.shape.actions:
            logp = outputs.log_softmax(-1)
            return logp.gather(-1, action[:, None])[:, 0], -(logp.exp() * logp).sum(-1).mean()
        noise = torch.from_numpy(rng.standard_normal(tuple(action.shape)).astype(np.float32)).to(outputs.device)
        return squashed_logp(outputs, action), -squashed_sample(outputs, noise)[1].mean()

    def step(self, _: int) -> None:
        """Updates the temperature by the entropy of the last batch."""
        import torch

        from evolvent.offline.losses import temperature_loss

        self.optimizer.zero_grad()
        entropy = torch.tensor(self.entropy[-1])
        torch.autograd.backward(temperature_loss(self.log, entropy, floor=self.floor))
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Returns the temperature, its optimizer's moments, and the entropies so far."""
        import torch

        from evolvent.offline.state import optimizer_moments

        return {
            "log": self.log,
            "entropy": torch.tensor(self.entropy, dtype=torch.float64),
            **optimizer_moments(self.optimizer),
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Restores the state that `state_dict` returned."""
        from evolvent.offline.state import load_moments

        self.log.data.copy_(state["log"])
        self.entropy[:] = state["entropy"].tolist()
        load_moments(self.optimizer, {name: value for name, value in state.items() if "/" in name})


def find_entropy_floor(config: OnlineDTConfig, *, choices: int, dim: int) -> float:
    """Returns the lower bound of the entropy in nats: the setting, `-dim`, or a tenth of `log A` for A choices.

    >>> find_entropy_floor(OnlineDTConfig(), choices=0, dim=3)
    -3.0
    >>> round(find_entropy_floor(OnlineDTConfig(), choices=2, dim=0), 4)
    0.0693
    """
    if config.entropy_floor is not None:
        return config.entropy_floor
    return 0.1 * math.log(choices) if choices else -float(dim)


def online_dt(
    config: OnlineDTConfig,
    episodes: Episodes,
    *,
    explore: Callable[[ArrayActor, int], Episodes] | None = None,
    checkpoint: SequenceCheckpoint | None = None,
    device: str = "cpu",
) -> TrainedOnlineDT:
    """Trains on episodes, then on `config.rounds` episodes that are played.

    Args:
        episodes: actions are choices, or numbers in -1..1. Of more than `replay` episodes the best are kept, and the
            worst of these are the first to be dropped for new ones; else the first are dropped first (published code).
        explore: plays one episode with an actor, by its number.
        checkpoint: where the training is stored; an existing one is resumed. `explore` is then asked again for the
            episodes that were played: let it return those, not new ones.
        device: where the networks learn, as "cuda:1"; the policy is on the CPU afterwards.
    Raises:
        ConfigError: actions are outside -1..1, rounds lack `explore`, or the checkpoint is of a
            training with other settings.
        NonFinite: training diverged.
    """
    from evolvent.models.sequences import DecisionModel, SequenceShape
    from evolvent.offline.state import configure_checkpoint
    from evolvent.offline.training import build_optimizer, build_seeded, fit_windows
    from evolvent.offline.windows import ObservationScaler, WindowSource

    _check_settings(config, episodes, plays=explore is not None)
    shape = SequenceShape(
        observation=episodes.observation.shape[1],
        actions=episodes.actions,
        dim=episodes.action_dim,
        context=config.context,
        horizon=0,
        stochastic=not episodes.actions,
        scale=config.scale,
        width=config.width,
        heads=config.heads,
        layers=config.layers,
        dropout=config.dropout,
    )
    model = build_seeded(lambda: DecisionModel(shape), config.seed).to(device)
    standard, optimizer, dual = (
        ObservationScaler.from_episodes(episodes),
        build_optimizer(model, config.train),
        _EntropyDual(config, model),
    )
    is_full = len(episodes.lengths) > config.replay
    best = np.argsort(episodes.returns, kind="stable")[-config.replay :]
    replay = episodes.select(best) if is_full else episodes
    sources = [WindowSource(replay, context=config.context, standard=standard)]

    def loss(rng: np.random.Generator) -> Any:
        return dual.loss(sources[-1], rng)

    fit = partial(
        fit_windows,
        model,
        loss,
        seed=config.seed,
        optimizer=optimizer,
        on_update=dual.step,
        checkpoint=configure_checkpoint(checkpoint, config, episodes.digest, dual=dual),
        device=device,
    )
    history = list(fit(config.train))
    policy, online_returns = ReturnConditionedPolicy(model, standard), []
    online_training = config.train.model_copy(update={"max_steps": config.updates})
    updates_done = config.train.max_steps
    for number in range(config.rounds):
        if explore is None:
            break
        actor = policy.build_actor(config.explore * config.target, context=config.acting, greedy=False)
        new_episodes = explore(actor, number)
        online_returns += new_episodes.returns.tolist()
        all_episodes = concatenate_episodes([replay, new_episodes])
        replay = all_episodes.select(np.arange(len(all_episodes.lengths))[-config.replay :])
        sources[-1] = WindowSource(replay, context=config.context, standard=standard)
        history += fit(online_training, first=updates_done)
        updates_done += config.updates
    trained = ReturnConditionedPolicy(model, standard, tuple(history))
    return TrainedOnlineDT(trained, float(dual.log.detach().exp()), tuple(dual.entropy), tuple(online_returns))


def _check_settings(config: OnlineDTConfig, episodes: Episodes, *, plays: bool) -> None:
    from evolvent.offline.conditioned import check_action_range

    check_action_range(episodes)
    if config.rounds and not plays:
        raise ConfigError("rounds of exploration need `explore`", value=config.rounds)
