"""A network that plays a team: views in, decisions out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.errors import ConfigError, NonFinite
from evolvent.marl.rollout import ArrayRollout, Decision, decision_draws
from evolvent.models.team_actions import Seen, TeamModel, TeamShape
from evolvent.worlds.teams.base import Continuous, Discrete, TeamSpec, TeamView

__all__ = ["TeamPolicy", "rollout_actions", "rollout_seen", "seen_of", "shape_of"]


def shape_of(spec: TeamSpec, kind: str = "mat", **settings: int | bool) -> TeamShape:
    """The shape of a network that fits a team.

    Args:
        kind, settings: as in `TeamShape` (width, heads, blocks, share, prefix_values).
    Raises:
        ConfigError: a kind or setting that there is none of.
    """
    actions = spec.actions
    sizes: list[int] = []
    if not isinstance(actions, Continuous):
        sizes = [actions.n] if isinstance(actions, Discrete) else list(actions.sizes)
    space = {"sizes": tuple(sizes), "dim": actions.dim if isinstance(actions, Continuous) else 0}
    given: dict[str, Any] = {"kind": kind, "agents": spec.agents, "observation": spec.observation}
    given["state"] = spec.state if kind in ("mappo", "happo") else 0  # nobody else reads it
    try:
        return TeamShape(**given, **space, **settings)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigError("no network of a team", value=str(error)) from error


def seen_of(view: TeamView, device: torch.device | None = None) -> Seen:
    """A view as a network reads it. What does not restrict anything (all alive, all available) is left out."""
    return _seen(view.observation, view.alive, view.available, view.state, device)


def rollout_seen(rollout: ArrayRollout, device: torch.device | None = None) -> Seen:
    """What all `T x E` decisions rested on, step after step."""

    def flat(array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(-1, *array.shape[2:])

    return _seen(
        flat(rollout.observation), flat(rollout.alive), _if(flat, rollout.available), _if(flat, rollout.state), device
    )


def rollout_actions(rollout: ArrayRollout, device: torch.device | None = None) -> Tensor:
    """The actions of all `T x E` decisions, `[T E, n, K]`; whole numbers, or float32."""
    given = rollout.actions.reshape(-1, rollout.spec.agents, *rollout.actions.shape[3:])
    given = given[..., None] if given.ndim == 2 else given
    continuous = isinstance(rollout.spec.actions, Continuous)
    return torch.from_numpy(np.ascontiguousarray(given, np.float32 if continuous else np.int64)).to(device)


def _if(change: Callable[[NDArray[Any]], NDArray[Any]], array: NDArray[Any] | None) -> NDArray[Any] | None:
    return None if array is None else change(array)


def _seen(
    observation: NDArray[np.float32],
    alive: NDArray[np.bool_],
    available: NDArray[np.bool_] | None,
    state: NDArray[np.float32] | None,
    device: torch.device | None,
) -> Seen:
    def sent(array: NDArray[np.generic] | None) -> Tensor | None:
        return None if array is None else torch.from_numpy(np.ascontiguousarray(array)).to(device)

    found = sent(np.asarray(observation, np.float32))
    if found is None:
        raise ConfigError("a team that sees nothing")
    return Seen(
        found,
        None if alive.all() else sent(alive),
        None if available is None or available.all() else sent(available),
        None if state is None else sent(np.asarray(state, np.float32)),
    )


@dataclass(frozen=True, slots=True)
class TeamPolicy:
    """A network that decides for teams of a spec: a `TeamPlayer`.

    Args:
        model: of the spec's spaces. spec: the team that is played; agents may differ from those of training.
    """

    model: TeamModel
    spec: TeamSpec

    def act(self, view: TeamView, *, seed: int, greedy: bool = False) -> Decision:
        """Decide in all rows. Raises NonFinite where the network's numbers are none: its weights are broken."""
        device = next(self.model.parameters()).device
        parts, agents = self.model.shape.parts, self.spec.agents
        if greedy:
            uniform = torch.empty(len(view.number), agents, parts)  # not looked at
        else:
            uniform = torch.from_numpy(decision_draws(seed, view.number, view.time, agents=agents, parts=parts))
        with torch.inference_mode():
            acted = self.model.act(seen_of(view, device), uniform.to(device), greedy=greedy)
        logp, value = (np.asarray(x.cpu().numpy(), np.float32) for x in (acted.logp, acted.values))
        if not (np.isfinite(logp[view.alive]).all() and np.isfinite(value[view.alive]).all()):
            raise NonFinite(
                "a team's policy gives numbers that are not finite", hint="go back to an earlier checkpoint"
            )
        actions = acted.actions.cpu().numpy()
        return Decision(
            actions=actions[..., 0] if isinstance(self.spec.actions, Discrete) else actions, logp=logp, value=value
        )

    def values(self, view: TeamView) -> NDArray[np.float32]:
        """The critic's values `[E, n]` of a view."""
        with torch.no_grad():
            found = self.model.values(seen_of(view, next(self.model.parameters()).device))
        return np.asarray(found.cpu().numpy(), np.float32)
