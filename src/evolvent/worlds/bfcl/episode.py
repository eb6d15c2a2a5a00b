"""Episodes over BFCL's items: one reply for an item of one turn, a conversation with state for one of several."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evolvent.errors import EnvLost, InvalidAction, SampleInvalid, SessionGone
from evolvent.grade.calls import Form, decode_calls
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.trajectory import Task, Value, canonical_json
from evolvent.worlds.base import Info, Reply, own_moment
from evolvent.worlds.bfcl.items import CallItem, judge_calls
from evolvent.worlds.bfcl.multi_turn import MOST_STEPS, MultiTurn, Scene, TurnsVerdict, judge_turns, run_calls

__all__ = ["CallEnv", "TurnsEnv", "told", "toolset"]


def told(tools: Sequence[Tool], messages: Sequence[Message]) -> str:
    """Functions, one JSON object a line, and what was said. Only a conversation of several messages names speakers."""
    listed = "".join(
        canonical_json({"name": one.name, "description": one.description, "parameters": dict(one.parameters)}) + "\n"
        for one in tools
    )
    said = [f"{one.role}: {one.text}" if len(messages) > 1 else one.text for one in messages]
    return (f"Functions:\n{listed}\n" if listed else "") + "\n".join(said)


def _read(text: str, form: Form, tools: Sequence[Tool] = ()) -> tuple[Call, ...] | None:
    """The calls of a reply, None where it cannot be read as calls."""
    try:
        return decode_calls(text, form=form, tools=tools)
    except InvalidAction:
        return None


def _info(tools: Sequence[Tool], messages: Sequence[Message], **more: Any) -> dict[str, Any]:
    """What an agent with a chat template of its own needs: all tools of this moment, and the messages that are new."""
    return {
        "tools": [one.as_openai() for one in tools],
        "messages": [one.as_openai() for one in messages],
        **more,
    }


class CallEnv:
    """One reply to an item of one turn. It cannot be forked: there is nothing between beginning and end.

    Args:
        shown: the request and tools as they are shown, where that is not the item's own form (in other names, say).
        back: from calls of what is shown to calls of the item.
    """

    def __init__(
        self,
        item: CallItem,
        form: Form,
        *,
        shown: CallSample | None = None,
        back: Callable[[Sequence[Call]], Sequence[Call]] = tuple,
    ) -> None:
        self._item, self._running = item, False
        self._tools, self._messages = (item.tools, item.messages) if shown is None else (shown.tools, shown.messages)
        self._back = back
        self._form: Form = item.form if form == "python" else form

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._running = True
        text = told(self._tools, self._messages)
        if self._item.language != "python" and self._form != self._item.form:
            text += f"\nGive every argument as a text that holds a literal of {self._item.language.capitalize()}."
        return text, _info(self._tools, self._messages, language=self._item.language)

    def step(self, action: Value) -> Reply:
        """The verdict as reward, 1 or 0.

        Raises:
            SessionGone: after the end.
            EnvLost: the item itself is at fault, so that there is no verdict.
        """
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        self._running = False
        try:
            calls = _read(str(action), self._form, self._tools)
            verdict = judge_calls(self._item, None if calls is None else self._back(calls))
        except SampleInvalid as error:
            raise EnvLost(f"{self._item.id} cannot be judged", value=str(error)) from error
        return "", float(verdict.valid), True, False, {"verdict": asdict(verdict)}

    def close(self) -> None:
        self._running = False


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot of a conversation."""

    task: str
    running: bool
    turns: tuple[tuple[tuple[Call, ...], ...], ...]
    scene: Scene


class TurnsEnv:
    """A conversation: calls are done and answered, and a reply without calls ends the turn.

    The verdict is made at the end, from all calls, by a run of its own (`multi_turn.judge_turns`). More than 20 replies
    with calls in one turn end the episode, as on the leaderboard.

    Args:
        documents: class -> its functions.
    """

    def __init__(self, task: Task, made: MultiTurn, documents: Mapping[str, Sequence[Tool]], *, form: Form) -> None:
        self._task, self._made, self._documents, self._form = task, made, documents, form
        self._running = False
        self._turns: list[list[tuple[Call, ...]]] = []
        self._scene = Scene(made)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._running, self._turns, self._scene = True, [[]], Scene(self._made)
        return self._opened()

    def _tools(self, turn: int) -> tuple[Tool, ...]:
        return toolset(self._made, self._documents, turn=turn)

    def _opened(self) -> tuple[str, dict[str, Any]]:
        """What the user says in this turn, with the functions that are new."""
        at = len(self._turns) - 1
        before = {one.name for one in self._tools(at - 1)} if at else set()
        new = [one for one in self._tools(at) if one.name not in before]
        messages = self._made.item.turns[at] or (
            Message("user", "There are more functions now. Please try again to do what I have asked for."),
        )
        return told(new, messages), _info(self._tools(at), messages, turn=at)

    def step(self, action: Value) -> Reply:
        """Do the calls of a reply, or end the turn. Raises SessionGone after the end."""
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        at = len(self._turns) - 1
        calls = _read(str(action), self._form) or ()
        if not calls:
            if len(self._turns) == len(self._made.gold):
                return self._ended()
            self._turns.append([])
            observation, info = self._opened()
            return observation, 0.0, False, False, info
        self._turns[-1].append(calls)
        if len(self._turns[-1]) > MOST_STEPS:
            return self._ended()
        answers = run_calls(self._scene, calls)
        messages = [
            Message("tool", answer, tool_call_id=call.id, extra={"name": call.name})
            for call, answer in zip(calls, answers, strict=True)
        ]
        text = "\n".join(f"{call.name}: {answer}" for call, answer in zip(calls, answers, strict=True))
        return text, 0.0, False, False, _info(self._tools(at), messages, turn=at)

    def _ended(self) -> Reply:
        self._running = False
        verdict: TurnsVerdict = judge_turns(self._made, self._turns)
        return "", float(verdict.valid), True, False, {"verdict": asdict(verdict)}

    def snapshot(self) -> object:
        turns = tuple(map(tuple, self._turns))
        return _Moment(self._task.id, self._running, turns, copy.deepcopy(self._scene))

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        moment = own_moment(value, _Moment, self._task)
        self._running, self._turns = moment.running, list(map(list, moment.turns))
        self._scene = copy.deepcopy(moment.scene)

    def close(self) -> None:
        self._running = False


def toolset(made: MultiTurn, documents: Mapping[str, Sequence[Tool]], *, turn: int) -> tuple[Tool, ...]:
    """The functions that are shown in a turn: those of the item's classes, in the order of the documents.

    Functions that the item names as missed are shown from their turn on, those that it excludes never. (The
    leaderboard's programme of 2026 shows the excluded ones; no gold answer calls any.)
    """
    item = made.item
    hidden = {name for at, names in item.missed_function.items() if at > turn for name in names}
    hidden |= set(item.excluded_function)
    return tuple(one for kind in item.involved_classes for one in documents[kind] if one.name not in hidden)
