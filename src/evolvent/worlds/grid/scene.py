"""A task of the grid world, prepared: its board, its mission, and the text and actions of each pose.

The world is deterministic and a macro depends on the current view alone. So the text and actions of a pose, and
the outcome of an action, are computed once and cached; the number of cached poses is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from evolvent.worlds.grid.map import LOCKED, Board, Pose, apply_move
from evolvent.worlds.grid.mission import Mission, Progress, update_progress
from evolvent.worlds.grid.plan import Macro, expand_macro, list_actions
from evolvent.worlds.grid.view import Sight, describe, describe_fully, observe

__all__ = [
    "CHECK",
    "REFUSALS",
    "Outcome",
    "Scene",
    "Turn",
    "apply_action",
    "build_turn",
    "explain_refusal",
    "parse_action",
]


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """Data that all episodes of one task share.

    Args:
        board, mission: the map and the mission.
        max_moves: maximum number of moves (MiniGrid's steps) of an episode.
        max_actions: maximum number of actions (0: unlimited).
        short_text: short texts and names of actions; else AgentGym's.
    """

    board: Board
    mission: Mission
    max_moves: int
    max_actions: int = 0
    short_text: bool = True


CHECK = "check available actions"
"""AgentGym's action that lists the others; with its texts alone."""


class Outcome(NamedTuple):
    """The outcome of an action: the pose and progress after it, the number of moves, and whether the mission is
    fulfilled (True), failed (False) or neither (None).
    """

    pose: Pose
    progress: Progress
    num_moves: int
    is_fulfilled: bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """The view, text and possible actions of a pose."""

    pose: Pose
    sight: Sight
    text: str
    actions: Mapping[str, Macro]
    admissible: tuple[str, ...]
    outcomes: dict[tuple[str, Progress], Outcome] = field(default_factory=dict)


@lru_cache(maxsize=1 << 13)
def build_turn(scene: Scene, pose: Pose) -> Turn:
    """Builds the view, text and possible actions of a pose."""
    sight = observe(scene.board, pose)
    macros = list_actions(scene.board, pose, sight, short_text=scene.short_text)
    if scene.short_text:
        return Turn(pose, sight, describe(scene.board, pose, sight), macros, tuple(macros))
    names = (*macros, CHECK)
    action_list = ", ".join(f'"{name}"' for name in names)
    return Turn(
        pose, sight, f"{describe_fully(scene.board, pose, sight)}\nAvailable actions: [{action_list}]", macros, names
    )


def apply_action(scene: Scene, turn: Turn, action: str, *, progress: Progress, limit: int | None = None) -> Outcome:
    """Applies a possible action. The moves of a macro end early where the mission ends, or at a limit."""
    cached_outcome = turn.outcomes.get((action, progress)) if limit is None else None
    if cached_outcome is not None:
        return cached_outcome
    board, pose, next_progress, num_moves = scene.board, turn.pose, progress, 0
    is_fulfilled: bool | None = None
    for move in expand_macro(turn.actions[action], turn.sight)[:limit]:
        after = apply_move(board, pose, move)
        if after is None:
            break
        num_moves += 1
        next_progress, is_fulfilled = update_progress(
            board, scene.mission, next_progress, before=pose, move=move, after=after
        )
        pose = after
        if is_fulfilled is not None:
            break
    outcome = Outcome(pose, next_progress, num_moves, is_fulfilled)
    if limit is None:
        turn.outcomes[action, progress] = outcome
    return outcome


_SPELLINGS = ((re.compile(r"\bpickup\b"), "pick up"), (re.compile(r"\b(?:the|a) "), ""))
_UNKNOWN = "expected an action such as turn left or go to red ball 1"
_HANDS_FULL, _HANDS_EMPTY, _NO_WAY = "you hold something already", "you hold nothing", "there is no way"
_NOT_HERE, _NOT_VISIBLE, _DOOR_LOCKED = "that cannot be done here", "you see no such thing", "the door is locked"
REFUSALS: tuple[str, ...] = (_UNKNOWN, _HANDS_FULL, _HANDS_EMPTY, _NO_WAY, _NOT_HERE, _NOT_VISIBLE, _DOOR_LOCKED)
"""What is answered to texts that are no action now."""


def parse_action(turn: Turn, text: str) -> str | None:
    """Parses a text as a possible action, or returns None.

    Accepts letters of any case, `pickup` or `pick up`, an object without its number (the nearest), a door with its
    state or without.
    """
    normalized_text = " ".join(text.lower().split())
    if normalized_text in turn.actions:
        return normalized_text
    normalized_text = _normalize_spelling(normalized_text)
    candidates = {normalized_text, f"{normalized_text} 1"}
    for visible in turn.sight.objects:
        names = (f" {visible.name} {visible.rank}", f" {visible.full_name} {visible.full_rank}")
        candidates |= {
            verb + name
            for candidate in tuple(candidates)
            for object_name in names
            if (verb := candidate.removesuffix(object_name)) != candidate
            for name in names
        }
    return next((action for action in turn.actions if _normalize_spelling(action) in candidates), None)


def _normalize_spelling(text: str) -> str:
    for spelling, replacement in _SPELLINGS:
        text = spelling.sub(replacement, text)
    return text


def explain_refusal(turn: Turn, text: str) -> str:
    """Explains in a few words why a text is not a possible action."""
    normalized_text = _normalize_spelling(" ".join(text.lower().split()))
    verb = next((verb for verb in _VERBS if normalized_text == verb or normalized_text.startswith(f"{verb} ")), None)
    if verb is None:
        return _UNKNOWN
    object_text = normalized_text[len(verb) :].strip()
    if verb == "pick up" and turn.pose.held_code:
        return _HANDS_FULL
    if verb in ("drop", "drop next to") and not turn.pose.held_code:
        return _HANDS_EMPTY
    if not object_text:
        return _NO_WAY if verb == "move forward" else _NOT_HERE
    named_objects = [
        visible for visible in turn.sight.objects if visible.name in object_text or visible.full_name in object_text
    ]
    if not named_objects:
        return _NOT_VISIBLE
    if verb == "toggle and go through" and all(
        visible.grid_object and visible.grid_object.state == LOCKED for visible in named_objects
    ):
        return _DOOR_LOCKED
    return _NO_WAY if verb in ("go to", "pick up", "drop next to") else _NOT_HERE


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
