"""`evolvent data` as a user meets it: files in, files and cards out, bad rows told, mistakes in one sentence."""

import gzip
import json

import datasets
import pytest

from evolvent.cli.main import main
from evolvent.curate.irrelevance import row_to_sample

TOOLS = [
    {
        "name": "get_weather",
        "description": "the weather of a city",
        "parameters": {"city": {"type": "str", "description": "which city"}},
    },
    {
        "name": "send_mail",
        "description": "send a letter to someone",
        "parameters": {"to": {"type": "str", "description": "who gets it"}},
    },
]


def sample(number, city):
    answers = [{"name": "get_weather", "arguments": {"city": city}}]
    return {
        "id": number,
        "query": f"How is the weather in {city}?",
        "tools": json.dumps(TOOLS),
        "answers": json.dumps(answers),
    }


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rows.jsonl"
    found = [sample(number, city) for number, city in enumerate(("Paris", "Rome", "Oslo", "Bern"))]
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_a_set_holds(rows, tmp_path, capsys):
    rows.write_text(rows.read_text() + rows.read_text().splitlines()[0] + "\n[]\n")
    assert main(["data", "stats", str(rows)]) == 1
    said = capsys.readouterr().out
    assert "exact doubles" in said and "█" in said and "rows.jsonl, row 5" in said and "rows left out: 1" in said
    assert main(["data", "stats", str(rows), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["doubles"], found["calls"], found["tools"]) == (5, 1, {"1": 5}, 2)
    code = tmp_path / "code.jsonl"
    code.write_text(json.dumps({"source": "x = 1 # one\n", "path": "a.py"}) + "\n")
    assert main(["data", "stats", str(code), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["languages"] == {"python": [1, 5, 0, 12]}


def test_masked_rows_can_be_taken_back(rows, tmp_path, capsys):
    to = tmp_path / "masked.jsonl"
    words = ["data", "mask", str(rows), "--ratio", "1", "--style", "snake", "--licence", "MIT"]
    assert main([*words, "--to", str(to)]) == 0
    for before, row in zip(read(rows), read(to), strict=True):
        names = json.loads(row["names"])
        masked, old = row_to_sample(row), row_to_sample(before)
        assert masked.calls[0].name == names["get_weather"] != "get_weather"
        assert list(masked.calls[0].arguments.values()) == list(old.calls[0].arguments.values())
        assert "get_weather" not in row["tools"]
    card = (tmp_path / "masked.card.md").read_text()
    assert 'license: "MIT"' in card and '"style":"snake"' in card and "| rows | 4 |" in card
    capsys.readouterr()
    assert main([*words, "--to", str(tmp_path / "again.parquet"), "--workers", "2"]) == 0
    assert "1 of 1 shards were there already" in capsys.readouterr().out
    assert main([*words, "--epoch", "1", "--to", str(tmp_path / "other.jsonl")]) == 0
    assert read(tmp_path / "other.jsonl") != read(to)


def test_irrelevant_requests_are_a_data_set(rows, tmp_path, capsys):
    to = tmp_path / "irrelevant"
    assert main(["data", "irrelevance", str(rows), "--share", "0.5", "--licence", "Apache-2.0", "--to", str(to)]) == 0
    assert "8 samples" in capsys.readouterr().out
    made = datasets.load_dataset(str(to), split="train")
    assert len(made) == 8 and sum(row["answers"] == "[]" for row in made) == 4
    assert main(["data", "irrelevance", str(rows), "--only", "--share", "0.5", "--to", str(tmp_path / "only")]) == 0
    assert all(row["answers"] == "[]" for row in read(tmp_path / "only" / "data" / "train.jsonl"))


def test_conversions_keep_the_rows(rows, tmp_path, capsys):
    parquet, back = tmp_path / "a.parquet", tmp_path / "b.jsonl"
    assert main(["data", "convert", str(rows), "--to", str(parquet)]) == 0
    assert main(["data", "convert", str(parquet), "--to", str(back)]) == 0
    assert read(back) == read(rows)
    hammer = tmp_path / "hammer.json"
    hammer.write_text(json.dumps([*read(rows)[:2], {"query": "no tools"}]))
    assert main(["data", "convert", str(hammer), "--layout", "hammer", "--to", str(back)]) == 1
    assert [row["id"] for row in read(back)] == ["hammer/0", "hammer/1"]
    assert "hammer.json, row 2" in capsys.readouterr().out


def test_near_doubles_are_dropped_and_named(tmp_path, capsys):
    text = "the quick brown fox jumps over the lazy dog and runs far away into the deep dark wood at night"
    path, to = tmp_path / "texts.jsonl", tmp_path / "kept.jsonl"
    texts = [text, text.replace("dark", "black"), "something else entirely, and short", text]
    path.write_text("".join(json.dumps({"n": n, "text": one}) + "\n" for n, one in enumerate(texts)))
    words = ["data", "dedup", str(path), "--field", "text", "--threshold", "0.5", "--to", str(to)]
    assert main(words) == 0
    assert [row["n"] for row in read(to)] == [0, 2]
    assert [(row["row"], row["of"]) for row in read(tmp_path / "kept.dropped.jsonl")] == [(1, 0), (3, 0)]
    assert "2 of 4 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["maks"], "did you mean 'mask'?"),
        (["mask", "rows.jsonl"], "--to"),
        (["mask", "rows.jsonl", "--to", "a.jsonl", "--ratio", "2"], "expected a number from 0 to 1"),
        (["mask", "nowhere", "--to", "a.jsonl"], "does not hold data"),
        (["convert", "rows.jsonl", "--to", "a.csv"], "ends in .jsonl or .parquet"),
        (["convert", "rows.jsonl", "--layout", "seal-tools", "--to", "a.jsonl"], "set --tools FILE"),
        (["convert", "rows.jsonl", "--layout", "nexus-raven", "--tools", "t.json", "--to", "a.jsonl"], "CC-BY-NC-4.0"),
        (["irrelevance", "rows.jsonl", "--share", "1", "--to", "a"], "below 1"),
        (["dedup", "rows.jsonl", "--threshold", "7", "--to", "a.jsonl"], "expected above 0 and at most 1"),
        (["dedup", "rows.jsonl", "--to", "rows.jsonl"], "rows.jsonl is the data"),
        (["mask", ".", "--to", "a.jsonl"], "lies in its folder"),
        (["convert", "rows.jsonl", "--to", "./rows.jsonl"], "rows.jsonl is the data"),
        (["irrelevance", ".", "--to", "a"], "lies in its folder"),
    ],
)
def test_mistakes_are_told(rows, tmp_path, capsys, words, said):
    assert main(["data", *words]) in (1, 2)
    assert said in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


SHARE = [
    {
        "id": "a",
        "system": "Be brief.",
        "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}],
    },
    {"id": "b", "conversations": [{"from": "robot", "value": "Hi"}]},
    {"prompt": "1 + 1?", "chosen": "2", "rejected": "3"},
    {"title": "x"},
]


def test_forms_are_told_and_written_as_messages(tmp_path, capsys):
    source, to = tmp_path / "share.json", tmp_path / "out.jsonl"
    source.write_text(json.dumps(SHARE))
    line = "conversations (ShareGPT), 2 rows; preferences, 1 row; an unknown form, 1 row"
    assert main(["data", "stats", str(source)]) == 0
    assert capsys.readouterr().out.startswith(line)
    assert main(["data", "stats", str(source), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["forms"] == {"sharegpt": 2, "preferences": 1, "unknown": 1}
    assert main(["data", "convert", str(source), "--layout", "messages", "--to", str(to)]) == 1
    said = capsys.readouterr().out
    assert line in said and "share.json, row 1: the speaker of turn 0 is unknown" in said
    assert "share.json, row 3: unknown row format" in said and "rows left out: 2" in said
    system, user, reply = ({"role": role, "content": text} for role, text in TURNS)
    assert read(to) == [
        {"id": "a", "messages": [system, user, reply]},
        {
            "prompt": [{"role": "user", "content": "1 + 1?"}],
            "chosen": [{"role": "assistant", "content": "2"}],
            "rejected": [{"role": "assistant", "content": "3"}],
        },
    ]


TURNS = (("system", "Be brief."), ("user", "Hi"), ("assistant", "Ho"))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl.gz", "a.csv.gz"])
def test_tables_and_packed_files_are_data(tmp_path, capsys, name):
    rows = [{"prompt": "a, b", "completion": "c"}, {"prompt": "d", "completion": "e"}]
    mark = "\t" if ".tsv" in name else ","
    cells = "".join(f'"{row["prompt"]}"{mark}{row["completion"]}\n' for row in rows)
    text = "".join(json.dumps(row) + "\n" for row in rows) if "json" in name else f"prompt{mark}completion\n{cells}"
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert main(["data", "convert", str(tmp_path / name), "--to", str(tmp_path / "out.jsonl")]) == 0
    assert "prompts with completions, 2 rows" in capsys.readouterr().out
    assert read(tmp_path / "out.jsonl") == rows


def test_calls_as_lists_without_ids_are_masked(tmp_path, capsys):
    tools = [{"name": "rain", "description": "d", "parameters": {"place": {"type": "str", "description": "p"}}}]
    row = {"query": "Rain in Oslo?", "tools": tools, "answers": [{"name": "rain", "arguments": {"place": "Oslo"}}]}
    path = tmp_path / "calls.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, "answers": "none"}) + "\n")
    assert (
        main(
            [
                "data",
                "mask",
                str(path),
                "--ratio",
                "1",
                "--to",
                str(tmp_path / "m.jsonl"),
                "--cache",
                str(tmp_path / "c"),
            ]
        )
        == 1
    )
    assert "has no list in answers" in capsys.readouterr().out
    (masked,) = read(tmp_path / "m.jsonl")
    assert "rain" not in masked["tools"] and row_to_sample(masked).calls[0].arguments != {}


def test_a_set_without_rows_is_told(tmp_path, capsys):
    (tmp_path / "empty.jsonl").write_text("\n")
    for words in ((), ("--json",)):
        assert main(["data", "stats", str(tmp_path / "empty.jsonl"), *words]) == 2
        assert "empty.jsonl has no rows" in capsys.readouterr().err


def test_function_calls_of_an_arrow_table_are_those_of_json_lines(tmp_path, capsys):
    """Tools and arguments of other rows fill the columns of a table with null."""
    rows = [
        {
            "query": query,
            "tools": [{"name": name, "description": "d", "parameters": {key: {"type": "string", "description": "p"}}}],
            "answers": [{"name": name, "arguments": {key: "x"}}],
        }
        for query, name, key in (("rain?", "rain", "place"), ("late?", "time", "zone"))
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "rows.parquet")
    converted = []
    for name in ("rows.jsonl", "rows.parquet"):
        target = tmp_path / f"{name}.jsonl"
        words = ["--ratio", "0", "--to", str(target), "--cache", str(tmp_path / "cache")]
        assert main(["data", "mask", str(tmp_path / name), *words]) == 0, capsys.readouterr()
        converted.append([row_to_sample(row) for row in read(target)])
    assert [sample.calls for sample in converted[0]] == [sample.calls for sample in converted[1]]
    assert [sample.tools for sample in converted[0]] == [sample.tools for sample in converted[1]]
    assert [dict(sample.calls[0].arguments) for sample in converted[1]] == [{"place": "x"}, {"zone": "x"}]
