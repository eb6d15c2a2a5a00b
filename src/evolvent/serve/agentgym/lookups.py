"""The GET routes of each AgentGym dialect: information about a session besides reset and step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from evolvent.serve.agentgym.dialects import EnvDialect
from evolvent.serve.agentgym.replies import Play, reset_body
from evolvent.serve.agentgym.text import TextTranslator, list_admissible, parse_goal, parse_recipes
from evolvent.serve.wire import to_json
from evolvent.trajectory import Json

__all__ = ["Lookup", "list_lookups"]

Lookup = Callable[[Play], Json]


def _get_clickables(play: Play) -> Json:
    actions = list_admissible(play.info)
    clickables: list[Json] = [action[6:-1] for action in actions if action.startswith("click[") and action[-1] == "]"]
    return {"has_search_bar": any(action.startswith("search[") for action in actions), "clickables": clickables}


def _get_instruction(play: Play) -> str:
    """Returns WebShop's instruction: from the world's info, else the part of the first page after `Instruction:`."""
    instruction = play.info.get("instruction_text")
    if isinstance(instruction, str):
        return instruction
    parts = [part.strip() for part in play.first.split("[SEP]")]
    if "Instruction:" in parts[:-1]:
        return parts[parts.index("Instruction:") + 1]
    return parts[0]


def _get_page(play: Play) -> Json:
    parts = {key: str(play.info.get(key, "")) for key in ("url", "html")}
    return {**parts, "instruction_text": _get_instruction(play)}


def _info_lookup(key: str) -> Lookup:
    """Returns a lookup of one field of the world's info, in an object of one key; empty text if the field is
    missing.
    """
    return lambda play: {key: to_json(play.info.get(key, ""))}


def _get_hints(play: Play) -> Json:
    objects = to_json(play.info.get("objects", []))
    return {"possible_actions": to_json(list_admissible(play.info)), "possible_objects": objects}


def _get_state(play: Play) -> Json:
    done = play.over is not None
    return {"observation": play.text, "reward": play.reward, "score": play.total, "deleted": False, "done": done}


def _description_lookup(dialect: EnvDialect) -> Lookup:
    def get_description(play: Play) -> Json:
        body = reset_body(dialect, play)
        return {"task_description": body["task_description"] if isinstance(body, dict) else ""}

    return get_description


def _dialect_lookups(dialect: EnvDialect) -> Mapping[str, Lookup]:
    actions: Lookup = lambda play: to_json(list_admissible(play.info))  # noqa: E731
    tables: Mapping[str, Mapping[str, Lookup]] = {
        "textcraft": {"commands": lambda play: parse_recipes(play.first), "goal": lambda play: parse_goal(play.first)},
        "babyai": {"observation": _get_state},
        "sciworld": {
            "action_hint": _get_hints,
            "goals": _info_lookup("goals"),
            "task_description": _description_lookup(dialect),
            "object_tree": _info_lookup("object_tree"),
            "state": _get_state,
        },
        "alfworld": {"available_actions": actions},
        "maze": {"available_actions": actions},
        "wordle": {"filtered_vocab": lambda play: [word.replace(" ", "") for word in list_admissible(play.info)]},
        "webshop": {"available_actions": _get_clickables, "instruction_text": _get_instruction, "state": _get_page},
        "webarena": {"observation_metadata": lambda play: to_json(play.info.get("observation_metadata", {}))},
    }
    return tables.get(dialect.name, {})


def list_lookups(dialect: EnvDialect, translator: TextTranslator) -> Mapping[str, Lookup]:
    """Returns path -> lookup, which answers a GET of that path for a session."""
    common: dict[str, Lookup] = {"observation": lambda play: translator.observation(play.text)}
    if dialect.shape == "object":
        common["detail"] = _get_state
    return {**common, **_dialect_lookups(dialect)}
