"""Settings and setup of the agent that plays: an expert, a random agent, a policy, or a model behind an endpoint."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, SecretStr, model_validator

from evolvent.agents.base import Agent
from evolvent.agents.plain import Expert, Random
from evolvent.bench.suite import Player
from evolvent.cli.setup.extensions import load_encoder
from evolvent.cli.setup.model_defaults import read_model_facts
from evolvent.cli.setup.prompting import ActingConfig
from evolvent.cli.setup.registry import check_policy_name, require_train_extra, resolve_policy
from evolvent.cli.setup.settings import ModelConfig, WorldsConfig
from evolvent.cli.terminal.progress import Progress
from evolvent.config import Config, resolve
from evolvent.engine.servers import ServerDialect, endpoint_type
from evolvent.models.defaults import reply_length
from evolvent.models.dialects import Chat
from evolvent.models.placement import check_working_memory
from evolvent.rollout.episode import Limits, collect
from evolvent.store.store import Store
from evolvent.trajectory import Json, Start, Trajectory
from evolvent.worlds.base import World

__all__ = [
    "AgentConfig",
    "AgentSetup",
    "MemoryConfig",
    "PlayerConfig",
    "TokenUsage",
    "WorldPlayerConfig",
    "WorldsAgentConfig",
    "make_memory_agent",
    "prepare_agent",
    "resume_collection",
    "store_episodes",
]


if TYPE_CHECKING:
    from evolvent.engine.asks import Engine
    from evolvent.engine.endpoint import Endpoint
    from evolvent.models.policy import Policy


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


# Tokens of an action. An endpoint's reply holds its reasoning too.
_ENDPOINT_MAX_TOKENS = 512
_KEY_VARIABLE = "OPENAI_API_KEY"


class PlayerConfig(Config):
    """Settings of who plays; `--agent policy` is short for `--agent.kind policy`."""

    main_setting: ClassVar[str] = "kind"

    kind: Literal["expert", "random", "policy", "endpoint"] = Field(default="expert", description="who plays")

    @model_validator(mode="before")
    @classmethod
    def _accept_kind(cls, values: object) -> object:
        return {"kind": values} if isinstance(values, str) else values


class WorldPlayerConfig(ActingConfig, PlayerConfig):
    """Settings of who plays in worlds, and of the prompt."""

    @model_validator(mode="after")
    def _check_kind(self) -> WorldPlayerConfig:
        if self.restrict_to_admissible and self.kind != "policy":
            raise ValueError(f"restrict_to_admissible needs --agent policy, got {self.kind}")
        if self.examples and self.kind not in ("policy", "endpoint"):
            raise ValueError(f"examples need --agent policy or endpoint, got {self.kind}")
        if self.history is not None and self.kind != "policy":
            raise ValueError(f"history needs --agent policy, got {self.kind}")
        return self


class AgentConfig(ModelConfig):
    """Settings of the agent that plays all episodes of a command."""

    implied_settings: ClassVar[Mapping[str, tuple[str, str]]] = {
        "policy": ("agent.kind", "policy"),
        "endpoint": ("agent.kind", "endpoint"),
    }

    agent: PlayerConfig = Field(default_factory=PlayerConfig, description="who plays")
    policy: str = Field(
        default="xs", description="who plays: a size, a model (folder, GGUF file, name), or a run; then --agent policy"
    )
    endpoint: str = Field(
        default="", description="the server whose model plays, as http://127.0.0.1:8000/v1; then --agent endpoint"
    )
    model: str = Field(default="", description="for the agent endpoint: the model to ask there")
    dialect: ServerDialect = Field(default="openai", description="for the agent endpoint: what it speaks")
    key_env: str = Field(default=_KEY_VARIABLE, description="the environment variable that holds the endpoint's key")
    tokens: bool = Field(default=False, description="demand token ids and log-probabilities of the endpoint")
    processed: bool = Field(
        default=False, description="its log-probabilities are of what was sampled from: evolvent, vLLM if told to"
    )
    temperature: float = Field(default=1.0, ge=0, description="of the policy; 0: the likeliest token")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    slots: int = Field(default=192, ge=1, description="episodes open at once")
    max_tokens: int | None = Field(
        default=None, ge=1, description="longest action; none: 32, of a pretrained model 64, of an endpoint 512"
    )
    threads: int = Field(default=1, ge=1, description="threads of torch")

    @model_validator(mode="after")
    def _check_endpoint(self) -> AgentConfig:
        if self.agent.kind == "endpoint" and not (self.endpoint and self.model):
            raise ValueError("--agent endpoint needs --endpoint URL and --model NAME")
        return self

    def check_inputs(self) -> None:
        """Checks that the policy that plays exists.

        Raises:
            ConfigError and others: see `check_policy_name`.
        """
        if self.agent.kind == "policy":
            check_policy_name(self.policy)


class WorldsAgentConfig(AgentConfig, WorldsConfig):
    """Settings of an agent that plays in worlds which the command names."""

    agent: WorldPlayerConfig = Field(default_factory=WorldPlayerConfig, description="who plays, and the prompt")
    memory: MemoryConfig = Field(default_factory=MemoryConfig, description="what it is shown of a memory of steps")

    @model_validator(mode="after")
    def _check_memory(self) -> WorldsAgentConfig:
        if self.memory.folder is not None and self.agent.kind not in ("policy", "endpoint"):
            raise ValueError(
                f"--memory.folder cannot be used with --agent {self.agent.kind}; use --agent policy or endpoint"
            )
        if self.memory.folder is not None and (self.agent.restrict_to_admissible or self.agent.examples):
            raise ValueError("a memory writes the prompt itself: leave out --agent.examples and restrict_to_admissible")
        if self.memory.folder is not None and self.agent.history is not None:
            raise ValueError("a memory writes every prompt anew: leave out --agent.history")
        return self


@dataclass(frozen=True)
class TokenUsage:
    """Tokens used so far: computed in this process, read by an endpoint, and written by an endpoint."""

    computed: int = 0
    prompted: int = 0
    completed: int = 0


@dataclass(frozen=True)
class AgentSetup:
    """An agent that is ready to play.

    Args:
        agent: the agent, as `collect` takes it.
        engine: the engine that serves its policy; None: it needs none.
        player: the player's name and facts in results.
        usage: returns the tokens used so far.
        policy: the policy whose conversations the agent holds; None: it holds none in this process.
        model: the policy or endpoint that writes; None: nobody does.
    """

    agent: Agent
    engine: Engine | None
    player: Player
    usage: Callable[[], TokenUsage] = TokenUsage
    policy: Policy | None = None
    model: Policy | Endpoint | None = None


@contextmanager
def prepare_agent(config: AgentConfig, worlds: Mapping[str, World], *, verb: str) -> Iterator[AgentSetup]:
    """Yields the agent that the settings select; its resources are released at the end.

    Args:
        worlds: the worlds by name.
        verb: the command, for the error message about a missing extra.
    Raises:
        MissingExtra: a policy without torch.
        ConfigError, Incomplete, VocabularyMismatch: a policy that cannot play.
        EndpointError: an endpoint that does not answer.
    """
    if config.agent.kind == "policy":
        yield _prepare_policy_agent(config, worlds, verb)
    elif config.agent.kind == "endpoint":
        with _prepare_endpoint_agent(config) as agent_setup:
            yield agent_setup
    else:
        kind = config.agent.kind
        yield AgentSetup(Expert() if kind == "expert" else Random(), None, Player(kind, kind))


def _prepare_policy_agent(config: AgentConfig, worlds: Mapping[str, World], verb: str) -> AgentSetup:
    require_train_extra(f"evolvent {verb} --agent policy")
    import torch

    from evolvent.agents.language import LanguageAgent
    from evolvent.engine.asks import Sampling
    from evolvent.engine.fitting import engine_for

    torch.set_num_threads(config.threads)
    loaded_policy = resolve_policy(
        config.policy,
        list(worlds.values()),
        seed=config.seed,
        placement=config.placement,
        history=config.agent.history if isinstance(config.agent, ActingConfig) else None,
    )
    max_tokens = config.max_tokens or reply_length(read_model_facts(config.policy))
    agent: Agent = LanguageAgent(
        loaded_policy,
        Sampling(temperature=config.temperature),
        max_tokens=max_tokens,
        restrict_to_admissible=isinstance(config.agent, ActingConfig) and config.agent.restrict_to_admissible,
    )
    check_working_memory(loaded_policy.model, context=loaded_policy.context, trains=False)
    engine = engine_for(loaded_policy, slots=config.slots)
    facts: dict[str, Json] = {
        "policy": config.policy,
        "version": loaded_policy.version,
        "temperature": config.temperature,
        "max_tokens": max_tokens,
    }
    memory_config = _memory_config(config)
    if memory_config is None and isinstance(loaded_policy.dialect, Chat):
        facts["history"] = loaded_policy.dialect.history
    if memory_config is not None:
        agent, memory_facts = make_memory_agent(
            loaded_policy, memory_config, temperature=config.temperature, max_tokens=config.max_tokens
        )
        facts |= memory_facts
    player = Player(config.policy, "policy", facts)
    conversing_policy = loaded_policy if memory_config is None else None
    return AgentSetup(
        agent, engine, player, lambda: TokenUsage(engine.usage.computed), conversing_policy, loaded_policy
    )


def _memory_config(config: AgentConfig) -> MemoryConfig | None:
    """Returns the memory settings of the agent; None: the agent uses no memory."""
    memory_config = config.memory if isinstance(config, WorldsAgentConfig) else None
    return None if memory_config is None or memory_config.folder is None else memory_config


@contextmanager
def _prepare_endpoint_agent(config: AgentConfig) -> Iterator[AgentSetup]:
    from evolvent.agents.chat import ChatAgent
    from evolvent.engine.asks import Sampling

    key = os.environ.get(config.key_env)
    secret = SecretStr(key) if key else None
    endpoint_class = endpoint_type(config.dialect)
    with endpoint_class(
        config.endpoint, config.model, key=secret, tokens=config.tokens, processed=config.processed
    ) as endpoint:
        endpoint.check()
        max_tokens = config.max_tokens or _ENDPOINT_MAX_TOKENS
        hint = "" if isinstance(config.agent, ActingConfig) and config.agent.hint is False else None
        agent: Agent = ChatAgent(endpoint, Sampling(temperature=config.temperature), max_tokens=max_tokens, hint=hint)
        facts: dict[str, Json] = {"model": config.model, "temperature": config.temperature, "max_tokens": max_tokens}
        if (memory_config := _memory_config(config)) is not None:
            agent, memory_facts = make_memory_agent(
                endpoint, memory_config, temperature=config.temperature, max_tokens=config.max_tokens
            )
            facts |= memory_facts

        def read_usage() -> TokenUsage:
            return TokenUsage(0, endpoint.usage.prompt, endpoint.usage.completion)

        yield AgentSetup(agent, None, Player(config.model, "endpoint", facts), read_usage, model=endpoint)


def resume_collection(
    world: World,
    names_by_start: Mapping[Start, str],
    agent_setup: AgentSetup,
    *,
    store: Store,
    progress: Progress,
    config: AgentConfig,
    label: str,
    limits: Limits | None = None,
) -> list[Trajectory]:
    """Returns the episodes of a world under the given names: stored ones are reused, missing ones are played now.

    An episode that ended with an error is played again, under its name followed by `~` and the number of earlier
    tries.

    Args:
        names_by_start: the trajectory name of each start.
        limits: of an episode.
    """
    finished: dict[str, Trajectory] = {}
    tries: Counter[str] = Counter()
    for trajectory in store.trajectories(filters={"world": world.name}):
        name = trajectory.id.partition("~")[0]
        tries[name] += 1
        if trajectory.error is None:
            finished[name] = trajectory
    remaining_starts = [start for start, name in names_by_start.items() if name not in finished]

    def name_of(start: Start) -> str:
        name = names_by_start[start]
        return f"{name}~{tries[name]}" if tries[name] else name

    episodes = collect(
        {world.name: world},
        remaining_starts,
        agent_setup.agent,
        engine=agent_setup.engine,
        seed=config.seed,
        slots=config.slots,
        limits=limits,
        name=name_of,
    )
    with closing(episodes) as episode_stream:
        return [
            *(finished[name] for name in names_by_start.values() if name in finished),
            *store_episodes(episode_stream, store, progress, count=len(remaining_starts), label=label),
        ]


def store_episodes(
    trajectories: Iterator[Trajectory], store: Store, progress: Progress, *, count: int, label: str = "collect"
) -> Iterator[Trajectory]:
    """Stores each episode when it ends, reports the progress, and yields it."""
    num_wins = num_scored = num_steps = 0
    progress.begin("collect", label, count)
    for number, trajectory in enumerate(trajectories, 1):
        store.append(trajectory)
        num_wins, num_scored = num_wins + bool(trajectory.success), num_scored + (trajectory.success is not None)
        num_steps += len(trajectory.steps)
        success_metric = {"success": num_wins / num_scored} if num_scored else {}
        progress.update({"episodes": number, "env_steps": num_steps, **success_metric})
        yield trajectory
    progress.end()
