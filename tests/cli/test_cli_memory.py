"""`evolvent memory` builds, grows and asks a memory."""

from __future__ import annotations

import json

from evolvent.cli.main import main
from evolvent.store.exchange import write_jsonl
from evolvent.store.store import Store
from evolvent.trajectory import Score, Step, Task, Trajectory


def episode(at, *, success=True, thought="Next, I need to take the mug 1."):
    task = Task("rooms", "1", {"n": at}, kind=f"{('heat', 'cool')[at % 2]} mug shelf")
    steps = (Step(f"A room {at}.", f"take mug {at}", thought=thought), Step("Taken.", "use it", thought=None))
    return Trajectory(f"run/{at}", task, steps, "end", score=Score(None, None, success))


def test_build_query_and_grow(tmp_path, capsys):
    write_jsonl([episode(at, success=at != 3) for at in range(4)], tmp_path / "some.jsonl")
    build = ["memory", "build", str(tmp_path / "some.jsonl"), "--to", str(tmp_path / "m")]
    assert main([*build, "--kind_words", "1", "--key", "thought", "--key", "metadata"]) == 0
    shown = capsys.readouterr().out
    assert "3 episodes, 6 steps added" in shown and "3 steps have no text for the key thought/full" in shown
    query = ["memory", "query", str(tmp_path / "m"), "I take the mug", "--json"]
    assert main([*query, "--kind", "heat"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["trajectory_id"], row["step"], row["kind"]) for row in rows] == [
        ("run/0", 0, "heat"),
        ("run/2", 0, "heat"),
    ]
    assert rows[0]["key"] == rows[0]["thought"] and -1 <= rows[0]["score"] <= 1

    with Store.open(tmp_path / "store", writing=True) as store:
        store.append(episode(1))
        store.append(episode(5, thought="odd \x1b[2J"))
    assert main(["memory", "build", str(tmp_path / "store"), "--to", str(tmp_path / "m")]) == 1
    assert "run/1" in capsys.readouterr().err, "another kind under the same id"
    assert main(["memory", "build", str(tmp_path / "store"), "--to", str(tmp_path / "m"), "--kind_words", "1"]) == 0
    assert "1 episodes, 2 steps added" in capsys.readouterr().out
    assert main(["memory", "query", str(tmp_path / "m"), "odd", "--k", "1", "--by", "thought"]) == 0
    shown = capsys.readouterr().out
    assert "run/5" in shown and "\x1b" not in shown and "U+001B" in shown


def test_steps_without_thoughts_are_found_by_their_observation(tmp_path, capsys):
    write_jsonl([episode(at, thought=None) for at in range(3)], tmp_path / "some.jsonl")
    build = ["memory", "build", str(tmp_path / "some.jsonl"), "--to"]
    assert main([*build, str(tmp_path / "m")]) == 0
    assert "no step has a thought: steps are found by their observation" in capsys.readouterr().out
    assert main(["memory", "query", str(tmp_path / "m"), "A room 1.", "--k", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trajectory_id"] == "run/1"
    assert main([*build, str(tmp_path / "t"), "--key", "thought"]) == 0
    capsys.readouterr()
    assert main(["memory", "query", str(tmp_path / "t"), "A room 1."]) == 2
    shown = capsys.readouterr().err
    assert "has a text for the key 'thought/full'" in shown and "--key observation" in shown


def test_trads_files(tmp_path, capsys):
    good = {
        "task": "put some cd on desk.",
        "traj": [{"obs": "a", "act": "b", "thought": "c"}, {"obs": "d", "act": "e"}],
    }
    (tmp_path / "0_0.json").write_text(json.dumps(good))
    (tmp_path / "0_1.json").write_text("{")
    assert main(["memory", "build", str(tmp_path), "--layout", "trad", "--to", str(tmp_path / "m")]) == 1
    shown = capsys.readouterr().out
    assert "1 episodes, 1 steps" in shown and "0_1.json" in shown


def test_mistakes(tmp_path, capsys):
    assert main(["memory"]) == 2 and main(["memory", "bild"]) == 2
    assert main(["memory", "query", str(tmp_path), "x"]) == 1
    assert "does not hold a memory" in capsys.readouterr().err
    write_jsonl([episode(0)], tmp_path / "some.jsonl")
    build = ["memory", "build", str(tmp_path / "some.jsonl"), "--to", str(tmp_path / "m")]
    assert main([*build, "--key", "thouht"]) == 2
    assert main(build) == 0
    assert main([*build, "--key", "observation"]) == 2, "its keys are its own"
    assert main(["memory", "query", str(tmp_path / "m"), "x", "--k", "0"]) == 2
