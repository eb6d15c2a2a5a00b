"""`evolvent train hammer | comments | p3`: on the small model from data to policy, going on after a stop, mistakes."""

import json
from itertools import pairwise

import pytest
from safetensors.numpy import load_file

from evolvent.cli.main import main
from evolvent.cli.train.data_sources import CallData, DemonstrationData
from evolvent.curate.irrelevance import sample_to_row
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.models.policy import load_policy, tiny_policy
from evolvent.scale.local_backend import LocalBackend
from tests.learn.byte_policy import byte_policy

THINGS, PLACES = ("rain", "mail", "song", "train"), ("oslo", "rome", "bern")
FEW = ["--train.batch_tokens", "256", "--train.epochs", "1", "--train.warmup_steps", "0", "--context", "256"]
OWN = {
    "hammer": ["--hammer.copies", "2", "--hammer.tokens", "150", "--max_tokens", "12"],
    "comments": ["--comments.pair_tokens", "60", "--comments.tokens", "60", "--max_tokens", "8"],
    "p3": ["--p3.rounds", "2", "--p3.count", "3", "--p3.within", "0.5", "--p3.tokens", "30"],
}


def tool(thing):
    schema = {
        "type": "object",
        "properties": {"place": {"type": "string", "description": "the place"}},
        "required": ["place"],
    }
    return Tool(f"get_{thing}", f"about the {thing}", schema)


def calls(place):
    return [
        sample_to_row(
            CallSample(
                f"{place}/{one}",
                (Message("user", f"the {one} of {place}"),),
                (tool(one), tool(other)),
                (Call(f"get_{one}", {"place": place}),),
            )
        )
        for one, other in pairwise(THINGS)
    ]


CODE = [
    {
        "source": f"def {deed}({thing}):\n    # {deed}s the {thing}\n    return {deed}_all({thing})\n",
        "language": "python",
    }
    for deed in ("count", "drop")
    for thing in ("rows", "cells")
]
TALKS = [{"prompt": f"say {a} and {b}", "completion": f"{a} {b}"} for a in THINGS for b in THINGS]
ROWS = {"hammer": [row for place in PLACES for row in calls(place)], "comments": CODE, "p3": TALKS}
TEST = {"hammer": calls("kiev"), "p3": TALKS[:3]}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, rows in ROWS.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, rows in TEST.items():
        (tmp_path / f"{name}.test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def train(name, *more):
    test = ["--test", f"{name}.test.jsonl"] if name in TEST else []
    return main(["train", name, f"{name}.jsonl", *test, *FEW, *OWN[name], *more])


def weights(folder):
    return {name: one.tobytes() for name, one in load_file(folder / "model" / "model.safetensors").items()}


@pytest.mark.parametrize(("name", "stop"), [("hammer", 1), ("comments", 2), ("p3", 2)])
def test_from_data_to_policy_and_on_after_a_stop(name, stop, place, monkeypatch, capsys):
    assert train(name, "--to", "whole") == 0
    said = capsys.readouterr().out
    assert load_policy(place / "whole" / "model").version > 0 and (place / "whole" / "report.html").is_file()
    if name in TEST:
        found = json.loads((place / "whole" / f"{name}.measured.json").read_text())
        assert found["before"].keys() == found["after"].keys() and "before, 95 %" in said
    else:
        assert "round 1: " in said and "of 4 sources learned" in said
    fit, fitted = LocalBackend.fit, []

    def until(self, *data, **more):
        fitted.append(1)
        if len(fitted) == stop:
            raise KeyboardInterrupt
        return fit(self, *data, **more)

    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "fit", until)
        assert train(name, "--to", "cut") == 130
    assert f"train {name} --resume cut" in capsys.readouterr().err and not (place / "cut" / "model").exists()
    assert main(["train", name, "--resume", "cut"]) == 0
    assert weights(place / "cut") == weights(place / "whole")
    assert json.loads((place / "cut" / "run.json").read_text())["state"] == "finished"


def test_a_trained_policy_goes_on_with_an_adapter(place, capsys):
    assert train("p3", "--to", "first") == 0
    assert (
        main(
            [
                "train",
                "p3",
                "p3.jsonl",
                "--policy",
                "first",
                "--adapter.kind",
                "lora",
                *FEW[:-2],
                "--p3.rounds",
                "1",
                "--p3.count",
                "2",
                "--p3.difficulty",
                "spans",
                "--to",
                "second",
            ]
        )
        == 0
    )
    assert load_policy(place / "second" / "model").version > load_policy(place / "first" / "model").version


def test_an_open_vocabulary_takes_any_names(place, capsys):
    byte_policy(context=2048).save(place / "bytes")
    assert (
        main(
            [
                "train",
                "hammer",
                "hammer.jsonl",
                "--policy",
                "bytes",
                "--hammer.style",
                "random",
                "--hammer.copies",
                "1",
                "--hammer.tokens",
                "60",
                "--train.batch_tokens",
                "2048",
                "--to",
                "run",
            ]
        )
        == 0
    )
    assert load_policy(place / "run" / "model").version == 1


def test_p3_takes_other_selectors(place, capsys):
    assert train("p3", "--by", "k_centre", "--p3.rounds", "1", "--to", "run") == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["p3", "nowhere.jsonl"], "nowhere.jsonl does not exist"),
        (["p3"], "data"),
        (["hammer", "p3.jsonl"], "does not hold a sample of function calls. The first refused row: p3.jsonl, row 0: "),
        (
            ["comments", "p3.jsonl"],
            "does not hold code in a known language. The first refused row: p3.jsonl, row 0: it has no code, or its "
            "language is unknown (code is text in a column source or code or content",
        ),
        (["hammer", "hammer.jsonl", "--hammer.style", "random"], "--hammer.style snake"),
        (["hammer", "hammer.jsonl", "--preset", "published"], "--hammer.style snake"),
        (["p3", "comments.jsonl"], "the data contain no demonstration"),
        (["p3", "p3.jsonl", "--p3.count", "0"], "p3.count"),
        (["p3", "p3.jsonl", "--context", "16", "--policy", "gone"], "unknown policy 'gone'"),
        (["p3", "p3.jsonl", "--policy", "gone"], "unknown policy 'gone'"),
        (["p3", "p3.jsonl", "--worlds", "nowhere"], "nowhere"),
        (["p3", "p3.jsonl", "--test", "gone"], "test: gone does not exist"),
        (["hamer", "hammer.jsonl"], "did you mean 'hammer'"),
    ],
)
def test_mistakes_are_told_in_a_sentence(place, capsys, words, said):
    assert main(["train", *words]) in (1, 2)
    shown = " ".join(capsys.readouterr().err.split())
    assert said in shown and "Traceback" not in shown


def test_figures_say_how_many_test_rows_they_leave_out():
    policy = tiny_policy(["say", "red", "blue"], context=32, seed=1)
    good, strange = ({"prompt": "say red", "completion": word} for word in ("blue", "purple"))
    found = DemonstrationData([], [good, strange, {"other": 1}]).measure(policy)
    assert found["test rows left out"] == 2 and "loss a token of 1 test rows, nats" in found
    assert DemonstrationData([], [strange]).measure(policy) == {"test rows left out": 1}
    assert "test rows left out" not in DemonstrationData([], [good]).measure(policy)
    asked = CallSample("a", (Message("user", "say purple"),), (), ())
    assert CallData([], [asked]).measure(policy) == {"test rows left out": 1}


def test_hammer_takes_rows_of_lists_without_ids(place, capsys):
    """The form that docs/data.md promises: `{query, tools, answers}`."""
    rows = [json.loads(line) for line in (place / "hammer.jsonl").read_text().splitlines()]
    plain = [
        {"query": row["query"], "tools": json.loads(row["tools"]), "answers": json.loads(row["answers"])}
        for row in rows
    ]
    (place / "hammer.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [{"query": "no"}, *plain]))
    assert train("hammer", "--to", "runs/plain") == 0
    said = capsys.readouterr().out
    assert "hammer.jsonl, row 0: the function-calling sample is missing tools and answers" in said
