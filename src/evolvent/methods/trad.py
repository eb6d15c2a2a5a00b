"""TRAD: thought retrieval and aligned decision, and its family as settings of one agent.

Zhou et al., "TRAD: Enhancing LLM Agents with Step-Wise Thought Retrieval and Aligned Decision" (arXiv
2403.06221).

    offline:  thought(s) for every step s of the demonstrations, its action known        (label_thoughts)
    episode:  D = the K demonstrations whose task is most like this one
    step:     thought = policy(D, history, observation)
              S = the steps of K demonstrations whose thoughts are most like it
              windows = steps -B to +F around each of S, numbered from it                (expansion, relative marks)
              action = policy(windows, last B + F steps of the history, observation, thought)        (alignment)

Nothing is trained. ReAct (2210.03629) shows fixed demonstrations and thinks in line; Synapse (2306.07863) shows
whole demonstrations by metadata; RAP (2402.03610) retrieves windows by another key. RAP's score is a weighted
sum over task, plan and a key that a model writes; here the type of the task filters and the observation is the
key. The published harness ends games that repeat themselves; here the horizon does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from evolvent.agents.prompts import hindsight_digest, hindsight_prompt, prompts_digest
from evolvent.agents.steps import StepAgent
from evolvent.agents.writers import Writer, WriteRequest, writer_for
from evolvent.config import Config
from evolvent.engine.asks import GREEDY, Engine, Job, Sampling
from evolvent.engine.driver import run_jobs
from evolvent.engine.endpoint import Endpoint
from evolvent.errors import ConfigError, EvolventError, Problem
from evolvent.memory.records import Demonstration, Key, make_demonstration
from evolvent.memory.steps import StepMemory
from evolvent.models.policy import Policy
from evolvent.rollout.episode import collect
from evolvent.trajectory import Start, Trajectory, sample_seed
from evolvent.worlds.base import World

__all__ = [
    "ABLATIONS",
    "RAP",
    "REACT",
    "SYNAPSE",
    "TRAD",
    "ZERO_SHOT",
    "LabeledDemonstrations",
    "TradConfig",
    "build_agent",
    "label_thoughts",
    "select_shots",
    "trad",
]

LanguageModel = Policy | Endpoint | Writer
_MAX_THOUGHT_TOKENS = 300  # tokens of a thought at most, as published


class TradConfig(Config):
    """Settings of TRAD and its family. The defaults are TRAD's for households."""

    think: Literal["call", "inline"] | None = Field(default="call", description="a call of its own, lines, or none")
    level: Literal["step", "trajectory"] | None = Field(default="step", description="what is found; none: fixed shots")
    k: int = Field(default=2, ge=1, description="demonstrations in a prompt")
    before: int | None = Field(default=1, ge=0, description="steps before the found one; none: all")
    after: int | None = Field(default=2, ge=0, description="steps after the found one; none: all")
    mark: bool = Field(default=True, description="number the steps of windows from the found one")
    align: bool = Field(default=True, description="cut the own history to the length of a window")
    by: str = Field(default="", description="the key of steps, as thought or observation; none: the memory's first")
    kind_words: int | None = Field(default=1, ge=1, description="words of the task's kind that must agree; none: any")
    thought_tokens: int = Field(default=_MAX_THOUGHT_TOKENS, ge=1, description="longest thought")
    action_tokens: int = Field(default=100, ge=1, description="longest action")
    temperature: float = Field(default=0.0, ge=0, description="of both; 0: the likeliest token")


TRAD: Mapping[str, object] = {}
"""The paper's, for households; for web pages `{"k": 3, "before": 0}`."""
REACT: Mapping[str, object] = {"think": "inline", "level": None, "mark": False, "align": False}
SYNAPSE: Mapping[str, object] = {"level": "trajectory", "mark": False, "align": False}
RAP: Mapping[str, object] = {"by": "observation", "before": 2, "after": 2, "mark": False, "align": False}
ZERO_SHOT: Mapping[str, object] = {"level": None, "mark": False, "align": False, "kind_words": None}
"""Without a memory: the control that is shown nothing."""
ABLATIONS: Mapping[str, Mapping[str, object]] = {
    "no expansion": {"before": 0, "after": 0},
    "no mark": {"mark": False},
    "no alignment": {"align": False},
    "no thought": {"by": "observation"},
}
"""What the paper takes away, one at a time, and its retrieval by thoughts."""


def build_agent(model: LanguageModel, config: TradConfig, *, memory: StepMemory | None) -> StepAgent:
    """Builds the agent that the settings describe.

    Args:
        memory: searched, or at level none the source of the fixed demonstrations; None: nothing is shown.
    Raises:
        ConfigError: settings contradict each other or the memory.
    """
    fixed_shots = () if memory is None or config.level is not None else select_shots(memory, config.k)
    return StepAgent(
        model,
        None if config.level is None else memory,
        config.think,
        config.level,
        config.k,
        (config.before, config.after),
        config.mark,
        config.align,
        step_key=Key.from_name(config.by) if config.by else None,
        kind_words=config.kind_words,
        shots=fixed_shots,
        sampling=Sampling(temperature=config.temperature),
        tokens=(config.thought_tokens, config.action_tokens),
    )


def select_shots(memory: StepMemory, k: int) -> list[Demonstration]:
    """Selects ReAct's fixed demonstrations: the first k + 1 of each type by their ids, since one may be the task's
    own.
    """
    counts: Counter[str] = Counter()
    shots = []
    for shot in map(memory.get_demonstration, memory.trajectory_ids):
        counts[shot.kind] += 1
        shots += [shot] if counts[shot.kind] <= k + 1 else []
    return shots


def trad(
    model: LanguageModel,
    starts: Sequence[Start],
    *,
    config: TradConfig,
    worlds: Mapping[str, World],
    memory: StepMemory | None,
    engine: Engine | None = None,
    seed: int = 0,
) -> Iterator[Trajectory]:
    """Plays tasks; yields episodes as they end. Each holds the settings, and the digests of the templates and the
    memory.

    Args:
        engine: of a local policy (`engine.fitting.engine_for`); None for endpoints and scripts.
    Raises:
        ConfigError: settings contradict each other or the memory; also the errors of `collect`.
    """
    agent = build_agent(model, config, memory=memory)
    metadata = {
        "method": "trad",
        "config": config.model_dump(),
        "prompts": prompts_digest(),
        "memory": "" if memory is None else memory.digest,
    }
    for trajectory in collect(worlds, starts, agent, engine=engine, seed=seed):
        yield replace(trajectory, meta={**trajectory.meta, "trad": metadata})


@dataclass(frozen=True, slots=True)
class LabeledDemonstrations:
    """The result of labeling demonstrations.

    Args:
        trajectories: in their order, with thoughts.
        written: number of new thoughts.
        missing: number of steps without a written thought.
        failed: id -> the error that ended its labeling; such a trajectory is unchanged.
    """

    trajectories: tuple[Trajectory, ...]
    written: int
    missing: int
    failed: Mapping[str, EvolventError]


def label_thoughts(
    data: Sequence[Trajectory],
    model: LanguageModel,
    *,
    worlds: Mapping[str, World],
    engine: Engine | None = None,
    sampling: Sampling = GREEDY,
    overwrite: bool = False,
    max_steps: int | None = None,
    outcome: bool = False,
    seed: int = 0,
    slots: int = 64,
) -> LabeledDemonstrations:
    """Writes the thoughts of demonstrations, each with its action known; any policy can write them.

    A thought is written after the steps before it and their thoughts, never after later observations unless `outcome`
    is set. Because it explains a given action, it is better than an agent's own thought; retrieval has to bridge that
    gap.

    Args:
        worlds: by name, for their instructions.
        overwrite: write thoughts anew where there are some.
        max_steps, outcome: what the writer is shown; see `hindsight_prompt`.
    Raises:
        ConfigError: two trajectories share an id, observations have no text, or a world is missing.
    """
    ids = Counter(trajectory.id for trajectory in data)
    problems = [
        Problem(trajectory, f"got {count} trajectories with this id", "pass each trajectory once")
        for trajectory, count in ids.items()
        if count > 1
    ]
    problems += [
        Problem(trajectory, "unknown world", f"known: {', '.join(worlds)}")
        for trajectory in sorted({trajectory.task.world for trajectory in data} - set(worlds))
    ]
    if problems:
        raise ConfigError(problems)
    writer = writer_for(model, sampling)
    jobs = [
        _write_thoughts(
            make_demonstration(trajectory),
            writer,
            worlds[trajectory.task.world].instructions,
            overwrite=overwrite,
            prompt_settings={"max_steps": max_steps, "outcome": outcome},
            seed=seed,
        )
        for trajectory in data
    ]
    digest = hindsight_digest(max_steps=max_steps, outcome=outcome)
    labeled, failed, counts = list(data), dict[str, EvolventError](), Counter[str]()
    for job_result in run_jobs(jobs, engine, slots=slots):
        trajectory = data[job_result.index]
        if job_result.value is None:
            if not isinstance(job_result.error, EvolventError):
                raise job_result.error or EvolventError("labeling ended without thoughts", value=trajectory.id)
            failed[trajectory.id] = job_result.error
            continue
        steps = tuple(
            replace(step, thought=text or None) for step, text in zip(trajectory.steps, job_result.value, strict=True)
        )
        counts["written"] += sum(
            new_step.thought != old_step.thought for new_step, old_step in zip(steps, trajectory.steps, strict=True)
        )
        counts["missing"] += sum(not text for text in job_result.value)
        labeled[job_result.index] = replace(trajectory, steps=steps, meta={**trajectory.meta, "thoughts": digest})
    return LabeledDemonstrations(tuple(labeled), counts["written"], counts["missing"], failed)


def _write_thoughts(
    record: Demonstration,
    writer: Writer,
    instructions: str,
    *,
    overwrite: bool,
    prompt_settings: Mapping[str, Any],
    seed: int,
) -> Job[list[str]]:
    """Writes the thoughts of one demonstration, step by step."""
    session, thoughts = writer.begin(sample_seed(seed, "thoughts", record.trajectory_id) % 2**63), list[str]()
    for index, step in enumerate(record.steps):
        if step.thought and not overwrite:
            thoughts.append(step.thought)
            continue
        missing = [""] * (len(record.steps) - index)
        steps = [
            replace(step_record, thought=text)
            for step_record, text in zip(record.steps, [*thoughts, *missing], strict=True)
        ]
        prompt = hindsight_prompt(instructions, replace(record, steps=tuple(steps)), index, **prompt_settings)
        reply: Any = yield from session.write(WriteRequest(prompt, ("\n>",), _MAX_THOUGHT_TOKENS, allow_shorter=True))
        thoughts.append(reply.text.partition("\n>")[0].strip())
    return thoughts
