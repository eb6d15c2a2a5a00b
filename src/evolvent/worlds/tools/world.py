"""What the five tool worlds have in common: panels, episodes, scores, experts. A world adds its tools, data, questions.

An episode is a question, calls of tools, and `finish`. Rewards are growths of the best share reached so far: they add
up to 1 exactly where the task is solved. A call that cannot be is answered by a sentence and changes nothing.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Any, ClassVar

from evolvent.errors import ConfigError, InvalidAction, Problem, unknown
from evolvent.messages import Call
from evolvent.trajectory import Json, Score, Task
from evolvent.worlds.base import TIERS, Info, check_task
from evolvent.worlds.crafting import words_of
from evolvent.worlds.grammar import Grammar
from evolvent.worlds.panel import Candidate, Panels, Sizes
from evolvent.worlds.tools.calls import STYLES, Style, ToolGrammar, compact
from evolvent.worlds.tools.engine import CHECK, FINISH, UNKNOWN_TOOL, Result, Toolbox, ToolSpec, tool
from evolvent.worlds.tools.episode import Move, Scene, ToolEnv
from evolvent.worlds.tools.expert import Asker, Quest, Solution
from evolvent.worlds.tools.kinds import Kind, tiers_of_kinds
from evolvent.worlds.tools.scoring import grain, same_answer, same_result

__all__ = ["DONE", "ToolWorld"]

DONE = "done"
"""The answer that ends a task of which nothing is asked but that something be done."""
_KNOWN_TASKS = 4096  # scenes kept ready
_KNOWN_MOVES = 1024  # (state, text) pairs of one scene whose outcome is kept
_RIGHT, _WRONG = "right", "wrong"
_SENTENCES = (
    UNKNOWN_TOOL,
    "expected the name of a tool and its arguments",
    "expected a JSON object of arguments",
    "expected ] at the end of an array",
    "unexpected mark among the arguments",
    _RIGHT,
    _WRONG,
    DONE,
    "nothing alone",
    'Thought: Action: with Action Input: {"a"} [] ? ; : , . - null true false',
)


class ToolWorld(ABC):
    """A world of tools over data invented per task.

    Args:
        style: "plain" (short calls and results, for small models) or "json" (the original's text). Every form of a call
            is understood in both; tasks are the same.
        penalty: the reward of an action that is none or cannot be, 0 or less.
        sizes: how many tasks the panels hold.

    `info["score"]` is what AgentGym's server would report as reward at that moment.

    Raises:
        ConfigError: an unknown style, or a penalty that is positive or not finite.
    """

    version = "1"
    tiers = TIERS
    blocking = False
    name: str
    horizon: int
    specs: ClassVar[tuple[ToolSpec, ...]]  # without check_valid_actions and finish
    trained: ClassVar[int]  # parts of the longest trained kinds
    example: ClassVar[Call]  # for the instructions
    asked: ClassVar[bool] = True  # whether finish takes an answer
    counted: ClassVar[bool] = False  # whether subgoals count before the end
    hint: ClassVar[str] = ""  # what the instructions say more

    def __init__(self, *, style: Style = "plain", penalty: float = 0.0, sizes: Sizes | None = None) -> None:
        problems = [unknown("style", str(style), STYLES)] if style not in STYLES else []
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"{penalty} is not a penalty", "give 0 or a negative number"))
        if problems:
            raise ConfigError(problems)
        self.style, self.penalty = style, penalty
        self.reward_range = (min(0.0, penalty), 1.0)
        self._toolbox = Toolbox((*self.specs, *_common(self.specs, self.asked)))
        self._calls = ToolGrammar(self._toolbox.specs, style)
        self.grammar: Grammar = self._calls
        self.instructions = self._instructions()
        self._scenes: dict[str, Scene] = {}
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw)

    @abstractmethod
    def kinds(self) -> Iterable[Kind]:
        """Every kind of task that there is."""

    @abstractmethod
    def quest(self, kind: Kind, seed: int) -> Quest:
        """The task of a kind and a seed."""

    @abstractmethod
    def solve(self, kind: Kind, quest: Quest, asker: Asker) -> Solution:
        """Solve a task with nothing but its tools and its question."""

    @abstractmethod
    def around(self, quest: Quest, solution: Solution) -> Iterable[Call]:
        """Calls that somebody might try in this task, wrong answers among them; the plan is added to them."""

    @abstractmethod
    def texts(self) -> Iterable[str]:
        """Every word that questions, results and refusals of the world may hold."""

    def finished(self, quest: Quest, solution: Solution, state: Any, *, answer: Json) -> float:
        """The share of the task that is done when `finish` is called, 1.0 exactly where it is solved."""
        return float(same_answer(solution.answer, answer))

    def reported(self, quest: Quest, solution: Solution, state: Any) -> float:
        """What the original would report as reward in this state, where that is more than the share done."""
        return 0.0

    def show(self, value: Json) -> str:
        """A result as text, in the world's style."""
        if isinstance(value, str):
            return value
        return compact(value) if self.style == "plain" else json.dumps(value, ensure_ascii=False)

    def _instructions(self) -> str:
        """What an agent is told: how a call is written, and every tool with the names of its arguments."""
        tools = ", ".join(spec.signature for spec in self._toolbox.specs.values())
        how = "Thought: ... Action: NAME with Action Input: {arguments}" if self.style == "json" else "NAME arguments"
        end = "finish with the answer" if self.asked else "finish"
        return (
            f"Reach the goal by calling one tool at a time, then {end}. Write: {how}, for example: "
            f"{self._calls.write(self.example)}. {self.hint}Tools: {tools}."
        )

    @cached_property
    def _tiers(self) -> Mapping[str, tuple[Kind, ...]]:
        return tiers_of_kinds(self.name, self.kinds(), trained=self.trained)

    @cached_property
    def _every(self) -> frozenset[Kind]:
        return frozenset(self.kinds())

    def _draw(self, tier: str) -> Iterator[Candidate]:
        for number in count():
            for kind in self._tiers[tier]:
                spec: dict[str, Json] = {"kind": list(kind), "seed": number}
                yield Candidate(spec, " ".join(kind), tier, self.quest(kind, number).key)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier; raises ConfigError for a name that does not exist."""
        return self._panels.tasks(split, tier)

    def make(self, task: Task) -> ToolEnv:
        """An Env for one task.

        Raises:
            ConfigError: not a task of this world, or one without a possible kind and a seed.
            VersionMismatch: a task of another version.
        """
        return ToolEnv(self, task, self._scene(task))

    def toolbox(self, task: Task) -> Toolbox:
        """The tools of a task without any text: `tools`, `start`, and `call(state, call) -> (state, result)`."""
        return self._toolbox.beginning(self._scene(task).quest.start)

    def write(self, call: Call) -> str:
        """The action that makes a call, in the world's style."""
        return self._calls.write(call)

    def expert(self, task: Task) -> Sequence[str]:
        """Calls that solve the task, in the world's style."""
        return [self._calls.write(call) for call in self._scene(task).solution.plan]

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = the task is solved; raw = the sum of the rewards, unit = the share done without penalties.

        Any reward of None makes the whole episode unscored.
        """
        known = [reward for reward in rewards if reward is not None]
        if len(known) != len(rewards):
            return Score(None, None, None)
        share = min(1.0, sum(reward for reward in known if reward > 0))
        return Score(float(sum(known)), share, share >= 1.0 - 1e-9)

    def key(self, task: Task) -> str:
        """The canonical form of a task: equal for tasks that differ only in names."""
        return self._scene(task).quest.key

    def vocabulary(self) -> Sequence[str] | None:
        """Every word and mark of instructions, observations and expert actions, sorted; None in the style "json"."""
        return sorted(self._words) if self.style == "plain" else None

    @cached_property
    def _words(self) -> frozenset[str]:
        specs = self._toolbox.specs.values()
        texts = (self.instructions, *_SENTENCES, *(spec.expected for spec in specs), *self.texts())
        return frozenset(word for text in texts for word in words_of(text))

    def _scene(self, task: Task) -> Scene:
        scene = self._scenes.get(task.id)
        if scene is None:
            scene = self._build(*self._read(task))
            while len(self._scenes) >= _KNOWN_TASKS:
                self._scenes.pop(next(iter(self._scenes)))
            self._scenes[task.id] = scene
        return scene

    def _read(self, task: Task) -> tuple[Kind, int]:
        check_task(self, task)
        parts, seed = task.spec.get("kind"), task.spec.get("seed")
        kind = tuple(parts) if isinstance(parts, list) and all(isinstance(part, str) for part in parts) else ()
        problems = []
        if kind not in self._every:
            problems.append(Problem("kind", f"{parts!r} is no kind of task", "give a list of parts that fit together"))
        if type(seed) is not int:
            problems.append(Problem("seed", f"{seed!r} is no whole number", "give one"))
        if problems:
            raise ConfigError(problems)
        return kind, task.spec["seed"]

    def _build(self, kind: Kind, seed: int) -> Scene:
        quest = self.quest(kind, seed)
        solution = self.solve(kind, quest, Asker(self._toolbox.beginning(quest.start)))
        calls = (*solution.plan, *self.around(quest, solution), Call(CHECK))
        known = [call for call in calls if call.name in self._toolbox.specs]
        admissible = tuple(sorted({self._calls.write(call) for call in known}))
        return Scene(quest, solution, admissible, self.reported(quest, solution, quest.start))

    def move(self, scene: Scene, state: Any, text: str) -> Move:
        """What comes of a text in a state; remembered for the next episode."""
        try:
            call = self._calls.read(text)
        except InvalidAction as problem:
            move = Move(state, problem.what, failed=True)
        else:
            after, result = self._toolbox.call(state, call)
            move = self._judged(scene, call, after, result)
        if len(scene.moves) < _KNOWN_MOVES:
            scene.moves[state, text] = move
        return move

    def _judged(self, scene: Scene, call: Call, state: Any, result: Result) -> Move:
        if result.failed:
            return Move(state, str(result.value), failed=True)
        solution = scene.solution
        if call.name == FINISH:
            share = self.finished(scene.quest, solution, state, answer=result.value)
            return Move(state, _RIGHT if share >= 1.0 else _WRONG, ends=True, share=grain(share))
        hits = sum(1 << place for place, one in enumerate(solution.subgoals) if same_result(one, result.value))
        reported = self.reported(scene.quest, solution, state)
        return Move(state, self.show(result.value), hits=hits, reported=reported)

    def part(self, scene: Scene, reached: int) -> float:
        """The share done before the end: subgoals reached, of all subgoals and the answer."""
        return grain(reached.bit_count() / (len(scene.solution.subgoals) + 1)) if self.counted else 0.0


def _common(specs: Sequence[ToolSpec], asked: bool) -> tuple[ToolSpec, ...]:
    """The tools that every world has: the list of tools (not where `finish` takes no answer) and `finish`."""
    names: Json = [*(spec.name for spec in specs), CHECK, FINISH]
    if not asked:
        return (tool(lambda state, given: (state, None), "finish()", "End the task."),)
    check = tool(lambda state, given: (state, names), f"{CHECK}()", "List the tools.")
    finish = tool(lambda state, given: (state, given["answer"]), f"{FINISH}(answer: any)", "Give the answer and end.")
    return check, finish
