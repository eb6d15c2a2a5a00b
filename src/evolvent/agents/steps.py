"""The agent that is shown demonstrations of similar steps: ReAct, Synapse, TRAD and combinations of them.

Each step is one environment step. With thoughts by call it takes two generations: the thought, read after whole
demonstrations of similar tasks, and the action, read after the demonstrations of steps with similar thoughts.
Sources: ReAct (arXiv 2210.03629), Synapse (2306.07863), TRAD (2403.06221).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from evolvent.agents.base import Acting, Decision
from evolvent.agents.prompts import EpisodeSoFar, PromptExample, Thinking, prompts_digest, step_prompt
from evolvent.agents.writers import Writer, WriteRequest, WriterReply, writer_for
from evolvent.engine.asks import GREEDY, Answer, Ask, BlockingCall, Sampling
from evolvent.engine.endpoint import Endpoint
from evolvent.errors import ConfigError, ContextOverflow, InvalidAction, Problem
from evolvent.memory.records import Demonstration, Hit, Key, StepRecord, extract_instruction
from evolvent.memory.steps import StepMemory
from evolvent.memory.windows import cut_window
from evolvent.models.policy import Policy
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Parsed, World

__all__ = ["StepAgent", "StepMind"]

_CHECKED_EPISODES = 20  # episodes of a memory whose kinds are compared with the settings
_MAX_THOUGHT_LINES = 3  # thoughts in the reply's own lines before an action must come
_Generating = Generator[Sequence[Ask | BlockingCall], Sequence[Answer], WriterReply | None]


@dataclass(frozen=True)
class StepAgent:
    """Acts after demonstrations. The first eight settings tell the published systems apart (`methods/trad.py`).

    Args:
        policy: the writer: a policy, an endpoint, or any `Writer`.
        memory: the memory of demonstrations; None: only `shots` are shown.
        think: "call": a generation of its own; "inline": `think:` lines of the reply, each answered OK. (ReAct);
            None.
        level: "trajectory": the k whole episodes most like the task, once an episode (Synapse). "step": for the
            action windows around the k steps most like the current one, of k episodes (TRAD). None: `shots`.
        k: demonstrations at most. window: steps before and after the found one; None: all.
        mark: number the steps of windows from the found one. align: cut the own history to the length of a window.
        step_key: which key of the memory finds steps; None: its first that is not metadata. Key of a thought: the
            newest thought; of an observation: the current observation.
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
    step_key: Key | None = None
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
                    f"got {self.level} {'without' if self.memory is None else 'with'} a memory",
                    "set both memory and level, or neither",
                )
            )
        if self.level != "step" and (self.mark or self.align):
            problems.append(Problem("mark, align", f"not available at level {self.level}", "set level to 'step'"))
        if self.align and None in self.window:
            problems.append(
                Problem("align", f"got the window {self.window}", "expected a window with steps before or after")
            )
        if self.k < 1 or min(self.tokens) < 1 or min(side or 0 for side in self.window) < 0:
            problems.append(
                Problem(
                    "k, window, tokens",
                    f"{self.k}, {self.window}, {self.tokens}",
                    "k and tokens must be 1 or more, window sides 0 or more",
                )
            )
        problems += self._memory_problems() if self.memory is not None else []
        if problems:
            raise ConfigError(problems)

    def _memory_problems(self) -> list[Problem]:
        problems = []
        if not self.memory:
            problems.append(Problem("memory", "holds no step", "add trajectories first"))
        longest_kind = (
            0
            if self.memory is None
            else max(
                (
                    len(self.memory.get_demonstration(name).kind.split())
                    for name in self.memory.trajectory_ids[:_CHECKED_EPISODES]
                ),
                default=0,
            )
        )
        if self.kind_words is not None and longest_kind > self.kind_words:
            problems.append(
                Problem(
                    "kind_words",
                    f"{self.kind_words}, but kinds of the memory have {longest_kind} words",
                    "build the memory with the same number, or leave it out",
                )
            )
        if self.needs_episodes and self.episode_key is None:
            problems.append(Problem("memory", "cannot find whole episodes", "build it with the key metadata too"))
        if self.level == "step" and self.found_by_key is None:
            missing_key = "a step key" if self.step_key is None else f"the key {self.step_key.name}"
            problems.append(
                Problem("step_key", f"the memory does not have {missing_key}", "build it with that key too")
            )
        if self.level == "step" and self.think != "call" and self.found_by_key and self.found_by_key.field == "thought":
            problems.append(
                Problem(
                    "think",
                    f"got {self.think}, but this memory finds steps by thoughts",
                    "set think to 'call', or use another key",
                )
            )
        return problems

    @property
    def needs_episodes(self) -> bool:
        """Returns whether whole episodes are searched."""
        return self.level == "trajectory" or (self.level == "step" and self.think == "call")

    @property
    def episode_key(self) -> Key | None:
        """Returns the key by which whole episodes are found."""
        return next((key for key in self._keys if key.field == "metadata"), None)

    @property
    def found_by_key(self) -> Key | None:
        """Returns the key by which steps are found."""
        return next((key for key in self._keys if key.field != "metadata" and self.step_key in (None, key)), None)

    @property
    def _keys(self) -> Sequence[Key]:
        return () if self.memory is None else self.memory.keys

    def begin(self, world: World, task: Task, *, seed: int) -> StepMind:
        return StepMind(self, world, task, seed=seed)


class StepMind:
    """A `StepAgent` in one episode. `_steps` holds all past steps, including those that prompts omit."""

    def __init__(self, agent: StepAgent, world: World, task: Task, *, seed: int) -> None:
        self._agent, self._world, self._task = agent, world, task
        self._pen = writer_for(agent.policy, agent.sampling).begin(seed)
        self._steps: list[StepRecord] = []
        self._first = ""
        self._episodes: list[PromptExample] = []

    def act(self, observation: Value, info: Info) -> Acting:
        """Returns the decision of one step: a thought, if configured, then the action. Raises errors of writer and
        memory.
        """
        agent, observation_text, marks = self._agent, str(observation), dict[str, Any]()
        if not self._steps:
            self._first, marks["prompts"] = observation_text, prompts_digest()
            self._episodes = self._find_episodes()
        replies: list[WriterReply] = []
        thoughts: tuple[str, ...] = ()
        if agent.think == "call":
            reply = yield from self._generate(
                "think", self._episodes, self._episode_so_far(observation_text), marks=marks
            )
            if reply is None:
                return _horizon_decision(marks)
            replies.append(reply)
            thoughts = tuple(filter(None, [_first_line(reply.text, "think", terminator="\n>")]))
            if not thoughts:
                marks["no_thought"] = True
        examples = self._find_steps(thoughts, observation_text) if agent.level == "step" else self._episodes
        action = ""
        for line in range(_MAX_THOUGHT_LINES + 1):
            reply = yield from self._generate(
                "act", examples, self._episode_so_far(observation_text, thoughts), marks=marks
            )
            if reply is None:
                return _horizon_decision(marks)
            replies.append(reply)
            if agent.think != "inline" or line == _MAX_THOUGHT_LINES or not _is_thought(reply.text):
                action = _first_line(reply.text, "act", terminator="\n")
                break
            thoughts = (*thoughts, _first_line(reply.text, "think", terminator="\n"))
        return self._decide(observation_text, action, " ".join(thoughts), replies=replies, marks=marks)

    # ------------------------------------------------------------------ what is shown

    def _find_episodes(self) -> list[PromptExample]:
        """Finds whole demonstrations, best first: in the memory, or else among the shots."""
        agent = self._agent
        if agent.memory is None or not agent.needs_episodes:
            matching = [
                shot for shot in agent.shots if shot.task_id != self._task.id and self._kind_prefix in (None, shot.kind)
            ]
            return [PromptExample.all_of(shot, rank) for rank, shot in enumerate(matching[: agent.k])]
        return [
            PromptExample.all_of(agent.memory.get_demonstration(hit.record.trajectory_id), rank, hit.score)
            for rank, hit in enumerate(self._query_memory(self._first, agent.episode_key))
        ]

    def _find_steps(self, thoughts: Sequence[str], observation: str) -> list[PromptExample]:
        """Finds windows around steps with similar thoughts or observations, best first."""
        agent, key = self._agent, self._agent.found_by_key
        before, after = agent.window
        if agent.memory is None or key is None:
            return []
        text = " ".join(thoughts) if key.field == "thought" and thoughts else observation
        return [
            PromptExample(
                cut_window(
                    agent.memory.get_demonstration(hit.record.trajectory_id),
                    hit.record.step,
                    before=before,
                    after=after,
                ),
                rank,
                hit.score,
                is_whole=before is None and after is None,
            )
            for rank, hit in enumerate(self._query_memory(text, key))
        ]

    def _query_memory(self, text: str, key: Key | None) -> list[Hit]:
        agent = self._agent
        metadata_filter = None if self._kind_prefix is None else {"kind": self._kind_prefix}
        if agent.memory is None:
            return []
        return agent.memory.query(
            [text], agent.k, lookup_key=key, filters=metadata_filter, excluded_ids={self._task.id}
        )[0]

    @property
    def _kind_prefix(self) -> str | None:
        num_words = self._agent.kind_words
        return None if num_words is None else " ".join(self._task.kind.split()[:num_words])

    def _episode_so_far(self, observation: str, thoughts: tuple[str, ...] = ()) -> EpisodeSoFar:
        return EpisodeSoFar(self._first, extract_instruction(self._first), tuple(self._steps), observation, thoughts)

    # ------------------------------------------------------------------ what is written

    def _generate(
        self,
        ask: Literal["think", "act"],
        examples: Sequence[PromptExample],
        episode: EpisodeSoFar,
        *,
        marks: dict[str, Any],
    ) -> _Generating:
        """Generates one reply; examples that do not fit are dropped, the worst first. None: not even the bare prompt
        fits.
        """
        agent = self._agent
        windows = ask == "act" and agent.level == "step"
        if agent.align and windows:
            episode = replace(episode, max_steps=sum(side or 0 for side in agent.window))
        kept_examples = list(examples)
        stop = ("\n>",) if ask == "think" else ("\n",)
        while True:
            prompt = step_prompt(
                self._world.instructions,
                kept_examples,
                episode,
                ask=ask,
                think=agent.think,
                marked=agent.mark and windows,
            )
            try:
                request = WriteRequest(prompt, stop, agent.tokens[ask == "act"], allow_shorter=not kept_examples)
                reply = yield from self._pen.write(request)
                break
            except ContextOverflow:
                if not kept_examples:
                    return None
                kept_examples.pop()
                marks.setdefault("dropped", {}).update({ask: len(examples) - len(kept_examples)})
        marks.setdefault("shown", {})[ask] = [
            [example.window.trajectory_id, example.window.center] for example in kept_examples
        ]
        return reply

    def _decide(
        self, observation: str, action: str, thought: str, *, replies: Sequence[WriterReply], marks: dict[str, Any]
    ) -> Decision:
        generations = [reply.generation for reply in replies if reply.generation is not None]
        last = len(generations) - 1
        generations_with_acted = tuple(replace(reply, acted=index == last) for index, reply in enumerate(generations))
        counts = [reply.marks for reply in replies if reply.marks]
        if counts:
            marks["tokens"] = {name: sum(int(count[name]) for count in counts) for name in counts[0]}
        parsed_action = self._parse_action(action)
        if parsed_action is None:
            marks["unparsed"] = True
        action = action if parsed_action is None else parsed_action
        self._steps.append(
            StepRecord(
                trajectory_id="",
                step=len(self._steps),
                task="",
                kind="",
                observation=observation,
                thought=thought,
                action=action,
            )
        )
        return Decision(action, thought or None, generations_with_acted, info=marks)

    def _parse_action(self, text: str) -> str | None:
        """Parses the action in a line: the world's own form of it, or a bare action. None: neither."""
        grammar = self._world.grammar
        with suppress(InvalidAction):
            return grammar.parse(text).action
        with suppress(InvalidAction):
            return grammar.parse(grammar.render(Parsed(text))).action
        return None


def _horizon_decision(marks: Mapping[str, Any]) -> Decision:
    return Decision("", ends="horizon", info={**marks, "context_full": True})


def _is_thought(text: str) -> bool:
    return text.strip().lstrip("> ").replace(" :", ":", 1).startswith("think:")


def _first_line(text: str, name: str, *, terminator: str) -> str:
    """Returns the reply up to its terminator, without a repetition of the prompt's own mark."""
    reply = text.strip().removeprefix(">").strip().removeprefix(f"{name}:").removeprefix(f"{name} :")
    return reply.strip().partition(terminator)[0].strip()
