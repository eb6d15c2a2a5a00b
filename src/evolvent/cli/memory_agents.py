"""Agents that see steps of a memory: TRAD and its family, over a policy or an endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from evolvent.agents.base import Agent
from evolvent.cli.extensions import load_encoder
from evolvent.config import Config, resolve
from evolvent.trajectory import Json

if TYPE_CHECKING:
    from evolvent.engine.endpoint import Endpoint
    from evolvent.models.policy import Policy

__all__ = ["MemoryConfig", "make_memory_agent"]


class MemoryConfig(Config):
    """Settings of the memory of steps that an agent sees (`evolvent memory build`)."""

    folder: Path | None = Field(default=None, description="the folder of a memory of steps; none: nothing is shown")
    system: Literal["trad", "synapse", "react", "rap"] = Field(default="trad", description="what is shown, and when")
    num_examples: int = Field(default=2, ge=1, description="demonstrations in a prompt")
    kind_words: int | None = Field(default=None, ge=1, description="first words of kinds that must agree; none: any")
    encoder: str = Field(default="", description="what the memory was built with: a folder or a name; none: n-grams")


def make_memory_agent(
    model: Policy | Endpoint, memory_config: MemoryConfig, *, temperature: float, max_tokens: int | None
) -> tuple[Agent, dict[str, Json]]:
    """Makes an agent that sees steps of a memory, and the facts that results state about it.

    Args:
        model: the policy or endpoint that writes.
        memory_config: the memory and its use.
        temperature: the sampling temperature.
        max_tokens: maximum tokens of an action; None: the method's default.
    Raises:
        ConfigError: a memory that cannot serve the system.
        HashMismatch, Incomplete and others: as `StepMemory.load`.
    """
    from evolvent.agents.prompts import prompts_digest
    from evolvent.memory.steps import StepMemory
    from evolvent.methods import trad

    presets = {"trad": trad.TRAD, "synapse": trad.SYNAPSE, "react": trad.REACT, "rap": trad.RAP}
    settings = {
        **presets[memory_config.system],
        "k": memory_config.num_examples,
        "kind_words": memory_config.kind_words,
        "temperature": temperature,
    }
    config = resolve(
        trad.TradConfig, preset=settings if max_tokens is None else {**settings, "action_tokens": max_tokens}
    )
    memory = StepMemory.load(
        Path(memory_config.folder or "."), load_encoder(memory_config.encoder) if memory_config.encoder else None
    )
    facts: dict[str, Json] = {
        "system": memory_config.system,
        "memory": memory.digest,
        "prompts": prompts_digest(),
        "max_tokens": config.action_tokens,
    }
    return trad.build_agent(model, config, memory=memory), facts
