"""A small data set in the layout of BFCL v4, made for the tests: a few items of some categories and all documents."""

from __future__ import annotations

import json
from pathlib import Path

from evolvent.worlds.bfcl.apis import APIS

CATEGORIES = (
    "simple_python",
    "parallel",
    "live_simple",
    "irrelevance",
    "live_relevance",
    "multi_turn_base",
    "multi_turn_miss_func",
    "multi_turn_miss_param",
    "multi_turn_long_context",
)
PAD = "These words stand behind every file. " * 40
EXTRA = ("image_1.jpg", "image_2.jpg")


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def function(name: str, **parameters: str) -> dict:
    properties = {one: {"type": kind, "description": one} for one, kind in parameters.items()}
    schema = {"type": "dict", "properties": properties, "required": list(parameters)}
    return {"name": name, "description": f"Does {name}.", "parameters": schema}


ROOM = {
    "root": {
        "home": {
            "type": "directory",
            "contents": {
                "notes": {"type": "directory", "contents": {"a.txt": {"type": "file", "content": "beta\nalpha"}}},
                "b.txt": {"type": "file", "content": "one line"},
            },
        }
    }
}
CARD = {"balance": 1000.0, "card_number": "4000", "cardholder_name": "Ann Lee", "expiration_date": "01/30"}
TRIP = {
    "credit_card_list": {"card": CARD},
    "access_token": "tok",
    "token_expires_in": 100,
    "token_type": "Bearer",
    "token_scope": "read_write",
    "user_first_name": "Ann",
    "user_last_name": "Lee",
    "budget_limit": None,
    "booking_record": {},
}

WRITE = ["touch(file_name='c.txt')", "echo(content='alpha,beta', file_name='c.txt')", "rm(file_name='a.txt')"]
COPY = ["cd(folder='notes')", "sort('a.txt')"]
TURNS = {
    "0": (
        {"GorillaFileSystem": ROOM},
        ["GorillaFileSystem", "MathAPI"],
        [user("Sort a.txt in notes."), user("Write its lines into c.txt instead."), user("How many bytes?")],
        [COPY, WRITE, ["du()"]],
    ),
    "1": (
        {"TravelAPI": TRIP},
        ["TravelAPI"],
        [user("Book economy from SFO to LAX for 2026-01-01 on my card."), user("Cancel it again.")],
        [
            [
                "book_flight(access_token='tok', card_id='card', travel_date='2026-01-01', travel_from='SFO', "
                "travel_to='LAX', travel_class='economy')"
            ],
            ["cancel_booking(access_token='tok', booking_id='{booked}')"],
        ],
    ),
    "2": (
        {"VehicleControlAPI": {"fuelLevel": 5.0}, "TwitterAPI": {"authenticated": True}},
        ["VehicleControlAPI", "TwitterAPI"],
        [user("Fill in 10 gallons."), user("Post the level.")],
        [["fillFuelTank(10.0)"], ["post_tweet(content='15.0', tags=['#fuel'])"]],
    ),
}
BOOKED = "3426812"  # the first number of seven digits of the data set's seed


def items(category: str) -> tuple[list[dict], list[dict]]:
    """The rows and answers of a multi-turn category."""
    rows, answers = [], []
    for number, (config, classes, turns, gold) in TURNS.items():
        name = f"multi_turn_{category}_{number}"
        row = {"id": name, "question": list(turns), "initial_config": config, "involved_classes": classes, "path": []}
        calls = [[text.replace("{booked}", BOOKED) for text in turn] for turn in gold]
        if number == "0" and category == "miss_func":
            row |= {"missed_function": {"2": ["touch"]}, "excluded_function": ["rm"]}
            row["question"] = [turns[0], turns[1], [], turns[2]]
            calls = [calls[0], [], *calls[1:]]
        if number == "2" and category == "miss_param":
            row["question"] = [user("Fill the tank."), *turns]
            calls = [[], *calls]
        if number == "0" and category == "long_context":
            longer = f"echo(content={'alpha,beta' + PAD.strip()!r}, file_name='c.txt')"
            calls[1] = [WRITE[0], longer, WRITE[2], *(f"rm(file_name='{one}')" for one in EXTRA)]
        rows.append(row)
        answers.append({"id": name, "ground_truth": calls})
    return rows, answers


def one_turn() -> dict[str, tuple[list[dict], list[dict]]]:
    weather, pay = function("get_weather", city="string"), function("pay", amount="integer", to="string")
    ask = [user("How is the weather in Oslo?")]
    sunny = {"get_weather": {"city": ["Oslo", "Oslo, Norway"]}}
    both = [sunny, {"pay": {"amount": [5], "to": ["Ann"]}}]
    return {
        "simple_python": (
            [{"id": "simple_python_0", "question": ask, "function": [weather]}],
            [{"id": "simple_python_0", "ground_truth": [sunny]}],
        ),
        "parallel": (
            [{"id": "parallel_0", "question": [user("Weather in Oslo, and pay Ann 5.")], "function": [weather, pay]}],
            [{"id": "parallel_0", "ground_truth": both}],
        ),
        "live_simple": (
            [
                {
                    "id": "live_simple_0-0-0",
                    "question": [[{"role": "system", "content": "Be brief."}, *ask[0]]],
                    "function": [weather],
                }
            ],
            [{"id": "live_simple_0-0-0", "ground_truth": [sunny]}],
        ),
        "irrelevance": ([{"id": "irrelevance_0", "question": [user("Tell a joke.")], "function": [pay]}], []),
        "live_relevance": ([{"id": "live_relevance_0-0-0", "question": ask, "function": [weather]}], []),
    }


def documents(folder: Path) -> None:
    """The function documents, with any type for every parameter."""
    for kind in APIS.values():
        rows = [
            {
                "name": one.name,
                "description": f"Does {one.name}.",
                "parameters": {
                    "type": "dict",
                    "properties": {name: {"type": "any"} for name in one.parameters},
                    "required": list(one.required),
                },
            }
            for one in kind.operations.values()
        ]
        write(folder / "multi_turn_func_doc" / kind.document, rows)


def write(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def build(folder: Path) -> Path:
    """Write the data set into a folder, and return it."""
    made = one_turn()
    made |= {f"multi_turn_{one}": items(one) for one in ("base", "miss_func", "miss_param", "long_context")}
    for category in CATEGORIES:
        rows, answers = made[category]
        write(folder / f"BFCL_v4_{category}.json", rows)
        if answers:
            write(folder / "possible_answer" / f"BFCL_v4_{category}.json", answers)
    documents(folder)
    return folder
