"""A task of the grid world made ready: its board, its mission, and what each moment of it looks like.

The world is deterministic and a macro depends on what is seen now alone. So what is seen and possible in a pose, and
what an action leads to, is computed once and kept; the number of poses kept is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from evolvent.worlds.grid.map import LOCKED, Board, Pose, moved
from evolvent.worlds.grid.mission import Mission, Progress, judge
from evolvent.worlds.grid.plan import Macro, actions, moves_of
from evolvent.worlds.grid.view import Sight, look, tell, tell_fully

__all__ = ["CHECK", "REFUSALS", "Outcome", "Scene", "Turn", "act", "refusal", "turn_of", "understand"]


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """What all episodes of one task share.

    Args:
        board, mission: where, and what is to be done.
        moves: how many moves (MiniGrid's steps) an episode may take.
        tries: how many actions it may take (0: any number).
        plain: short texts and names of actions; else AgentGym's.
    """

    board: Board
    mission: Mission
    moves: int
    tries: int = 0
    plain: bool = True


CHECK = "check available actions"
"""AgentGym's action that lists the others; with its texts alone."""


class Outcome(NamedTuple):
    """What an action leads to: the pose and progress after it, the moves it took, and whether the mission is fulfilled
    (True), failed (False) or neither (None)."""

    pose: Pose
    progress: Progress
    used: int
    verdict: bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A moment: what is seen, told and possible."""

    pose: Pose
    sight: Sight
    text: str
    actions: Mapping[str, Macro]
    admissible: tuple[str, ...]
    outcomes: dict[tuple[str, Progress], Outcome] = field(default_factory=dict)


@lru_cache(maxsize=1 << 13)
def turn_of(scene: Scene, pose: Pose) -> Turn:
    """What is seen, told and possible in a pose."""
    sight = look(scene.board, pose)
    found = actions(scene.board, pose, sight, plain=scene.plain)
    if scene.plain:
        return Turn(pose, sight, tell(scene.board, pose, sight), found, tuple(found))
    names = (*found, CHECK)
    listed = ", ".join(f'"{name}"' for name in names)
    return Turn(pose, sight, f"{tell_fully(scene.board, pose, sight)}\nAvailable actions: [{listed}]", found, names)


def act(scene: Scene, turn: Turn, action: str, *, progress: Progress, limit: int | None = None) -> Outcome:
    """What a possible action leads to. The moves of a macro end early where the mission ends, or at a limit."""
    known = turn.outcomes.get((action, progress)) if limit is None else None
    if known is not None:
        return known
    board, pose, now, used = scene.board, turn.pose, progress, 0
    verdict: bool | None = None
    for move in moves_of(turn.actions[action], turn.sight)[:limit]:
        after = moved(board, pose, move)
        if after is None:
            break
        used += 1
        now, verdict = judge(board, scene.mission, now, before=pose, move=move, after=after)
        pose = after
        if verdict is not None:
            break
    outcome = Outcome(pose, now, used, verdict)
    if limit is None:
        turn.outcomes[action, progress] = outcome
    return outcome


_SPELLINGS = ((re.compile(r"\bpickup\b"), "pick up"), (re.compile(r"\b(?:the|a) "), ""))
_UNKNOWN = "expected an action such as turn left or go to red ball 1"
_HANDS, _EMPTY, _WAY = "you hold something already", "you hold nothing", "there is no way"
_HERE, _UNSEEN, _LOCKED = "that cannot be done here", "you see no such thing", "the door is locked"
REFUSALS: tuple[str, ...] = (_UNKNOWN, _HANDS, _EMPTY, _WAY, _HERE, _UNSEEN, _LOCKED)
"""What is answered to texts that are no action now."""


def understand(turn: Turn, text: str) -> str | None:
    """The possible action that a text means: letters of any case, `pickup` or `pick up`, a thing without its number
    (the nearest), a door with its state or without. None where it is none."""
    asked = " ".join(text.lower().split())
    if asked in turn.actions:
        return asked
    asked = _usual(asked)
    meant = {asked, f"{asked} 1"}
    for seen in turn.sight.things:
        names = (f" {seen.name} {seen.nth}", f" {seen.full} {seen.nth_full}")
        meant |= {
            verb + name
            for one in tuple(meant)
            for other in names
            if (verb := one.removesuffix(other)) != one
            for name in names
        }
    return next((action for action in turn.actions if _usual(action) in meant), None)


def _usual(text: str) -> str:
    for spelling, usual in _SPELLINGS:
        text = spelling.sub(usual, text)
    return text


def refusal(turn: Turn, text: str) -> str:
    """Why a text is no action now, in a few words."""
    asked = _usual(" ".join(text.lower().split()))
    verb = next((verb for verb in _VERBS if asked == verb or asked.startswith(f"{verb} ")), None)
    if verb is None:
        return _UNKNOWN
    rest = asked[len(verb) :].strip()
    if verb == "pick up" and turn.pose.hold:
        return _HANDS
    if verb in ("drop", "drop next to") and not turn.pose.hold:
        return _EMPTY
    if not rest:
        return _WAY if verb == "move forward" else _HERE
    named = [seen for seen in turn.sight.things if seen.name in rest or seen.full in rest]
    if not named:
        return _UNSEEN
    if verb == "toggle and go through" and all(seen.thing and seen.thing.state == LOCKED for seen in named):
        return _LOCKED
    return _WAY if verb in ("go to", "pick up", "drop next to") else _HERE


_VERBS = (
    "turn left",
    "turn right",
    "move forward",
    "pick up",
    "drop next to",
    "drop",
    "toggle and go through",
    "toggle",
    "go through",
    "go to",
)
