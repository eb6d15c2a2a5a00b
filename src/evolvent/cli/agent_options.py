"""Who plays: an expert, chance, a policy of ours, or a model behind an endpoint; the same settings everywhere."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field, SecretStr, model_validator

from evolvent.agents.base import Agent
from evolvent.agents.plain import Expert, Random
from evolvent.bench.suite import Player
from evolvent.cli.memory_agents import Remembered, remembering
from evolvent.cli.progress import Progress
from evolvent.cli.registry import needs_train, policy
from evolvent.cli.settings import OverWorlds
from evolvent.config import Config
from evolvent.engine.servers import ServerDialect, endpoint_type
from evolvent.rollout.collect import collect
from evolvent.store.store import Store
from evolvent.trajectory import Json, Start, Trajectory
from evolvent.worlds.base import World

if TYPE_CHECKING:
    from evolvent.engine.asks import Engine

__all__ = ["PlayedBy", "PlayedByOverWorlds", "Playing", "Spent", "kept", "playing", "resumed"]


_LONGEST = {"policy": 32, "endpoint": 512}  # tokens of an action; an endpoint's reply holds its reasoning too
_KEY = "OPENAI_API_KEY"


class PlayedBy(Config):
    """The settings of everything that one agent plays."""

    agent: Literal["expert", "random", "policy", "endpoint"] = Field(default="expert", description="who plays")
    policy: str = Field(default="xs", description="for the agent policy: a size, a model folder, or a run")
    endpoint: str = Field(default="", description="for the agent endpoint: its URL, as http://127.0.0.1:8000/v1")
    model: str = Field(default="", description="for the agent endpoint: the model to ask there")
    dialect: ServerDialect = Field(default="openai", description="for the agent endpoint: what it speaks")
    key_env: str = Field(default=_KEY, description="the environment variable that holds the endpoint's key")
    tokens: bool = Field(default=False, description="demand token ids and log-probabilities of the endpoint")
    processed: bool = Field(
        default=False, description="its log-probabilities are of what was sampled from: evolvent, vLLM if told to"
    )
    temperature: float = Field(default=1.0, ge=0, description="of the policy; 0: the likeliest token")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    slots: int = Field(default=192, ge=1, description="episodes open at once")
    max_tokens: int | None = Field(default=None, ge=1, description="longest action; none: 32, of an endpoint 512")
    threads: int = Field(default=1, ge=1, description="threads of torch")

    @model_validator(mode="after")
    def _named(self) -> PlayedBy:
        if self.agent == "endpoint" and not (self.endpoint and self.model):
            raise ValueError("the agent endpoint needs --endpoint URL and --model NAME")
        return self


class PlayedByOverWorlds(OverWorlds, PlayedBy):
    """The settings of what one agent plays in worlds that are named."""

    shown: Remembered = Field(default_factory=Remembered, description="what it is shown of a memory of steps")

    @model_validator(mode="after")
    def _asked(self) -> PlayedByOverWorlds:
        if self.shown.memory is not None and self.agent not in ("policy", "endpoint"):
            raise ValueError(f"--shown.memory is for the agents policy and endpoint, not for {self.agent}")
        return self


@dataclass(frozen=True)
class Spent:
    """Tokens so far: computed here, read by an endpoint, written by an endpoint."""

    computed: int = 0
    prompted: int = 0
    completed: int = 0


@dataclass(frozen=True)
class Playing:
    """An agent ready to play.

    Args:
        agent, engine: what `collect` takes.
        player: how results name it.
        spent: what it has cost so far.
    """

    agent: Agent
    engine: Engine | None
    player: Player
    spent: Callable[[], Spent] = Spent


@contextmanager
def playing(config: PlayedBy, worlds: Mapping[str, World], *, verb: str) -> Iterator[Playing]:
    """The agent that the settings name; what it holds is given back at the end.

    Args:
        verb: of the command, for the sentence that names a missing extra.
    Raises:
        MissingExtra: a policy without torch. ConfigError, Incomplete, VocabularyMismatch: a policy that cannot play.
        EndpointError: an endpoint that does not answer.
    """
    if config.agent == "policy":
        yield _policy(config, worlds, verb)
    elif config.agent == "endpoint":
        with _endpoint(config) as found:
            yield found
    else:
        yield Playing(Expert() if config.agent == "expert" else Random(), None, Player(config.agent, config.agent))


def _policy(config: PlayedBy, worlds: Mapping[str, World], verb: str) -> Playing:
    needs_train(f"evolvent {verb} --agent policy")
    import torch

    from evolvent.agents.language import LanguageAgent
    from evolvent.engine.asks import Sampling
    from evolvent.engine.fitting import engine_for

    torch.set_num_threads(config.threads)
    chosen = policy(config.policy, list(worlds.values()), seed=config.seed)
    longest = config.max_tokens or _LONGEST["policy"]
    agent: Agent = LanguageAgent(chosen, Sampling(temperature=config.temperature), max_tokens=longest)
    engine = engine_for(chosen, slots=config.slots)
    about: dict[str, Json] = {
        "policy": config.policy,
        "version": chosen.version,
        "temperature": config.temperature,
        "max_tokens": longest,
    }
    if (shown := _shown(config)) is not None:
        agent, more = remembering(chosen, shown, temperature=config.temperature, longest=config.max_tokens)
        about |= more
    return Playing(agent, engine, Player(config.policy, "policy", about), lambda: Spent(engine.usage.computed))


def _shown(config: PlayedBy) -> Remembered | None:
    """What the agent is shown of a memory; None: nothing."""
    shown = config.shown if isinstance(config, PlayedByOverWorlds) else None
    return None if shown is None or shown.memory is None else shown


@contextmanager
def _endpoint(config: PlayedBy) -> Iterator[Playing]:
    from evolvent.agents.chat import ChatAgent
    from evolvent.engine.asks import Sampling

    key = os.environ.get(config.key_env)
    secret = SecretStr(key) if key else None
    speaking = endpoint_type(config.dialect)
    with speaking(config.endpoint, config.model, key=secret, tokens=config.tokens, processed=config.processed) as asked:
        asked.check()
        longest = config.max_tokens or _LONGEST["endpoint"]
        agent: Agent = ChatAgent(asked, Sampling(temperature=config.temperature), max_tokens=longest)
        about: dict[str, Json] = {"model": config.model, "temperature": config.temperature, "max_tokens": longest}
        if (shown := _shown(config)) is not None:
            agent, more = remembering(asked, shown, temperature=config.temperature, longest=config.max_tokens)
            about |= more

        def spent() -> Spent:
            return Spent(0, asked.usage.prompt, asked.usage.completion)

        yield Playing(agent, None, Player(config.model, "endpoint", about), spent)


def resumed(
    world: World,
    names: Mapping[Start, str],
    by: Playing,
    *,
    store: Store,
    progress: Progress,
    config: PlayedBy,
    label: str,
) -> list[Trajectory]:
    """The episodes of a world under these names: those that the store holds, and those that are missing, played now.

    What was lost to a failure is played again, under its name with `~` and the number of tries behind it.
    """
    done: dict[str, Trajectory] = {}
    tries: Counter[str] = Counter()
    for one in store.trajectories(where={"world": world.name}):
        name = one.id.partition("~")[0]
        tries[name] += 1
        if one.error is None:
            done[name] = one
    todo = [start for start, name in names.items() if name not in done]

    def called(start: Start) -> str:
        name = names[start]
        return f"{name}~{tries[name]}" if tries[name] else name

    episodes = collect(
        {world.name: world},
        todo,
        by.agent,
        engine=by.engine,
        seed=config.seed,
        slots=config.slots,
        name=called,
    )
    with closing(episodes) as played:
        return [
            *(done[name] for name in names.values() if name in done),
            *kept(played, store, progress, count=len(todo), label=label),
        ]


def kept(
    played: Iterator[Trajectory], store: Store, progress: Progress, *, count: int, label: str = "collect"
) -> Iterator[Trajectory]:
    """Store every episode as it ends, show how far it is, and hand it on."""
    wins = scored = steps = 0
    progress.begin("collect", label, count)
    for number, trajectory in enumerate(played, 1):
        store.append(trajectory)
        wins, scored = wins + bool(trajectory.success), scored + (trajectory.success is not None)
        steps += len(trajectory.steps)
        share = {"success": wins / scored} if scored else {}
        progress.note({"episodes": number, "env_steps": steps, **share})
        yield trajectory
    progress.end()
