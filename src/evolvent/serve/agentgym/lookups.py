"""What AgentGym's servers tell of a session besides reset and step: the GET routes of each dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from evolvent.serve.agentgym.dialects import Dialect
from evolvent.serve.agentgym.replies import Play, reset_body
from evolvent.serve.agentgym.text import Voice, admissible, goal_of, recipes_of
from evolvent.serve.wire import plain
from evolvent.trajectory import Json

__all__ = ["Lookup", "lookups_of"]

Lookup = Callable[[Play], Json]


def _clicks(play: Play) -> Json:
    actions = admissible(play.info)
    clickables: list[Json] = [action[6:-1] for action in actions if action.startswith("click[") and action[-1] == "]"]
    return {"has_search_bar": any(action.startswith("search[") for action in actions), "clickables": clickables}


def _instruction(play: Play) -> str:
    """WebShop's instruction: told by the world, else the part of the first page after `Instruction:`."""
    told = play.info.get("instruction_text")
    if isinstance(told, str):
        return told
    parts = [part.strip() for part in play.first.split("[SEP]")]
    if "Instruction:" in parts[:-1]:
        return parts[parts.index("Instruction:") + 1]
    return parts[0]


def _page(play: Play) -> Json:
    parts = {key: str(play.info.get(key, "")) for key in ("url", "html")}
    return {**parts, "instruction_text": _instruction(play)}


def _told(key: str) -> Lookup:
    """What the world's info holds under this name, in an object of one key; empty text where it holds nothing."""
    return lambda play: {key: plain(play.info.get(key, ""))}


def _hints(play: Play) -> Json:
    objects = plain(play.info.get("objects", []))
    return {"possible_actions": plain(admissible(play.info)), "possible_objects": objects}


def _state(play: Play) -> Json:
    done = play.over is not None
    return {"observation": play.text, "reward": play.reward, "score": play.total, "deleted": False, "done": done}


def _described(dialect: Dialect) -> Lookup:
    def task(play: Play) -> Json:
        body = reset_body(dialect, play)
        return {"task_description": body["task_description"] if isinstance(body, dict) else ""}

    return task


def _own(dialect: Dialect) -> Mapping[str, Lookup]:
    actions: Lookup = lambda play: plain(admissible(play.info))  # noqa: E731
    tables: Mapping[str, Mapping[str, Lookup]] = {
        "textcraft": {"commands": lambda play: recipes_of(play.first), "goal": lambda play: goal_of(play.first)},
        "babyai": {"observation": _state},
        "sciworld": {
            "action_hint": _hints,
            "goals": _told("goals"),
            "task_description": _described(dialect),
            "object_tree": _told("object_tree"),
            "state": _state,
        },
        "alfworld": {"available_actions": actions},
        "maze": {"available_actions": actions},
        "wordle": {"filtered_vocab": lambda play: [word.replace(" ", "") for word in admissible(play.info)]},
        "webshop": {"available_actions": _clicks, "instruction_text": _instruction, "state": _page},
        "webarena": {"observation_metadata": lambda play: plain(play.info.get("observation_metadata", {}))},
    }
    return tables.get(dialect.name, {})


def lookups_of(dialect: Dialect, voice: Voice) -> Mapping[str, Lookup]:
    """Path -> what a GET of it answers for a session."""
    common: dict[str, Lookup] = {"observation": lambda play: voice.seen(play.text)}
    if dialect.shape == "object":
        common["detail"] = _state
    return {**common, **_own(dialect)}
