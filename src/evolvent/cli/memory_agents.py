"""Agents that are shown steps of a memory: TRAD and its family, over a policy or an endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from evolvent.agents.base import Agent
from evolvent.cli.extensions import encoder
from evolvent.config import Config, resolve
from evolvent.trajectory import Json

if TYPE_CHECKING:
    from evolvent.engine.endpoint import Endpoint
    from evolvent.models.policy import Policy

__all__ = ["Remembered", "remembering"]


class Remembered(Config):
    """What an agent is shown of a memory of steps (`evolvent memory build`)."""

    memory: Path | None = Field(default=None, description="the folder of a memory of steps; none: nothing is shown")
    system: Literal["trad", "synapse", "react", "rap"] = Field(default="trad", description="what is shown, and when")
    k: int = Field(default=2, ge=1, description="demonstrations in a prompt")
    kind_words: int | None = Field(default=None, ge=1, description="first words of kinds that must agree; none: any")
    encoder: str = Field(default="", description="what the memory was built with: a folder or a name; none: n-grams")


def remembering(
    who: Policy | Endpoint, shown: Remembered, *, temperature: float, longest: int | None
) -> tuple[Agent, dict[str, Json]]:
    """The agent, and what results say of it.

    Args:
        longest: tokens of an action; None: what the method says.
    Raises:
        ConfigError: a memory that cannot serve the system. HashMismatch, Incomplete and others: as `StepMemory.load`.
    """
    from evolvent.agents.prompts import prompts_digest
    from evolvent.memory.steps import StepMemory
    from evolvent.methods import trad

    presets = {"trad": trad.TRAD, "synapse": trad.SYNAPSE, "react": trad.REACT, "rap": trad.RAP}
    chosen = {**presets[shown.system], "k": shown.k, "kind_words": shown.kind_words, "temperature": temperature}
    config = resolve(trad.Trad, preset=chosen if longest is None else {**chosen, "action_tokens": longest})
    memory = StepMemory.load(Path(shown.memory or "."), encoder(shown.encoder) if shown.encoder else None)
    about: dict[str, Json] = {
        "system": shown.system,
        "memory": memory.digest,
        "prompts": prompts_digest(),
        "max_tokens": config.action_tokens,
    }
    return trad.agent_for(who, config, memory=memory), about
