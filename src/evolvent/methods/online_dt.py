"""Online Decision Transformer: learned from data, then from what it plays itself, with an entropy that does not vanish.

"Online Decision Transformer" (arXiv 2202.05607). The policy is a squashed Gaussian; it maximises the likelihood of the
data under the bound that its entropy is at least `-dim`, whose multiplier is a temperature that is learned beside it.
Online it plays episodes, asked for twice the return that it is evaluated at, and keeps them whole in a replay of the
latest. Their returns-to-go are those that were really earned (hindsight), not those that were asked for.

It departs from the paper in its optimizer (AdamW for LAMB). Actions are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from evolvent.config import Config
from evolvent.errors import ConfigError
from evolvent.methods.decision_transformer import ReturnConditioned
from evolvent.offline.training import SequenceTraining
from evolvent.store.episodes import Episodes, joined

if TYPE_CHECKING:
    from evolvent.models.sequences import DecisionModel
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import Keeping

__all__ = ["OnlineDT", "TrainedOnline", "online_dt"]


class OnlineDT(Config):
    """What can be chosen about Online Decision Transformer; the defaults are the paper's."""

    context: int = Field(default=20, ge=1, description="steps that are read while learning")
    acting: int = Field(default=5, ge=1, description="steps that are read while playing")
    scale: float = Field(default=1000.0, gt=0, description="what returns are divided by")
    width: int = Field(default=512, ge=1, description="of the network")
    heads: int = Field(default=4, ge=1, description="of its attention")
    layers: int = Field(default=4, ge=1, description="blocks")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="while training")
    temperature: float = Field(default=0.1, gt=0, description="of the entropy, at first")
    temperature_lr: float = Field(default=1e-4, gt=0, description="its learning rate")
    target: float = Field(default=3600.0, description="the return that the policy is evaluated at")
    explore: float = Field(default=2.0, gt=0, description="the return asked for while exploring, in targets")
    replay: int = Field(default=1000, ge=1, description="episodes that are kept")
    rounds: int = Field(default=0, ge=0, description="episodes that are played online")
    updates: int = Field(default=300, ge=1, description="of the weights after each of them")
    train: SequenceTraining = Field(
        default=SequenceTraining(updates=10_000, batch=256, weight_decay=5e-4), description="how it is trained offline"
    )
    seed: int = Field(default=0, ge=0, description="of everything random")


@dataclass(frozen=True)
class TrainedOnline:
    """What was learned. `history`: update and loss; `entropy`: of the policy on each batch's windows; `played`: the
    returns of the episodes that were played online."""

    policy: ReturnConditioned
    temperature: float
    entropy: tuple[float, ...]
    played: tuple[float, ...]


class _Dual:
    """The loss of the policy, and the temperature that keeps its entropy up."""

    def __init__(self, config: OnlineDT, model: DecisionModel) -> None:
        import torch

        self.model, self.batch, self.floor = model, config.train.batch, -float(model.shape.dim)
        self.log = torch.tensor(np.log(config.temperature), dtype=torch.float32, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.log], config.temperature_lr)
        self.entropy: list[float] = []

    def loss(self, source: Any, rng: np.random.Generator) -> Any:
        """`-(log-likelihood + T entropy)` over the decided steps, and how many they are."""
        import torch

        from evolvent.models.sequences import squashed_logp, squashed_sample

        read = source.draw(rng, self.batch)
        found = self.model(read.observation, read.action, to_go=read.to_go, time=read.time, seen=read.seen)
        gaussian, action = found[read.decided], read.action[read.decided]
        noise = torch.from_numpy(rng.standard_normal(tuple(action.shape)).astype(np.float32))
        entropy = -squashed_sample(gaussian, noise)[1].mean()
        self.entropy.append(float(entropy.detach()))
        temperature, count = self.log.detach().exp(), read.count
        return -(squashed_logp(gaussian, action).sum() + temperature * entropy * count), count

    def step(self, _: int) -> None:
        """Move the temperature by the entropy of the last batch."""
        import torch

        from evolvent.offline.losses import temperature_loss

        self.optimizer.zero_grad()
        entropy = torch.tensor(self.entropy[-1])
        torch.autograd.backward(temperature_loss(self.log, entropy, floor=self.floor))
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The temperature, its optimizer's moments, and the entropies so far."""
        import torch

        from evolvent.offline.state import moments

        return {"log": self.log, "entropy": torch.tensor(self.entropy, dtype=torch.float64), **moments(self.optimizer)}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Back to what `state_dict` gave."""
        from evolvent.offline.state import load_moments

        self.log.data.copy_(state["log"])
        self.entropy[:] = state["entropy"].tolist()
        load_moments(self.optimizer, {name: value for name, value in state.items() if "/" in name})


def online_dt(
    config: OnlineDT,
    episodes: Episodes,
    *,
    explore: Callable[[ArrayActor, int], Episodes] | None = None,
    keep: Keeping | None = None,
) -> TrainedOnline:
    """Learn from episodes, then from `config.rounds` episodes that are played.

    Args:
        episodes: actions are numbers in -1..1. Of more than `replay` the best are kept, and the worst of these are the
            first to go when new ones come; else the first go first (published code).
        explore: plays one episode with an actor, by its number.
        keep: where the training is kept; one that is begun again there goes on. `explore` is then asked again for the
            episodes that were played: let it return those, not new ones.
    Raises:
        ConfigError: discrete actions, actions outside -1..1, rounds without `explore`; a training of other settings is
            kept there. NonFinite: learning broke down.
    """
    from evolvent.models.sequences import DecisionModel, SequenceShape
    from evolvent.offline.state import begun
    from evolvent.offline.training import fit_windows, made_optimizer, seeded
    from evolvent.offline.windows import Standard, WindowSource

    _check(config, episodes, plays=explore is not None)
    shape = SequenceShape(
        observation=episodes.observation.shape[1],
        dim=episodes.dim,
        context=config.context,
        horizon=0,
        stochastic=True,
        scale=config.scale,
        width=config.width,
        heads=config.heads,
        layers=config.layers,
        dropout=config.dropout,
    )
    model = seeded(lambda: DecisionModel(shape), config.seed)
    standard, optimizer, dual = Standard.of(episodes), made_optimizer(model, config.train), _Dual(config, model)
    crowded = len(episodes.lengths) > config.replay
    best = np.argsort(episodes.returns, kind="stable")[-config.replay :]
    replay = episodes.chosen(best) if crowded else episodes
    sources = [WindowSource(replay, context=config.context, standard=standard)]

    def loss(rng: np.random.Generator) -> Any:
        return dual.loss(sources[-1], rng)

    fit = partial(
        fit_windows,
        model,
        loss,
        seed=config.seed,
        optimizer=optimizer,
        after=dual.step,
        keep=begun(keep, config, episodes.digest, dual=dual),
    )
    history = list(fit(config.train))
    policy, played = ReturnConditioned(model, standard), []
    online = config.train.model_copy(update={"updates": config.updates})
    done = config.train.updates
    for number in range(config.rounds):
        if explore is None:
            break
        actor = policy.actor(config.explore * config.target, context=config.acting, greedy=False)
        new = explore(actor, number)
        played += new.returns.tolist()
        whole = joined([replay, new])
        replay = whole.chosen(np.arange(len(whole.lengths))[-config.replay :])
        sources[-1] = WindowSource(replay, context=config.context, standard=standard)
        history += fit(online, first=done)
        done += config.updates
    trained = ReturnConditioned(model, standard, tuple(history))
    return TrainedOnline(trained, float(dual.log.detach().exp()), tuple(dual.entropy), tuple(played))


def _check(config: OnlineDT, episodes: Episodes, *, plays: bool) -> None:
    if not episodes.dim:
        raise ConfigError("Online Decision Transformer is for actions that are numbers", value="choices")
    if float(np.abs(episodes.action).max()) > 1.0:
        raise ConfigError("actions lie outside -1..1", value=float(np.abs(episodes.action).max()))
    if config.rounds and not plays:
        raise ConfigError("rounds of playing need an `explore`", value=config.rounds)
