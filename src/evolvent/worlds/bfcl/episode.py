"""Episodes over BFCL's items: one reply for an item of one turn, a conversation with state for one of several."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evolvent.errors import EnvLost, InvalidAction, SampleInvalid, SessionGone
from evolvent.grade.calls import Form, attempts_call, decode_calls
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.trajectory import Task, Value, canonical_json
from evolvent.worlds.base import Info, Reply, StateEnv
from evolvent.worlds.bfcl.items import CallItem, judge_calls
from evolvent.worlds.bfcl.multi_turn import MOST_STEPS, MultiTurn, Scene, TurnsVerdict, judge_turns, run_calls

__all__ = ["CallEnv", "TurnsEnv", "parse_answer", "render_request", "select_tools"]


def render_request(tools: Sequence[Tool], messages: Sequence[Message]) -> str:
    """Renders functions, one JSON object a line, and messages. Only a conversation of several messages names its
    speakers.
    """
    tool_lines = "".join(
        canonical_json({"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}) + "\n"
        for tool in tools
    )
    message_texts = [f"{tool.role}: {tool.text}" if len(messages) > 1 else tool.text for tool in messages]
    return (f"Functions:\n{tool_lines}\n" if tool_lines else "") + "\n".join(message_texts)


def parse_answer(text: str, form: Form, tools: Sequence[Tool]) -> tuple[Call, ...] | None:
    """Parses the calls of a reply; returns () for text without calls, and None for calls that cannot be read."""
    try:
        return decode_calls(text, form=form, tools=tools)
    except InvalidAction:
        return None if attempts_call(text, form=form) else ()


def _build_info(tools: Sequence[Tool], messages: Sequence[Message], **more: Any) -> dict[str, Any]:
    """Builds the info for agents with their own chat template: all current tools, and the new messages."""
    return {
        "tools": [entry.as_openai() for entry in tools],
        "messages": [entry.as_openai() for entry in messages],
        **more,
    }


class CallEnv:
    """One reply to an item of one turn. It cannot be forked: there is no state between beginning and end.

    Args:
        item: the item.
        form: how calls are written.
        shown_sample: the request and tools to show instead of the item's own (under other names, say).
        restore_calls: converts calls of the shown tools to calls of the item's tools.
    """

    def __init__(
        self,
        item: CallItem,
        form: Form,
        *,
        shown_sample: CallSample | None = None,
        restore_calls: Callable[[Sequence[Call]], Sequence[Call]] = tuple,
    ) -> None:
        self._item, self._running = item, False
        self._tools, self._messages = (
            (item.tools, item.messages) if shown_sample is None else (shown_sample.tools, shown_sample.messages)
        )
        self._back = restore_calls
        self._form: Form = item.form if form == "python" else form

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._running = True
        text = render_request(self._tools, self._messages)
        if self._item.language != "python" and self._form != self._item.form:
            text += f"\nGive every argument as a text that holds a literal of {self._item.language.capitalize()}."
        return text, _build_info(self._tools, self._messages, language=self._item.language)

    def step(self, action: Value) -> Reply:
        """Scores the reply: the reward is the verdict, 1 or 0.

        Raises:
            SessionGone: after the end.
            EnvLost: the item itself is at fault, so that there is no verdict.
        """
        if not self._running:
            raise SessionGone(
                "step was called after the end of the episode", value=str(action), expected="reset() first"
            )
        self._running = False
        try:
            calls = parse_answer(str(action), self._form, self._tools)
            verdict = judge_calls(self._item, None if calls is None else self._back(calls))
        except SampleInvalid as error:
            raise EnvLost(f"{self._item.id} cannot be judged", value=str(error)) from error
        return "", float(verdict.valid), True, False, {"verdict": asdict(verdict)}

    def close(self) -> None:
        self._running = False


@dataclass(slots=True)
class _Dialog:
    """The state of a conversation: the calls of each turn, and the objects that they change."""

    turns: list[list[tuple[Call, ...]]]
    scene: Scene


class TurnsEnv(StateEnv[_Dialog]):
    """A conversation: calls are executed and answered, and a reply without calls ends the turn.

    The verdict is made at the end, from all calls, in a separate run (`multi_turn.judge_turns`). More than 20
    replies with calls in one turn end the episode, as on the leaderboard.

    Args:
        documents: class -> its functions.
    """

    def __init__(
        self, task: Task, conversation: MultiTurn, documents: Mapping[str, Sequence[Tool]], *, form: Form
    ) -> None:
        super().__init__(task, _Dialog([[]], Scene(conversation)))
        self._conversation, self._documents, self._form = conversation, documents, form

    def _copy_state(self, state: _Dialog) -> _Dialog:
        return _Dialog([list(turn) for turn in state.turns], copy.deepcopy(state.scene))

    def _observe_start(self) -> tuple[Value, Info]:
        return self._open_turn(0)

    def _visible_tools(self, turn: int) -> tuple[Tool, ...]:
        return select_tools(self._conversation, self._documents, turn=turn)

    def _open_turn(self, turn: int) -> tuple[str, dict[str, Any]]:
        """Returns the user's messages of this turn, with the functions that are new, and the info."""
        known_names = {tool.name for tool in self._visible_tools(turn - 1)} if turn else set()
        new_tools = [tool for tool in self._visible_tools(turn) if tool.name not in known_names]
        messages = self._conversation.item.turns[turn] or (
            Message("user", "There are more functions now. Please try again to do what I have asked for."),
        )
        return render_request(new_tools, messages), _build_info(self._visible_tools(turn), messages, turn=turn)

    def _transition(self, state: _Dialog, action: Value) -> tuple[_Dialog, Reply]:
        """Executes the calls of a reply, or ends the turn."""
        turns, turn = state.turns, len(state.turns) - 1
        calls = parse_answer(str(action), self._form, self._visible_tools(turn)) or ()
        if not calls:
            if len(turns) == len(self._conversation.gold):
                return state, self._finish(turns)
            turns.append([])
            observation, info = self._open_turn(turn + 1)
            return state, (observation, 0.0, False, False, info)
        turns[-1].append(calls)
        if len(turns[-1]) > MOST_STEPS:
            return state, self._finish(turns)
        answers = run_calls(state.scene, calls)
        messages = [
            Message("tool", answer, tool_call_id=call.id, extra={"name": call.name})
            for call, answer in zip(calls, answers, strict=True)
        ]
        text = "\n".join(f"{call.name}: {answer}" for call, answer in zip(calls, answers, strict=True))
        return state, (text, 0.0, False, False, _build_info(self._visible_tools(turn), messages, turn=turn))

    def _finish(self, turns: Sequence[Sequence[Sequence[Call]]]) -> Reply:
        self.close()  # The episode is over also where it cannot be judged.
        verdict: TurnsVerdict = judge_turns(self._conversation, turns)
        return "", float(verdict.valid), True, False, {"verdict": asdict(verdict)}


def select_tools(conversation: MultiTurn, documents: Mapping[str, Sequence[Tool]], *, turn: int) -> tuple[Tool, ...]:
    """Selects the functions that are shown in a turn: those of the item's classes, in the order of the documents.

    Functions that the item names as missed are shown from their turn on, excluded ones never. (The leaderboard's
    program of 2026 shows the excluded ones; no gold answer calls any.)
    """
    item = conversation.item
    hidden = {name for first_turn, names in item.missed_function.items() if first_turn > turn for name in names}
    hidden |= set(item.excluded_function)
    return tuple(
        tool for class_name in item.involved_classes for tool in documents[class_name] if tool.name not in hidden
    )
