from __future__ import annotations

import json

import pytest

from benchmarks.bfcl import answers, compare, figures, judge
from benchmarks.bfcl_answers import CHANGES
from benchmarks.bfcl_mini import MINIATURE, write_mini
from evolvent.errors import ConfigError, SampleInvalid
from evolvent.grade.calls import CallGrade, GoldCall
from evolvent.messages import Call
from evolvent.worlds.bfcl.items import BAD_ITEMS, CATEGORIES, CallItem, TurnsItem, judge_calls, read_item
from evolvent.worlds.bfcl.world import CLASS_FILES, count_problems, read_documents, read_items

TURNS = {
    "id": "multi_turn_miss_func_0",
    "question": [[{"role": "user", "content": "Make a."}], [], [{"role": "user", "content": "Now b."}]],
    "initial_config": {"MathAPI": {}},
    "involved_classes": ["MathAPI"],
    "path": ["MathAPI.add"],
    "missed_function": {"1": ["add"]},
    "excluded_function": ["mean"],
}
TURNS_ANSWER = {"id": TURNS["id"], "ground_truth": [[], ["add(a=1, b=2)"], ["add(a=2,b=2)", "add(a=3,b=2)"]]}


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )


def test_the_published_counts():
    assert len(CATEGORIES) == 17
    assert sum(CATEGORIES.values()) == 4441
    relevance = sum(count for name, count in CATEGORIES.items() if "relevance" in name)
    turns = sum(count for name, count in CATEGORIES.items() if name.startswith("multi_turn"))
    assert (relevance, turns, 4441 - relevance - turns) == (1140, 800, 2501)
    assert set(BAD_ITEMS) == {
        "live_simple_106-63-0",
        "live_simple_112-68-0",
        "live_multiple_862-181-3",
        "live_multiple_964-207-0",
    }


def test_the_miniature_is_read(tmp_path):
    items = read_items(write_mini(tmp_path), tuple(MINIATURE))
    assert not items.problems
    assert [item.category for item in items.calls] == [name for name, rows in MINIATURE.items() for _ in rows]
    first = items.calls[0]
    assert first.gold == (
        GoldCall("weather.get", {"city": ("Oslo", "Oslo, Norway"), "days": (3,), "metric": ("", True)}),
    )
    assert first.sample.request == "Weather in Oslo for 3 days?"
    assert first.sample.calls == (Call("weather.get", {"city": "Oslo", "days": 3, "metric": True}),)
    assert (first.language, first.form) == ("python", "python")
    assert {item.form for item in items.calls} == {"python", "java", "javascript"}
    counts = count_problems(items, ("multiple",))
    assert [str(one) for one in counts] == ["BFCL_v4_multiple.json: got 2 readable items (version 4 has 200)"]
    assert not count_problems(items, ())


def test_a_bad_line_is_told_and_the_others_go_on(tmp_path):
    write_mini(tmp_path)
    path, answered = tmp_path / "BFCL_v4_multiple.json", tmp_path / "possible_answer" / "BFCL_v4_multiple.json"
    good, other = path.read_text(encoding="utf-8").split("\n")[:2]
    item, answer = json.loads(good), json.loads(answered.read_text(encoding="utf-8").split("\n")[0])
    write(
        path,
        good,
        "{broken",
        "",
        "5",
        {"id": "alone"},
        good,
        {**item, "id": "no answer"},
        {**item, "id": "no tool", "function": []},
        {**item, "id": "two turns", "question": [[], []]},
        {**item, "id": "no text", "question": [[{"role": "user", "content": 5}]]},
        {**item, "id": "twice", "function": item["function"] * 2},
        {**item, "id": "no schema", "function": [{"name": "f"}]},
        other,
        '"' + "[" * 100_000,
    )
    rows = [{**answer, "id": name} for name in ("no tool", "two turns", "no text", "twice", "no schema")]
    write(answered, answer, *rows, "nonsense", {"id": "multiple_1", "ground_truth": [{"f": {"a": 1}}]})
    items = read_items(tmp_path, ("multiple",))
    assert [item.id for item in items.calls] == ["multiple_0"]
    assert [problem.where.split(", ")[-1] for problem in items.problems] == [
        "line 7",
        "line 2",
        "line 4",
        "line 5",
        "line 6",
        "line 7",
        "line 8",
        "line 9",
        "line 10",
        "line 11",
        "line 12",
        "line 13",
        "line 14",
    ]
    told = "\n".join(map(str, items.problems))
    for words in (
        "not valid JSON (",
        "the line has no id",
        "an id occurs twice",
        ": missing answer for this id",
        ": the answer has no calls or unknown tools",
        "has several turns",
        "not text",
        ": two functions have the same name",
        ": a function has no parameter schema",
        ": invalid expected call",
    ):
        assert words in told


def test_files_that_are_missing(tmp_path):
    with pytest.raises(ConfigError, match="BFCL_v4_multiple"):
        read_items(tmp_path, ("multiple",))
    with pytest.raises(ConfigError, match="did you mean 'multiple'"):
        read_items(tmp_path, ("multple",))
    (tmp_path / "BFCL_v4_irrelevance.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_items(tmp_path, ("irrelevance",))


def test_items_of_several_turns(tmp_path):
    write(tmp_path / "BFCL_v4_multi_turn_miss_func.json", TURNS, {**TURNS, "id": "b"})
    write(tmp_path / "possible_answer" / "BFCL_v4_multi_turn_miss_func.json", TURNS_ANSWER)
    items = read_items(tmp_path, ("multi_turn_miss_func",))
    (item,) = items.turns
    assert isinstance(item, TurnsItem)
    assert [len(turn) for turn in item.turns] == [1, 0, 1]
    assert item.missed_function == {1: ("add",)}
    assert item.ground_truth == ((), ("add(a=1, b=2)",), ("add(a=2,b=2)", "add(a=3,b=2)"))
    assert (item.excluded_function, item.involved_classes, item.path) == (("mean",), ("MathAPI",), ("MathAPI.add",))
    assert len(items.problems) == 1
    for broken in (
        {"missed_function": {"x": []}},
        {"missed_function": []},
        {"question": [[]]},
        {"involved_classes": 1},
    ):
        with pytest.raises(SampleInvalid):
            read_item({**TURNS, **broken}, TURNS_ANSWER, "multi_turn_miss_func")
    with pytest.raises(ConfigError):
        read_item(TURNS, TURNS_ANSWER, "many_turns")


def test_documents_of_the_classes(tmp_path):
    row = {"name": "add", "description": "Adds.", "parameters": {"type": "dict", "properties": {}}}
    for stem in CLASS_FILES.values():
        write(tmp_path / "multi_turn_func_doc" / f"{stem}.json", row)
    documents = read_documents(tmp_path)
    assert list(documents) == list(CLASS_FILES)
    assert documents["MathAPI"][0].name == "add"
    write(tmp_path / "multi_turn_func_doc" / "math_api.json", row, {"name": 5})
    with pytest.raises(ConfigError, match=r"math_api\.json, line 2"):
        read_documents(tmp_path)


def test_relevance():
    tool = read_item(
        {"id": "x", "question": [[]], "function": [{"name": "f", "parameters": {}}]}, None, "irrelevance"
    ).tools
    for category, called in (("irrelevance", False), ("live_irrelevance", False), ("live_relevance", True)):
        item = CallItem("x", category, (), tool)
        assert judge_calls(item, [Call("anything")]).valid is called
        assert judge_calls(item, []).valid is not called
        assert not judge_calls(item, None).valid, "a call that cannot be read is neither a call nor an abstention"


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    return write_mini(tmp_path_factory.mktemp("mini"))


def test_the_benchmark_on_the_miniature(mini):
    found = figures(mini, quick=False, peer=None)
    assert (
        found["gold_accepted"]
        == found["gold_total"]
        == sum(len(rows) for name, rows in MINIATURE.items() if "relevance" not in name)
    )
    assert found["corrupted_accepted"] == found["corrupted_unreadable"] == 0
    assert set(found["corrupted_kinds"]) == set(CHANGES)  # every kind of wrong answer occurs
    assert found["corrupted_total"] > 150
    assert (found["several_calls"], found["order_dependent"]) == (3, [])
    assert found["relevance_right"] == found["relevance_total"] == 3
    assert (found["data"], found["problems"]) == ("miniature", [])


def test_answers_are_the_same_every_time(mini):
    items = read_items(mini, tuple(MINIATURE)).calls
    judged = [item for item in items if item.gold]
    first, again = answers(judged), answers(judged[::-1])
    assert {one.text for one in first} == {one.text for one in again}
    assert all(judge(one).valid is (one.change in ("", "reversed")) for one in first)


def test_differences_to_the_peer_have_reasons(mini):
    items = read_items(mini, tuple(MINIATURE)).calls
    asked = answers([item for item in items if item.category in ("parallel", "simple_java")])
    ours = [judge(one) for one in asked]
    same = compare(asked, ours, [one.valid for one in ours])
    assert (same["verdicts"], same["differences"]) == (len(asked), 0)
    theirs = [
        "TypeError" if one.change == "other_type" else not own.valid if one.change == "reversed" else own.valid
        for one, own in zip(asked, ours, strict=True)
    ]
    told = compare(asked, ours, theirs)
    assert told["reasons"] == {"it takes the first expected call that fits, and then has none left for another call": 2}
    assert told["peer_crashes"]["TypeError"] > 0  # a crash refuses too, so it is no difference
    wrong = compare(asked[:1], [CallGrade(False)], [True])
    assert wrong["listed"][0]["why"] == "unexplained"
