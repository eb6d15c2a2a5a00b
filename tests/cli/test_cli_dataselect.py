"""`evolvent data select` as a user meets it: files and stores, who was left out, going on, mistakes."""

import hashlib
import json

import pytest

from evolvent.cli.main import main
from evolvent.models.policy import tiny_policy
from evolvent.store.store import Store
from evolvent.trajectory import Score, Step, Task, Trajectory

WORDS = ("red", "green", "blue", "grey", "say")


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rows.jsonl"
    made = [
        {"prompt": f"say {a} {b}", "completion": f"{a} {b}", "level": n}
        for n, (a, b) in enumerate((a, b) for a in WORDS[:4] for b in WORDS[:4])
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_policy(sorted(WORDS), context=32, seed=1).save(folder)
    return folder


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_are_chosen_and_told(rows, tmp_path, capsys):
    to = tmp_path / "few.jsonl"
    assert main(["data", "select", str(rows), "--k", "5", "--licence", "MIT", "--to", str(to)]) == 0
    assert "5 of 16 rows" in capsys.readouterr().out
    chosen, choice = read(to), read(tmp_path / "few.choice.jsonl")
    kept = [one["row"] for one in choice if one["chosen"] is not None]
    assert [row["level"] for row in chosen] == kept and len(choice) == 16
    card = (tmp_path / "few.card.md").read_text()
    assert 'license: "MIT"' in card and "5 of 16 rows chosen by dpp" in card and "left out: 11 not chosen" in card
    for name in ("few.jsonl", "few.choice.jsonl"):
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() in card
    assert main(["data", "select", str(rows), "--k", "5", "--to", str(tmp_path / "again.parquet")]) == 0
    assert "1 of 1 blocks were there already" in capsys.readouterr().out
    assert (
        main(
            ["data", "select", str(rows), "--share", "0.25", "--by", "top", "--quality", "field:level", "--to", str(to)]
        )
        == 0
    )
    assert [row["level"] for row in read(to)] == [12, 13, 14, 15]


def test_a_policy_chooses_and_goes_on(rows, model, tmp_path, capsys):
    words = [
        "data",
        "select",
        str(rows),
        "--policy",
        str(model),
        "--features",
        "policy",
        "--quality",
        "difficulty",
        "--block",
        "5",
        "--to",
        str(tmp_path / "a.jsonl"),
    ]
    rows.write_text(rows.read_text() + json.dumps({"prompt": "say", "completion": "purple"}) + "\n")
    assert main([*words, "--k", "4"]) == 1
    said = capsys.readouterr().out
    assert "4 of 17 rows" in said and "row 16:" in said and "purple" in said
    rows.write_text(rows.read_text() + json.dumps({"prompt": "say red", "completion": "grey"}) + "\n")
    assert main([*words, "--k", "17", "--by", "top"]) == 1, "a rank of all rows"
    assert main([*words, "--k", "4"]) == 1
    assert "3 of 4 blocks were there already" in capsys.readouterr().out
    choice = read(tmp_path / "a.choice.jsonl")
    assert choice[16]["chosen"] is None and "purple" in choice[16]["why"] and 0 < choice[17]["quality"] < 1
    assert main([*words[:-1], str(tmp_path / "b.jsonl"), "--by", "ifd", "--quality", "ifd", "--k", "3"]) == 1
    assert (
        main(
            [
                *words[:-1],
                str(tmp_path / "c.jsonl"),
                "--by",
                "rho",
                "--quality",
                "reducible",
                "--reference",
                str(model),
                "--k",
                "3",
            ]
        )
        == 1
    )
    assert {one.get("quality") for one in read(tmp_path / "c.choice.jsonl")} == {0.0, None}, (
        "no trajectory to learn from it"
    )


def test_a_run_is_a_data_set(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with Store.open(tmp_path / "run" / "trajectories", writing=True) as store:
        for n, word in enumerate(WORDS):
            store.append(
                Trajectory(
                    f"t{n}",
                    Task("spell", "1", {"n": n}),
                    (Step(f"say {word}", word, 1.0),),
                    score=Score(1.0, 1.0, True),
                )
            )
    assert main(["data", "stats", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 5
    assert main(["data", "convert", "run", "--to", "rows.jsonl"]) == 0
    assert [row["id"] for row in read(tmp_path / "rows.jsonl")] == [f"t{n}" for n in range(5)]
    assert (
        main(["data", "select", "run", "--k", "2", "--by", "k_centre", "--field", "messages", "--to", "a.jsonl"]) == 0
    )
    assert len(read(tmp_path / "a.jsonl")) == 2 and "Made of: run" in (tmp_path / "a.card.md").read_text()
    assert main(["data", "mask", "run", "--to", "m.jsonl"]) == 2
    assert "data convert" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "set exactly one of --k N and --share X"),
        (["--k", "2", "--share", "0.5"], "set exactly one of --k N and --share X"),
        (["--share", "2"], "set --k to 1 or more, or --share above 0 and at most 1"),
        (["--k", "0"], "selects nothing"),
        (["--k", "2", "--by", "top"], "--policy: difficulty needs a policy"),
        (["--k", "2", "--by", "top", "--quality", "none"], "needs a quality to rank rows by"),
        (["--k", "2", "--quality", "hard"], "unknown quality 'hard'"),
        (["--k", "2", "--features", "policy"], "hidden states need a policy"),
        (["--k", "2", "--by", "rho", "--policy", "xs"], "--reference"),
        (["--k", "2", "--features", "policy", "--policy", "xs"], "untrained"),
        (["--k", "2", "--by", "random", "--cells", "4"], "--by dpp"),
        (["--k", "2", "--field", "nothing"], "no usable row"),
        (["--k", "2", "--quality", "field:prompt"], "prompt is not a number: got say red red"),
        (["--k", "2", "--width", "0"], "--width"),
    ],
)
def test_mistakes_are_told(rows, tmp_path, capsys, words, said):
    assert main(["data", "select", str(rows), *words, "--to", "a.jsonl"]) in (1, 2)
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "a.jsonl").exists()
    assert main(["data", "select", str(rows), "--k", "1", "--to", "a.csv"]) == 2


def test_a_number_beyond_all_floats_ranks_nothing(rows, tmp_path):
    rows.write_text('{"prompt": "say", "level": 1%s}\n{"prompt": "say red", "level": 2}\n' % ("0" * 400))
    words = ["data", "select", str(rows), "--k", "1", "--by", "top", "--quality", "field:level", "--to", "a.jsonl"]
    assert main(words) == 1 and [row["level"] for row in read(tmp_path / "a.jsonl")] == [2]


def test_data_are_never_written_over(rows, tmp_path, capsys):
    before = rows.read_bytes()
    listed = rows.rename(tmp_path / "b.choice.jsonl")
    for data, to in ((listed, "b.choice.jsonl"), (listed, "b.parquet"), (tmp_path, "c.jsonl")):
        assert main(["data", "select", str(data), "--k", "2", "--to", to]) == 2
        assert "is the data or lies in its folder" in " ".join(capsys.readouterr().err.split())
    assert listed.read_bytes() == before and not (tmp_path / "c.jsonl").exists()
    assert main(["data", "select", "nowhere", "--k", "2", "--to", "c.jsonl"]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err
