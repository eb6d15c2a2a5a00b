"""The agent that is shown what others did at such a moment: ReAct, Synapse, TRAD and what lies between them.

Each step is one environment step. With thoughts by call it takes two generations: the thought, read after whole
demonstrations of like tasks, and the action, read after the demonstrations of steps at which others thought the like.
Sources: ReAct (arXiv 2210.03629), Synapse (2306.07863), TRAD (2403.06221).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from evolvent.agents.base import Acting, Decision
from evolvent.agents.prompts import Own, Shown, Thinking, prompts_digest, step_prompt
from evolvent.agents.writers import Asked, Writer, Written, writer_for
from evolvent.engine.asks import GREEDY, Answer, Ask, Sampling, Wait
from evolvent.engine.endpoint import Endpoint
from evolvent.errors import ConfigError, ContextOverflow, InvalidAction, Problem
from evolvent.memory.records import Demonstration, Hit, Key, StepRecord, instruction
from evolvent.memory.steps import StepMemory
from evolvent.memory.windows import window
from evolvent.models.policy import Policy
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, World
from evolvent.worlds.grammar import Parsed

__all__ = ["StepAgent", "StepMind"]

_LOOKED = 20  # episodes of a memory whose kinds are compared with the settings
_LINES = 3  # thoughts in the reply's own lines before an action must come
_Written = Generator[Sequence[Ask | Wait], Sequence[Answer], Written | None]


@dataclass(frozen=True)
class StepAgent:
    """Acts after demonstrations. The first eight settings tell the published systems apart (`methods/trad.py`).

    Args:
        policy: who writes: a policy, an endpoint, or any `Writer`.
        memory: what demonstrations are found in; None: only `shots` are shown.
        think: "call": a generation of its own; "inline": `think:` lines of the reply, each answered OK. (ReAct); None.
        level: "trajectory": the k whole episodes most like the task, once an episode (Synapse). "step": for the action
            windows around the k steps most like the moment, of k episodes (TRAD). None: `shots`.
        k: demonstrations at most. window: steps before and after the found one; None: all.
        mark: number the steps of windows from the found one. align: cut the own history to the length of a window.
        by: which key of the memory finds steps; None: its first that is no metadata. Key of a thought: what was just
            thought; of an observation: what is seen.
        kind_words: only episodes whose kind is the first so many words of the task's; None: all episodes.
        shots: whole demonstrations, the same for every task of their kind; the first k that fit are shown.
        sampling: of all generations. tokens: longest thought and longest action.
    Raises:
        ConfigError: settings that contradict each other, an empty memory, or one without a key that is needed.
    """

    policy: Policy | Endpoint | Writer
    memory: StepMemory | None = None
    think: Thinking | None = "call"
    level: Literal["step", "trajectory"] | None = "step"
    k: int = 2
    window: tuple[int | None, int | None] = (1, 2)
    mark: bool = True
    align: bool = True
    by: Key | None = None
    kind_words: int | None = None
    shots: Sequence[Demonstration] = ()
    sampling: Sampling = GREEDY
    tokens: tuple[int, int] = (300, 100)

    def __post_init__(self) -> None:
        problems = []
        if (self.memory is None) != (self.level is None):
            problems.append(
                Problem(
                    "level",
                    f"{self.level} {'without' if self.memory is None else 'with'} a memory",
                    "a memory and a level, or neither",
                )
            )
        if self.level != "step" and (self.mark or self.align):
            problems.append(Problem("mark, align", f"at level {self.level}", "windows of the level step have them"))
        if self.align and None in self.window:
            problems.append(Problem("align", f"to the window {self.window}", "a window of some length"))
        if self.k < 1 or min(self.tokens) < 1 or min(side or 0 for side in self.window) < 0:
            problems.append(
                Problem(
                    "k, window, tokens",
                    f"{self.k}, {self.window}, {self.tokens}",
                    "k and tokens of 1 or more, sides of 0 or more",
                )
            )
        problems += self._of_memory() if self.memory is not None else []
        if problems:
            raise ConfigError(problems)

    def _of_memory(self) -> list[Problem]:
        problems = []
        if not self.memory:
            problems.append(Problem("memory", "without a step", "add trajectories first"))
        words = (
            0
            if self.memory is None
            else max(
                (len(self.memory.demonstration(name).kind.split()) for name in self.memory.ids[:_LOOKED]), default=0
            )
        )
        if self.kind_words is not None and words > self.kind_words:
            problems.append(
                Problem(
                    "kind_words",
                    f"{self.kind_words}, but kinds of the memory have {words} words",
                    "build the memory with as many, or give none",
                )
            )
        if self.needs_episodes and self.episodes is None:
            problems.append(Problem("memory", "finds no whole episodes", "build it with the key metadata too"))
        if self.level == "step" and self.found_by is None:
            wanted = "a key of steps" if self.by is None else f"the key {self.by.name}"
            problems.append(Problem("by", f"the memory does not have {wanted}", "build it with that key too"))
        if self.level == "step" and self.think != "call" and self.found_by and self.found_by.field == "thought":
            problems.append(Problem("think", f"{self.think}, and steps are found by thoughts", "call, or another key"))
        return problems

    @property
    def needs_episodes(self) -> bool:
        """Whether whole episodes are looked for."""
        return self.level == "trajectory" or (self.level == "step" and self.think == "call")

    @property
    def episodes(self) -> Key | None:
        """The key by which whole episodes are found."""
        return next((key for key in self._keys if key.field == "metadata"), None)

    @property
    def found_by(self) -> Key | None:
        """The key by which steps are found."""
        return next((key for key in self._keys if key.field != "metadata" and self.by in (None, key)), None)

    @property
    def _keys(self) -> Sequence[Key]:
        return () if self.memory is None else self.memory.keys

    def begin(self, world: World, task: Task, *, seed: int) -> StepMind:
        return StepMind(self, world, task, seed=seed)


class StepMind:
    """A `StepAgent` in one episode. `_steps` is all that was done, whatever of it prompts show."""

    def __init__(self, agent: StepAgent, world: World, task: Task, *, seed: int) -> None:
        self._agent, self._world, self._task = agent, world, task
        self._pen = writer_for(agent.policy, agent.sampling).begin(seed)
        self._steps: list[StepRecord] = []
        self._first = ""
        self._episodes: list[Shown] = []

    def act(self, observation: Value, info: Info) -> Acting:
        """One step: the thought, where there is one, then the action. Raises what the writer and the memory raise."""
        agent, seen, marks = self._agent, str(observation), dict[str, Any]()
        if not self._steps:
            self._first, marks["prompts"] = seen, prompts_digest()
            self._episodes = self._found_episodes()
        written: list[Written] = []
        thoughts: tuple[str, ...] = ()
        if agent.think == "call":
            found = yield from self._ask("think", self._episodes, self._own(seen), marks=marks)
            if found is None:
                return _full(marks)
            written.append(found)
            thoughts = tuple(filter(None, [_line(found.text, "think", last="\n>")]))
            if not thoughts:
                marks["no_thought"] = True
        shown = self._found_steps(thoughts, seen) if agent.level == "step" else self._episodes
        action = ""
        for line in range(_LINES + 1):
            found = yield from self._ask("act", shown, self._own(seen, thoughts), marks=marks)
            if found is None:
                return _full(marks)
            written.append(found)
            if agent.think != "inline" or line == _LINES or not _is_thought(found.text):
                action = _line(found.text, "act", last="\n")
                break
            thoughts = (*thoughts, _line(found.text, "think", last="\n"))
        return self._decided(seen, action, " ".join(thoughts), written=written, marks=marks)

    # ------------------------------------------------------------------ what is shown

    def _found_episodes(self) -> list[Shown]:
        """Whole demonstrations, best first: of the memory, else of the shots."""
        agent = self._agent
        if agent.memory is None or not agent.needs_episodes:
            fit = [one for one in agent.shots if one.task_id != self._task.id and self._kind in (None, one.kind)]
            return [Shown.all_of(one, rank) for rank, one in enumerate(fit[: agent.k])]
        return [
            Shown.all_of(agent.memory.demonstration(hit.record.trajectory_id), rank, hit.score)
            for rank, hit in enumerate(self._hits(self._first, agent.episodes))
        ]

    def _found_steps(self, thoughts: Sequence[str], seen: str) -> list[Shown]:
        """Windows around steps at which others thought, or saw, the like, best first."""
        agent, key = self._agent, self._agent.found_by
        before, after = agent.window
        if agent.memory is None or key is None:
            return []
        text = " ".join(thoughts) if key.field == "thought" and thoughts else seen
        return [
            Shown(
                window(
                    agent.memory.demonstration(hit.record.trajectory_id), hit.record.step, before=before, after=after
                ),
                rank,
                hit.score,
                whole=before is None and after is None,
            )
            for rank, hit in enumerate(self._hits(text, key))
        ]

    def _hits(self, text: str, key: Key | None) -> list[Hit]:
        agent = self._agent
        where = None if self._kind is None else {"kind": self._kind}
        if agent.memory is None:
            return []
        return agent.memory.query([text], agent.k, by=key, where=where, without={self._task.id})[0]

    @property
    def _kind(self) -> str | None:
        words = self._agent.kind_words
        return None if words is None else " ".join(self._task.kind.split()[:words])

    def _own(self, seen: str, thoughts: tuple[str, ...] = ()) -> Own:
        return Own(self._first, instruction(self._first), tuple(self._steps), seen, thoughts)

    # ------------------------------------------------------------------ what is written

    def _ask(
        self, ask: Literal["think", "act"], shown: Sequence[Shown], own: Own, *, marks: dict[str, Any]
    ) -> _Written:
        """One generation; demonstrations that do not fit are dropped, the worst first. None: not even without any."""
        agent = self._agent
        windows = ask == "act" and agent.level == "step"
        if agent.align and windows:
            own = replace(own, last=sum(side or 0 for side in agent.window))
        kept = list(shown)
        stop = ("\n>",) if ask == "think" else ("\n",)
        while True:
            prompt = step_prompt(
                self._world.instructions, kept, own, ask=ask, think=agent.think, marked=agent.mark and windows
            )
            try:
                asked = Asked(prompt, stop, agent.tokens[ask == "act"], tight=not kept)
                found = yield from self._pen.write(asked)
                break
            except ContextOverflow:
                if not kept:
                    return None
                kept.pop()
                marks.setdefault("dropped", {}).update({ask: len(shown) - len(kept)})
        marks.setdefault("shown", {})[ask] = [[one.window.trajectory_id, one.window.at] for one in kept]
        return found

    def _decided(
        self, seen: str, action: str, thought: str, *, written: Sequence[Written], marks: dict[str, Any]
    ) -> Decision:
        generations = [one.generation for one in written if one.generation is not None]
        last = len(generations) - 1
        kept = tuple(replace(one, acted=at == last) for at, one in enumerate(generations))
        counts = [one.marks for one in written if one.marks]
        if counts:
            marks["tokens"] = {name: sum(int(count[name]) for count in counts) for name in counts[0]}
        parsed = self._parsed(action)
        if parsed is None:
            marks["unparsed"] = True
        action = action if parsed is None else parsed
        self._steps.append(
            StepRecord(
                trajectory_id="",
                step=len(self._steps),
                task="",
                kind="",
                observation=seen,
                thought=thought,
                action=action,
            )
        )
        return Decision(action, thought or None, kept, info=marks)

    def _parsed(self, text: str) -> str | None:
        """The action in a line: the world's own form of it, or one that is bare. None: neither."""
        grammar = self._world.grammar
        with suppress(InvalidAction):
            return grammar.parse(text).action
        with suppress(InvalidAction):
            return grammar.parse(grammar.render(Parsed(text))).action
        return None


def _full(marks: Mapping[str, Any]) -> Decision:
    return Decision("", ends="horizon", info={**marks, "context_full": True})


def _is_thought(text: str) -> bool:
    return text.strip().lstrip("> ").replace(" :", ":", 1).startswith("think:")


def _line(text: str, name: str, *, last: str) -> str:
    """What was written, up to what ends it, and without a repetition of the prompt's own mark."""
    said = text.strip().removeprefix(">").strip().removeprefix(f"{name}:").removeprefix(f"{name} :")
    return said.strip().partition(last)[0].strip()
