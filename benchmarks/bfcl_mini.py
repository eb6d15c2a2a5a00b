"""A miniature in the layout of BFCL's files, made here: what the benchmark runs on without data, and what tests read.

Every rule of the verdict has an item: values that may be left out, floats given as whole numbers, tuples, dicts and
lists of dicts, variables, nested types, calls in any order, Java's and JavaScript's literals.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evolvent.files import write_atomic
from evolvent.worlds.bfcl.items import IRRELEVANCE, RELEVANCE

__all__ = ["MINIATURE", "write_mini"]

Row = tuple[str, list[dict[str, Any]], list[dict[str, Any]]]


def _tool(name: str, required: Sequence[str], **properties: Any) -> dict[str, Any]:
    schemas = {key: {"type": one} if isinstance(one, str) else one for key, one in properties.items()}
    parameters = {"type": "dict", "properties": schemas, "required": list(required)}
    return {"name": name, "description": f"Does {name}.", "parameters": parameters}


def _listed(kind: str, of: str) -> dict[str, Any]:
    return {"type": kind, "items": {"type": of}}


_WEATHER = _tool("weather.get", ["city"], city="string", days="integer", metric="boolean")
_MOVE = _tool("robot.move", ["x", "y"], x="float", y="float", speed="float")
_MEAN = _tool("stats.mean", ["values"], values=_listed("array", "float"), weights=_listed("array", "float"))
_SORT = _tool("names.sort", ["names"], names=_listed("array", "string"), reverse="boolean")
_SHIP = _tool("ship", ["address"], address={"type": "dict"}, parcels=_listed("array", "dict"))
_BOX = _tool("box", ["size"], size=_listed("tuple", "integer"), label="any")
_JAVA = _tool(
    "Store.put",
    ["key", "ids", "options"],
    key="String",
    ids=_listed("ArrayList", "long"),
    options="HashMap",
    wait="long",
    flags=_listed("Array", "boolean"),
    rate="double",
)
_SCRIPT = _tool(
    "drawChart",
    ["labels", "style"],
    labels=_listed("array", "String"),
    style="dict",
    size="float",
    big="Bigint",
    ready="Boolean",
    done="any",
)

MINIATURE: dict[str, tuple[Row, ...]] = {
    "simple_python": (
        (
            "Weather in Oslo for 3 days?",
            [_WEATHER],
            [{"weather.get": {"city": ["Oslo", "Oslo, Norway"], "days": [3], "metric": ["", True]}}],
        ),
        ("Move to 1, 2.5.", [_MOVE], [{"robot.move": {"x": [1], "y": [2.5], "speed": ["", 1.0]}}]),
        ("Mean of 1, 2 and 4?", [_MEAN], [{"stats.mean": {"values": [[1, 2, 4]], "weights": [""]}}]),
        ("Mean of my data.", [_MEAN], [{"stats.mean": {"values": ["data['x']"], "weights": [""]}}]),
        (
            "Send two parcels to Ada in Rome, express.",
            [_SHIP],
            [
                {
                    "ship": {
                        "address": [{"name": ["Ada"], "city": ["Rome", "Roma"], "express": [True, ""]}],
                        "parcels": [[{"kg": [1]}, {"kg": [2], "note": ["", "glass"]}]],
                    }
                }
            ],
        ),
        ("A box of 2 by 3.", [_BOX], [{"box": {"size": [[2, 3]], "label": ["", "A-1"]}}]),
    ),
    "multiple": (
        (
            "Sort Bob, Al backwards.",
            [_WEATHER, _SORT, _MOVE],
            [{"names.sort": {"names": [["Bob", "Al"]], "reverse": [True]}}],
        ),
        ("Is it hot in Rome?", [_SORT, _WEATHER], [{"weather.get": {"city": ["Rome"], "days": [""], "metric": [""]}}]),
    ),
    "parallel": (
        (
            "Weather in Oslo and in Oslo or Bergen.",
            [_WEATHER],
            [
                {"weather.get": {"city": ["Oslo", "Bergen"], "days": [""], "metric": [""]}},
                {"weather.get": {"city": ["Oslo"], "days": [""], "metric": [""]}},
            ],
        ),
        (
            "Move to 1, 1, then 2, 2, then 3, 3.",
            [_MOVE],
            [{"robot.move": {"x": [n], "y": [n], "speed": [""]}} for n in (1, 2, 3)],
        ),
    ),
    "parallel_multiple": (
        (
            "Sort Al, Bob; mean of 1, 2; weather in Rome.",
            [_MEAN, _WEATHER, _SORT],
            [
                {"names.sort": {"names": [["Al", "Bob"]], "reverse": ["", False]}},
                {"stats.mean": {"values": [[1.0, 2.0]], "weights": [""]}},
                {"weather.get": {"city": ["Rome"], "days": ["", 1], "metric": [""]}},
            ],
        ),
    ),
    "simple_java": (
        (
            "Put ids 1 and 2 under users, limit 5.",
            [_JAVA],
            [
                {
                    "Store.put": {
                        "key": ["users"],
                        "ids": [[1, 2]],
                        "options": [{"limit": [5], "mode": ["fast", ""]}],
                        "wait": ["", 30],
                        "flags": [[True, False]],
                        "rate": [0.5],
                    }
                }
            ],
        ),
        (
            "Put myIds under users.",
            [_JAVA],
            [
                {
                    "Store.put": {
                        "key": ["users"],
                        "ids": ["myIds"],
                        "options": ["myOptions"],
                        "wait": [10],
                        "flags": [""],
                        "rate": [""],
                    }
                }
            ],
        ),
    ),
    "simple_javascript": (
        (
            "Draw a and b in red.",
            [_SCRIPT],
            [
                {
                    "drawChart": {
                        "labels": [["a, b", "c"]],
                        "style": [{"colour": ["red"], "widths": [[1, 2]]}],
                        "size": [4.0],
                        "big": [12],
                        "ready": [True],
                        "done": ["onDone", ""],
                    }
                }
            ],
        ),
    ),
    "irrelevance": (("How tall is the Eiffel tower?", [_SORT, _MOVE], []), ("Sing.", [_WEATHER], [])),
    "live_relevance": (("Oslo in three days?", [_WEATHER, _SORT], []),),
}
"""Category -> (question, functions, ground truth)."""


def write_mini(folder: Path) -> Path:
    """Write the miniature into a folder, laid out as BFCL's; returns the folder."""
    for category, rows in MINIATURE.items():
        items, answers = [], []
        for place, (question, tools, truth) in enumerate(rows):
            name = f"{category}_{place}"
            items.append({"id": name, "question": [[{"role": "user", "content": question}]], "function": tools})
            answers.append({"id": name, "ground_truth": truth})
        write_atomic(folder / f"BFCL_v4_{category}.json", _lines(items))
        if category not in (*IRRELEVANCE, *RELEVANCE):
            write_atomic(folder / "possible_answer" / f"BFCL_v4_{category}.json", _lines(answers))
    return folder


def _lines(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
