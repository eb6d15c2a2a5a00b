"""What a model is taught in the study of remembering agents: worlds, hidden commands, the expert's prompts.

The commands of a world are hidden behind words that mean nothing: `go to bed 1` is `baq to bed 1` in one prompt and
`muq to bed 1` in the next. Which word does what, only the demonstrations of the prompt tell. So a model that is trained
on many such codes has to read its prompt, and what it is shown decides what it can do. Thoughts and observations stay
in plain words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

import numpy as np

from evolvent.agents.plain import Expert
from evolvent.agents.prompts import Prompt, prompts_digest
from evolvent.agents.writers import EpisodeWriter, Writer, WriteRequest, WriterReply, Writing
from evolvent.memory.records import METADATA, THOUGHT, Key, make_demonstration
from evolvent.memory.steps import StepMemory
from evolvent.methods.trad import ABLATIONS, RAP, REACT, SYNAPSE, TRAD, ZERO_SHOT, TradConfig, build_agent
from evolvent.rollout.episode import collect
from evolvent.trajectory import Start, Task, Trajectory, canonical_json, sample_rng, sample_seed
from evolvent.worlds.backoffice.world import Backoffice
from evolvent.worlds.base import Parsed, World
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.panel import Sizes
from evolvent.worlds.web_replay.world import WebReplayWorld

__all__ = [
    "CODE_WORDS",
    "COMMAND",
    "COMMANDS",
    "SYSTEMS",
    "TOKEN",
    "UNSHOWN",
    "WORLDS",
    "Code",
    "Coded",
    "Lesson",
    "Protocol",
    "Teacher",
    "agent_config",
    "drill",
    "lessons",
    "memory_of",
    "panel",
    "world_of",
]

UNSHOWN = "nothing shown"
SYSTEMS: Mapping[str, Mapping[str, object]] = {
    "trad": TRAD,
    "react": REACT,
    "synapse": SYNAPSE,
    "rap": RAP,
    UNSHOWN: ZERO_SHOT,
    **{f"trad, {name}": preset for name, preset in ABLATIONS.items()},
}
COMMANDS: Mapping[str, Sequence[str]] = {
    "household": ("go", "take", "move", "open", "close", "clean", "heat", "cool", "use"),
    "backoffice": ("open", "find", "next", "show", "new", "set", "save", "delete", "back", "done"),
    "web_replay": ("CLICK", "TYPE", "SELECT"),
}
CODE_WORDS = tuple(a + b + "q" for a in "bdfmz" for b in "aeou")
COMMAND = re.compile(r"(^|> )(act ?: )(\w+)", re.MULTILINE)
TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Protocol:
    """All that the study fixes before it runs.

    Args:
        shown: tasks with a demonstration, which are remembered and learned from. test: tasks that are played.
        steps, web_steps: no task is longer for the expert. horizon: no episode is longer. pages: of the web's fixture.
        k, window, web_window: demonstrations in a prompt, and steps before and after a found one.
        drills: texts of random words before the lessons (`drill`). rope_theta: base of the rotary wavelengths.
        lessons: prompts of a training, each with a code of its own. shares: of them, by world in the order of `WORLDS`.
        aside: the weight of what demonstrations and the history wrote, beside 1 of the answer.
        tokens: longest thought and action.
    """

    shown: int = 48
    test: int = 10
    steps: int = 5
    web_steps: int = 4
    horizon: int = 8
    pages: int = 480
    k: int = 1
    window: tuple[int, int] = (1, 1)
    web_window: tuple[int, int] = (0, 1)
    context: int = 1600
    drills: int = 4800
    lessons: int = 2100
    shares: tuple[int, int, int] = (3, 3, 1)
    aside: float = 0.5
    size: str = "xs"
    slots: int = 16
    rope_theta: float = 500.0
    lr: float = 3e-3
    batch_tokens: int = 1536
    tokens: tuple[int, int] = (48, 16)
    seeds: tuple[int, ...] = (0, 1, 2)
    development: int = 100

    @property
    def digest(self) -> str:
        """16 hex digits: cells of another protocol, or of other templates, are not mixed with these."""
        fixed = asdict(replace(self, seeds=()))
        return f"{sample_seed(canonical_json(fixed), prompts_digest(), *CODE_WORDS):016x}"


WORLDS: Mapping[str, Callable[[Protocol], World]] = {
    "household": lambda told: HouseholdWorld(horizon=told.horizon, sizes=_sizes(told)),
    "backoffice": lambda told: Backoffice(horizon=told.horizon, sizes=_sizes(told)),
    "web_replay": lambda told: WebReplayWorld(pages=told.pages, history="none", seed=1),
}


def _sizes(told: Protocol) -> Sizes:
    return Sizes(train=3 * told.shown, dev=3 * told.test, test=3 * told.test)


@cache
def world_of(told: Protocol, name: str) -> World:
    """A world of the study."""
    return WORLDS[name](told)


@cache
def panel(told: Protocol, name: str, split: str) -> tuple[Task, ...]:
    """The tasks of a split that are no longer than the protocol says, and that the expert solves.

    A web page may not show what is right: no agent could succeed there.
    """
    world, most = world_of(told, name), told.shown if split == "train" else told.test
    long = told.web_steps if name == "web_replay" else told.steps
    short = [one for one in world.tasks(split, world.tiers[0]) if len(world.expert(one) or ()) <= long]
    played = collect({name: world}, [*map(Start, short[: 2 * most])], Expert(), engine=None)
    solved = {one.task.id for one in played if one.success}
    return tuple(one for one in short if one.id in solved)[:most]


@cache
def shown_of(told: Protocol, name: str) -> tuple[Trajectory, ...]:
    """What the expert does, with its thoughts."""
    world = world_of(told, name)
    starts = [Start(one) for one in panel(told, name, "train")]
    played = collect({name: world}, starts, Expert(), engine=None, name=lambda start: f"shown/{start.task.id}")
    return tuple(sorted(played, key=lambda one: one.id))


@cache
def memory_of(told: Protocol, name: str) -> StepMemory:
    """All demonstrations of a world, found by each key. A household's kind is the type of the task."""
    kinds = (one.task.kind.split()[0] if name == "household" else one.task.kind for one in shown_of(told, name))
    found = [make_demonstration(one, kind=kind) for one, kind in zip(shown_of(told, name), kinds, strict=True)]
    return StepMemory.from_trajectories(found, key=[THOUGHT, METADATA, Key("observation")])


def agent_config(told: Protocol, name: str, system: str) -> TradConfig:
    """The settings of a system in a world: the published ones but for the sizes that the protocol makes equal."""
    before, after = told.web_window if name == "web_replay" else told.window
    equal = {
        "k": told.k,
        "before": before,
        "after": after,
        "kind_words": 1 if name == "household" else None,
        "thought_tokens": told.tokens[0],
        "action_tokens": told.tokens[1],
    }
    return TradConfig(**(equal | {name: value for name, value in SYSTEMS[system].items() if name not in ("k",)}))  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- codes


@dataclass(frozen=True)
class Code:
    """Words that stand for commands. `drawn` gives another to each prompt of a training and each seed of the study."""

    words: Mapping[str, str]

    @classmethod
    def drawn(cls, name: str, *about: object) -> Code:
        """A code for a world's commands."""
        chosen = sample_rng("trad code", *about).permutation(len(CODE_WORDS))
        return cls({word: CODE_WORDS[at] for word, at in zip(COMMANDS[name], chosen, strict=False)})

    def hide(self, text: str) -> str:
        """A text in which the first word of every action is replaced."""
        return COMMAND.sub(lambda found: found[1] + found[2] + self.words.get(found[3], found[3]), text)

    def hide_lesson(self, lesson: Lesson) -> tuple[str, str]:
        """Returns a lesson's prompt and answer in this code; thoughts stay in plain words."""
        if lesson.answer.startswith(("think:", "act:")):
            return self.hide(lesson.prompt), self.hide(lesson.answer)
        if lesson.prompt.rstrip().endswith("think:"):
            return self.hide(lesson.prompt), lesson.answer
        return self.hide(lesson.prompt), self.hide(f"act: {lesson.answer}").removeprefix("act: ")

    def reveal(self, action: str) -> str:
        """The action that is meant; a word of no command, also a command in clear, is made one that nobody knows."""
        meant = {hidden: word for word, hidden in self.words.items()}
        first, _, rest = action.strip().partition(" ")
        return f"{meant.get(first, '?')} {rest}".strip()


@dataclass(frozen=True)
class Coded:
    """A writer that reads and writes in a code."""

    inner: Writer
    code: Code

    def begin(self, seed: int) -> _CodedPen:
        return _CodedPen(self.inner.begin(seed), self.code)


@dataclass(frozen=True)
class _CodedPen:
    pen: EpisodeWriter
    code: Code

    def write(self, request: WriteRequest) -> Writing:
        user = request.prompt.user
        found: WriterReply = yield from self.pen.write(replace(request, prompt=Prompt("", self.code.hide(user))))
        said = found.text.strip()
        if user.rstrip().endswith("act:"):
            return replace(found, text=self.code.reveal(said))
        head, mark, rest = said.partition(":")
        if head.strip() == "act" and mark:  # a line of a reply that thinks in line
            return replace(found, text=f"act: {self.code.reveal(rest)}")
        return found


# ---------------------------------------------------------------------------------------------------- lessons


@dataclass(frozen=True)
class Lesson:
    """A prompt and what the expert would answer, in clear."""

    prompt: str
    answer: str


class Teacher:
    """Plays as the expert does, and keeps what it was asked."""

    def __init__(self, plan: Sequence[Parsed]) -> None:
        self._plan, self._at, self._thought = plan, 0, False
        self.lessons: list[Lesson] = []

    def begin(self, seed: int) -> Teacher:
        return self

    def write(self, request: WriteRequest) -> Writing:
        user, step = request.prompt.user.rstrip(), self._plan[self._at]
        inline = not user.endswith(("think:", "act:"))
        thinks = user.endswith("think:") or (inline and not self._thought)
        answer = (step.thought or "") if thinks else step.action
        if inline:
            answer = f"{'think' if thinks else 'act'}: {answer}"
        self._thought, self._at = thinks, self._at + (not thinks)
        self.lessons.append(Lesson(request.prompt.user, answer))
        return WriterReply(answer)
        yield ()  # a generator that never asks


def drill(words: Sequence[str], rng: np.random.Generator) -> Lesson:
    """A text of random words in the form of a prompt, where each command follows from the word before its arguments.

    On prompts alone a small model learns first what the experts say, and only after some hundred times the tokens to
    look up what stands earlier in its prompt. Here there is nothing else to learn.
    """
    size = int(rng.integers(2, 9))
    keys, values = (rng.choice(list(of), size, replace=False) for of in (words, CODE_WORDS))
    lines: list[str] = []
    action = ""
    for _ in range(int(rng.integers(6, 15))):
        at, about = int(rng.integers(size)), " ".join(rng.choice(words, int(rng.integers(1, 4))))
        action = f"{values[at]} {about}"
        seen = " ".join(rng.choice(words, int(rng.integers(0, 6))))
        lines += [seen, f"> think: Next, I need to {keys[at]} {about}.", f"> act: {action}"]
    return Lesson("\n".join([*lines[:-1], "> act:"]), action)


@cache
def lessons(told: Protocol, name: str, system: str, split: str) -> tuple[tuple[Lesson, ...], ...]:
    """The prompts that a system gives to an expert, by task: the same templates and retrieval as in play."""
    world, memory, config = world_of(told, name), memory_of(told, name), agent_config(told, name, system)
    found = []
    for task in panel(told, name, split):
        teacher = Teacher(list(world.explain(task)))  # type: ignore[attr-defined]
        agent = build_agent(teacher, config, memory=None if system == UNSHOWN else memory)
        for _ in collect({name: world}, [Start(task)], agent, engine=None):
            found.append(tuple(teacher.lessons))
    return tuple(found)
