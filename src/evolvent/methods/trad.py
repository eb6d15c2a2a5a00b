"""TRAD: thought retrieval and aligned decision, and its family as settings of one agent.

Zhou et al., "TRAD: Enhancing LLM Agents with Step-Wise Thought Retrieval and Aligned Decision" (arXiv 2403.06221).

    offline:  thought(s) for every step s of the demonstrations, its action known        (label_thoughts)
    episode:  D = the K demonstrations whose task is most like this one
    step:     thought = policy(D, history, observation)
              S = the steps of K demonstrations whose thoughts are most like it
              windows = steps -B to +F around each of S, numbered from it                (expansion, relative marks)
              action = policy(windows, last B + F steps of the history, observation, thought)        (alignment)

Nothing is trained. ReAct (2210.03629) shows fixed demonstrations and thinks in line; Synapse (2306.07863) shows whole
demonstrations by metadata; RAP (2402.03610) retrieves windows by another key. RAP's score is a weighted sum over task,
plan and a key that a model writes; here the type of the task filters and the observation is the key. The published
harness ends games that repeat themselves; here the horizon does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from evolvent.agents.prompts import explaining_prompt, prompts_digest
from evolvent.agents.steps import StepAgent
from evolvent.agents.writers import Asked, Writer, writer_for
from evolvent.config import Config
from evolvent.engine.asks import GREEDY, Engine, Sampling, Work
from evolvent.engine.driver import drive
from evolvent.engine.endpoint import Endpoint
from evolvent.errors import ConfigError, EvolventError, Problem
from evolvent.memory.records import Demonstration, Key, demonstration
from evolvent.memory.steps import StepMemory
from evolvent.models.policy import Policy
from evolvent.rollout.collect import collect
from evolvent.trajectory import Start, Trajectory, sample_seed
from evolvent.worlds.base import World

__all__ = [
    "ABLATIONS",
    "RAP",
    "REACT",
    "SYNAPSE",
    "TRAD",
    "ZERO_SHOT",
    "Labelled",
    "Trad",
    "agent_for",
    "label_thoughts",
    "shots_of",
    "trad",
]

Who = Policy | Endpoint | Writer
_THOUGHT = 300  # tokens of a thought at most, as published


class Trad(Config):
    """What can be chosen about TRAD and its family. The defaults are TRAD's for households."""

    think: Literal["call", "inline"] | None = Field(default="call", description="a call of its own, lines, or none")
    level: Literal["step", "trajectory"] | None = Field(default="step", description="what is found; none: fixed shots")
    k: int = Field(default=2, ge=1, description="demonstrations in a prompt")
    before: int | None = Field(default=1, ge=0, description="steps before the found one; none: all")
    after: int | None = Field(default=2, ge=0, description="steps after the found one; none: all")
    mark: bool = Field(default=True, description="number the steps of windows from the found one")
    align: bool = Field(default=True, description="cut the own history to the length of a window")
    by: str = Field(default="", description="the key of steps, as thought or observation; none: the memory's first")
    kind_words: int | None = Field(default=1, ge=1, description="words of the task's kind that must agree; none: any")
    thought_tokens: int = Field(default=_THOUGHT, ge=1, description="longest thought")
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


def agent_for(who: Who, config: Trad, *, memory: StepMemory | None) -> StepAgent:
    """The agent that the settings describe.

    Args:
        memory: found in, or at level none the source of the fixed demonstrations; None: nothing is shown.
    Raises:
        ConfigError: settings that contradict each other or the memory.
    """
    fixed = () if memory is None or config.level is not None else shots_of(memory, config.k)
    return StepAgent(
        who,
        None if config.level is None else memory,
        config.think,
        config.level,
        config.k,
        (config.before, config.after),
        config.mark,
        config.align,
        by=Key.of_name(config.by) if config.by else None,
        kind_words=config.kind_words,
        shots=fixed,
        sampling=Sampling(temperature=config.temperature),
        tokens=(config.thought_tokens, config.action_tokens),
    )


def shots_of(memory: StepMemory, k: int) -> list[Demonstration]:
    """ReAct's fixed demonstrations: the first k + 1 of each type by their ids, since one may be the task's own."""
    seen: Counter[str] = Counter()
    found = []
    for one in map(memory.demonstration, memory.ids):
        seen[one.kind] += 1
        found += [one] if seen[one.kind] <= k + 1 else []
    return found


def trad(
    who: Who,
    starts: Sequence[Start],
    *,
    config: Trad,
    worlds: Mapping[str, World],
    memory: StepMemory | None,
    engine: Engine | None = None,
    seed: int = 0,
) -> Iterator[Trajectory]:
    """Play tasks; yields episodes as they end. Each holds the settings, the templates' and the memory's digest.

    Args:
        engine: of a policy of ours (`engine.fitting.engine_for`); None for endpoints and scripts.
    Raises:
        ConfigError: settings that contradict each other or the memory; what `collect` refuses.
    """
    agent = agent_for(who, config, memory=memory)
    about = {
        "method": "trad",
        "config": config.model_dump(),
        "prompts": prompts_digest(),
        "memory": "" if memory is None else memory.digest,
    }
    for one in collect(worlds, starts, agent, engine=engine, seed=seed):
        yield replace(one, meta={**one.meta, "trad": about})


@dataclass(frozen=True, slots=True)
class Labelled:
    """What became of demonstrations.

    Args:
        trajectories: in their order, with thoughts. written: new thoughts.
        missing: steps for which nothing was written, which keep no thought.
        failed: id -> the error that ended its labelling; such a trajectory is as it was.
    """

    trajectories: tuple[Trajectory, ...]
    written: int
    missing: int
    failed: Mapping[str, EvolventError]


def label_thoughts(
    data: Sequence[Trajectory],
    who: Who,
    *,
    worlds: Mapping[str, World],
    engine: Engine | None = None,
    sampling: Sampling = GREEDY,
    again: bool = False,
    seed: int = 0,
    slots: int = 64,
) -> Labelled:
    """Write the thoughts of demonstrations, each with its action known; any policy may do it.

    A thought is written after the steps before it and their thoughts, never after what was seen later. That it explains
    an action that is given makes it better than what an agent would think; retrieval has to bridge that.

    Args:
        worlds: by name, for their instructions. again: write thoughts anew where there are some.
    Raises:
        ConfigError: two trajectories of one id; observations without a text; a world that was not handed in.
    """
    ids = Counter(one.id for one in data)
    problems = [
        Problem(one, f"{count} trajectories of this id", "hand each in once") for one, count in ids.items() if count > 1
    ]
    problems += [
        Problem(one, "no such world was handed in", f"known: {', '.join(worlds)}")
        for one in sorted({one.task.world for one in data} - set(worlds))
    ]
    if problems:
        raise ConfigError(problems)
    writer = writer_for(who, sampling)
    works = [
        _explained(demonstration(one), writer, worlds[one.task.world].instructions, again=again, seed=seed)
        for one in data
    ]
    made, failed, counts = list(data), dict[str, EvolventError](), Counter[str]()
    for done in drive(works, engine, slots=slots):
        one = data[done.index]
        if done.value is None:
            if not isinstance(done.error, EvolventError):
                raise done.error or EvolventError("a labelling ended without thoughts", value=one.id)
            failed[one.id] = done.error
            continue
        steps = tuple(replace(step, thought=text or None) for step, text in zip(one.steps, done.value, strict=True))
        counts["written"] += sum(new.thought != old.thought for new, old in zip(steps, one.steps, strict=True))
        counts["missing"] += sum(not text for text in done.value)
        made[done.index] = replace(one, steps=steps, meta={**one.meta, "thoughts": prompts_digest()})
    return Labelled(tuple(made), counts["written"], counts["missing"], failed)


def _explained(found: Demonstration, writer: Writer, instructions: str, *, again: bool, seed: int) -> Work[list[str]]:
    """The thoughts of one demonstration, step by step."""
    pen, thoughts = writer.begin(sample_seed(seed, "thoughts", found.trajectory_id) % 2**63), list[str]()
    for at, step in enumerate(found.steps):
        if step.thought and not again:
            thoughts.append(step.thought)
            continue
        known = [replace(one, thought=text) for one, text in zip(found.steps, [*thoughts, ""], strict=False)]
        prompt = explaining_prompt(instructions, replace(found, steps=tuple(known)), at)
        written: Any = yield from pen.write(Asked(prompt, ("\n>",), _THOUGHT, tight=True))
        thoughts.append(written.text.partition("\n>")[0].strip())
    return thoughts
