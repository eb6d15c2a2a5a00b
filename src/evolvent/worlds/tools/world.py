"""The common part of the five tool worlds: panels, episodes, scores, experts. A world adds its tools, data and
questions.

An episode is a question, calls of tools, and `finish`. Rewards are increases of the best share reached so far:
they sum to 1 exactly if the task is solved. A failed call is answered by a sentence and changes nothing.

One episode over tools: the state, the reached subgoals, and the best share so far.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count, pairwise
from typing import Any, ClassVar, NamedTuple, Protocol

from evolvent.errors import ConfigError, InvalidAction, Problem, unknown_name_problem
from evolvent.messages import Call
from evolvent.trajectory import Json, Score, Task, Value
from evolvent.worlds.base import TIERS, Grammar, Info, Reply, StateEnv, check_task
from evolvent.worlds.crafting import words_of
from evolvent.worlds.deferred import DeferredInfo
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes
from evolvent.worlds.tools.calls import STYLES, Style, ToolGrammar, compact
from evolvent.worlds.tools.engine import CHECK, FINISH, UNKNOWN_TOOL, Result, State, Toolbox, ToolSpec, build_tool
from evolvent.worlds.tools.expert import Quest, Solution, ToolExpert
from evolvent.worlds.tools.kinds import Kind, kinds_by_tier
from evolvent.worlds.tools.scoring import round_share_down, same_answer, same_result

__all__ = ["DONE", "ActionEvaluator", "Scene", "ToolEnv", "ToolWorld", "Transition"]


@dataclass(frozen=True, slots=True)
class Transition:
    """The outcome of a text in a state.

    Args:
        state: the next state.
        observation: the reply.
        failed: whether the text is not a call, or the call failed.
        ends: whether it ended the episode.
        hits: the subgoals that equal the result, as bits.
        share: the completed share of the task, at the end.
        reported: the reward that the original would report, if it is larger.
    """

    state: State
    observation: str
    failed: bool = False
    ends: bool = False
    hits: int = 0
    share: float = 0.0
    reported: float = 0.0


@dataclass(slots=True)
class Scene:
    """The state that all episodes of one task share.

    Args:
        quest, solution: the task.
        list_calls: formats plausible calls.
        initial_report: the reward that the original would report before any call.
        expert: the expert that has solved the task.
        transitions: cached outcomes of texts in states.
    """

    quest: Quest
    solution: Solution
    list_calls: Callable[[], tuple[str, ...]]
    initial_report: float
    expert: ToolExpert
    transitions: dict[tuple[State, str], Transition] = field(default_factory=dict)
    _admissible: tuple[str, ...] | None = None
    _expert_calls: dict[tuple[State, str], tuple[Call, State, Json]] | None = None

    def list_admissible(self) -> tuple[str, ...]:
        """Returns plausible calls, formatted when they are first read."""
        if self._admissible is None:
            self._admissible = self.list_calls()
        return self._admissible

    def find_expert_call(
        self, state: State, text: str, format_call: Callable[[Call], str]
    ) -> tuple[Call, State, Json] | None:
        """Returns the expert's call with this text in this state, the state after it and its result; None: another
        text. The expert has executed it when it solved the task, so it need not be executed again.
        """
        if self._expert_calls is None:
            steps = zip(pairwise(self.expert.states), self.expert.calls, self.expert.results, strict=True)
            self._expert_calls = {
                (before, format_call(call)): (call, after, result) for (before, after), call, result in steps
            }
        return self._expert_calls.get((state, text))


class ActionEvaluator(Protocol):
    """The evaluator of an agent's actions: a tool world."""

    penalty: float

    def evaluate_action(self, scene: Scene, state: State, text: str) -> Transition:
        """Returns the outcome of a text in a state."""
        ...

    def partial_share(self, scene: Scene, reached: int) -> float:
        """Returns the completed share before the end, if the subgoals of these bits are reached."""
        ...


class _State(NamedTuple):
    """The state of an episode.

    Args:
        tool_state: the state of the tools, an immutable value.
        reached: the reached subgoals, as bits.
        best: the best completed share so far.
        reported: the reward that the original would report.
    """

    tool_state: Any
    reached: int
    best: float
    reported: float


class ToolEnv(StateEnv[_State]):
    """The environment of a task of tools. Forks are free: its state is an immutable value."""

    def __init__(self, world: ActionEvaluator, task: Task, scene: Scene) -> None:
        super().__init__(task, _State(scene.quest.start, 0, 0.0, scene.initial_report))
        self._world, self._scene = world, scene

    def _observe_start(self) -> tuple[Value, Info]:
        return self._scene.quest.question, self._info(self._start.reported)

    def _info(self, reported: float) -> DeferredInfo:
        return DeferredInfo(self._scene.list_admissible, {"score": reported})

    def _transition(self, state: _State, action: Value) -> tuple[_State, Reply]:
        tool_state, reached, best, reported = state
        text = action if isinstance(action, str) else str(action)
        transition = self._scene.transitions.get((tool_state, text))
        if transition is None:
            transition = self._world.evaluate_action(self._scene, tool_state, text)
        if transition.failed:
            info = self._info(reported).with_fields(invalid=True)
            return state, (transition.observation, self._world.penalty, False, False, info)
        new_hits = transition.hits & ~reached
        reached |= new_hits & -new_hits
        share = max(best, transition.share if transition.ends else self._world.partial_share(self._scene, reached))
        reported = max(reported, share, transition.reported)
        reply = transition.observation, share - best, transition.ends, False, self._info(reported)
        return _State(transition.state, reached, share, reported), reply


DONE = "done"
"""The answer that ends a task of which nothing is asked but that something be done."""
_MAX_CACHED_SCENES = 4096  # scenes kept ready
_MAX_CACHED_TRANSITIONS = 1024  # (state, text) pairs of one scene whose outcome is kept
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


class ToolWorld(DealtOnce, ABC):
    """A world of tools over data generated per task.

    Args:
        style: "plain" (short calls and results, for small models) or "json" (the original's text). Every form of a
            call is accepted in both; tasks are the same.
        penalty: the reward of an invalid or failed action, 0 or less.
        sizes: panel sizes.

    `info["score"]` is the reward that AgentGym's server would report at that moment.

    Raises:
        ConfigError: an unknown style, or a penalty that is positive or not finite.
    """

    version = "1"
    tiers = TIERS
    run_in_thread = False
    name: str
    horizon: int
    specs: ClassVar[tuple[ToolSpec, ...]]  # without check_valid_actions and finish
    trained_length: ClassVar[int]  # parts of the longest trained kinds
    example: ClassVar[Call]  # for the instructions
    takes_answer: ClassVar[bool] = True  # whether finish takes an answer
    counts_subgoals: ClassVar[bool] = False  # whether subgoals count before the end
    extra_instructions: ClassVar[str] = ""  # what the instructions say more

    def __init__(self, *, style: Style = "plain", penalty: float = 0.0, sizes: Sizes | None = None) -> None:
        problems = [unknown_name_problem("style", str(style), STYLES)] if style not in STYLES else []
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"got {penalty}, expected 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.style, self.penalty = style, penalty
        self.reward_range = (min(0.0, penalty), 1.0)
        self._toolbox = Toolbox((*self.specs, *_build_common_tools(self.specs, self.takes_answer)))
        self._calls = ToolGrammar(self._toolbox.specs, style)
        self.grammar: Grammar = self._calls
        self.instructions = self._build_instructions()
        self._scenes: dict[str, Scene] = {}
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw, recipe=self.recipe
        )

    @abstractmethod
    def kinds(self) -> Iterable[Kind]:
        """Returns all kinds of tasks."""

    def has_kind(self, kind: Kind) -> bool:
        """Returns whether `kinds` yields this kind."""
        return kind in self._all_kinds

    @abstractmethod
    def draw_quest(self, kind: Kind, seed: int) -> Quest:
        """Draws the task of a kind and a seed."""

    @abstractmethod
    def solve(self, kind: Kind, quest: Quest, expert: ToolExpert) -> Solution:
        """Finds the solution of a task with only its tools and its question."""

    @abstractmethod
    def candidate_calls(self, quest: Quest, solution: Solution) -> Iterable[Call]:
        """Yields plausible calls in this task, wrong answers among them; the plan is added to them."""

    @abstractmethod
    def vocabulary_texts(self) -> Iterable[str]:
        """Yields texts with every word of questions, results and error messages of the world."""

    def completed_share(self, quest: Quest, solution: Solution, state: State, *, answer: Json) -> float:
        """Returns the completed share of the task when `finish` is called, 1.0 exactly if it is solved."""
        return float(same_answer(solution.answer, answer))

    def reported_reward(self, quest: Quest, solution: Solution, state: State) -> float:
        """Returns the reward that the original would report in this state, if it is larger than the completed share."""
        return 0.0

    def render_result(self, value: Json) -> str:
        """Renders a result as text, in the world's style."""
        if isinstance(value, str):
            return value
        return compact(value) if self.style == "plain" else json.dumps(value, ensure_ascii=False)

    def _build_instructions(self) -> str:
        """Builds the instructions: the format of a call, and every tool with the names of its arguments."""
        tools = ", ".join(spec.signature for spec in self._toolbox.specs.values())
        call_format = (
            "Thought: ... Action: NAME with Action Input: {arguments}" if self.style == "json" else "NAME arguments"
        )
        ending = "finish with the answer" if self.takes_answer else "finish"
        return (
            f"Reach the goal by calling one tool at a time, then {ending}. Write: {call_format}, for example: "
            f"{self._calls.format_call(self.example)}. {self.extra_instructions}Tools: {tools}."
        )

    @cached_property
    def _tiers(self) -> Mapping[str, tuple[Kind, ...]]:
        return kinds_by_tier(self.name, self.kinds(), trained_length=self.trained_length)

    @cached_property
    def _all_kinds(self) -> frozenset[Kind]:
        return frozenset(self.kinds())

    def _draw(self, tier: str) -> Iterator[Candidate]:
        for number in count():
            for kind in self._tiers[tier]:
                spec: dict[str, Json] = {"kind": list(kind), "seed": number}
                yield Candidate(spec, " ".join(kind), tier, self.draw_quest(kind, number).key)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def make(self, task: Task) -> ToolEnv:
        """Creates an Env for one task.

        Raises:
            ConfigError: not a task of this world, or a spec without a valid kind and a seed.
            VersionMismatch: a task of another version.
        """
        return ToolEnv(self, task, self._get_scene(task))

    def toolbox(self, task: Task) -> Toolbox:
        """Returns the tools of a task without any text: `tools`, `start`, and `call(state, call) -> (state,
        result)`.
        """
        return self._toolbox.with_start(self._get_scene(task).quest.start)

    def format_call(self, call: Call) -> str:
        """Formats a call as an action, in the world's style."""
        return self._calls.format_call(call)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns calls that solve the task, in the world's style."""
        return [self._calls.format_call(call) for call in self._get_scene(task).solution.plan]

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the task is solved; raw = the sum of the rewards, unit = the share without
        penalties.

        Any reward of None makes the whole episode unscored.
        """
        known_rewards = [reward for reward in rewards if reward is not None]
        if len(known_rewards) != len(rewards):
            return Score(None, None, None)
        share = min(1.0, sum(reward for reward in known_rewards if reward > 0))
        return Score(float(sum(known_rewards)), share, share >= 1.0 - 1e-9)

    def key(self, task: Task) -> str:
        """Returns the canonical form of a task, equal for tasks that differ only in names."""
        scene = self._scenes.get(task.id)  # without one, the key needs no solution and no plausible calls
        return self.draw_quest(*self._parse_spec(task)).key if scene is None else scene.quest.key

    def vocabulary(self) -> Sequence[str] | None:
        """Returns every word and mark of instructions, observations and expert actions, sorted; None in the style
        "json".
        """
        return sorted(self._vocabulary) if self.style == "plain" else None

    @cached_property
    def _vocabulary(self) -> frozenset[str]:
        specs = self._toolbox.specs.values()
        texts = (self.instructions, *_SENTENCES, *(spec.usage for spec in specs), *self.vocabulary_texts())
        return frozenset(word for text in texts for word in words_of(text))

    def _get_scene(self, task: Task) -> Scene:
        scene = self._scenes.get(task.id)
        if scene is None:
            scene = self._build_scene(*self._parse_spec(task))
            while len(self._scenes) >= _MAX_CACHED_SCENES:
                self._scenes.pop(next(iter(self._scenes)))
            self._scenes[task.id] = scene
        return scene

    def _parse_spec(self, task: Task) -> tuple[Kind, int]:
        check_task(self, task)
        parts, seed = task.spec.get("kind"), task.spec.get("seed")
        kind = tuple(parts) if isinstance(parts, list) and all(isinstance(part, str) for part in parts) else ()
        problems = []
        if not self.has_kind(kind):
            problems.append(Problem("kind", f"got {parts!r}, expected a list of matching parts"))
        if type(seed) is not int:
            problems.append(Problem("seed", f"got {seed!r}, expected a whole number"))
        if problems:
            raise ConfigError(problems)
        return kind, task.spec["seed"]

    def _build_scene(self, kind: Kind, seed: int) -> Scene:
        quest = self.draw_quest(kind, seed)
        expert = ToolExpert(self._toolbox.with_start(quest.start))
        solution = self.solve(kind, quest, expert)
        reported = self.reported_reward(quest, solution, quest.start)
        return Scene(quest, solution, partial(self._list_calls, quest, solution), reported, expert)

    def _list_calls(self, quest: Quest, solution: Solution) -> tuple[str, ...]:
        """Formats plausible calls, the plan among them, in alphabetical order."""
        calls = (*solution.plan, *self.candidate_calls(quest, solution), Call(CHECK))
        valid_calls = [call for call in calls if call.name in self._toolbox.specs]
        return tuple(sorted({self._calls.format_call(call) for call in valid_calls}))

    def evaluate_action(self, scene: Scene, state: State, text: str) -> Transition:
        """Returns the outcome of a text in a state, and caches it for the next episode."""
        expert_call = scene.find_expert_call(state, text, self._calls.format_call)
        try:
            call = self._calls.parse_call(text) if expert_call is None else expert_call[0]
        except InvalidAction as error:
            transition = Transition(state, error.what, failed=True)
        else:
            if expert_call is None:
                next_state, result = self._toolbox.call(state, call)
            else:
                next_state, result = expert_call[1], Result(expert_call[2])
            transition = self._evaluate_result(scene, call, next_state, result)
        if len(scene.transitions) < _MAX_CACHED_TRANSITIONS:
            scene.transitions[state, text] = transition
        return transition

    def _evaluate_result(self, scene: Scene, call: Call, state: Any, result: Result) -> Transition:
        if result.failed:
            return Transition(state, str(result.value), failed=True)
        solution = scene.solution
        if call.name == FINISH:
            share = self.completed_share(scene.quest, solution, state, answer=result.value)
            return Transition(state, _RIGHT if share >= 1.0 else _WRONG, ends=True, share=round_share_down(share))
        hits = sum(1 << index for index, subgoal in enumerate(solution.subgoals) if same_result(subgoal, result.value))
        reported = self.reported_reward(scene.quest, solution, state)
        return Transition(state, self.render_result(result.value), hits=hits, reported=reported)

    def partial_share(self, scene: Scene, reached: int) -> float:
        """Returns the completed share before the end: subgoals reached, out of all subgoals and the answer."""
        return (
            round_share_down(reached.bit_count() / (len(scene.solution.subgoals) + 1)) if self.counts_subgoals else 0.0
        )


def _build_common_tools(specs: Sequence[ToolSpec], takes_answer: bool) -> tuple[ToolSpec, ...]:
    """Builds the tools of every world: the list of tools (unless `finish` takes no answer) and `finish`."""
    names: Json = [*(spec.name for spec in specs), CHECK, FINISH]
    if not takes_answer:
        return (build_tool(lambda state, arguments: (state, None), "finish()", "End the task."),)
    check = build_tool(lambda state, arguments: (state, names), f"{CHECK}()", "List the tools.")
    finish = build_tool(
        lambda state, arguments: (state, arguments["answer"]), f"{FINISH}(answer: any)", "Give the answer and end."
    )
    return check, finish
