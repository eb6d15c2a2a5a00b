"""`evolvent memory` builds, grows and asks a memory."""

from __future__ import annotations

import json
import re

from evolvent.cli.main import main
from evolvent.store.exchange import write_jsonl
from evolvent.store.store import Store
from evolvent.trajectory import Score, Step, Task, Trajectory
from evolvent.worlds.web_replay.generated import write_rows
from tests.serve.small_policy import completion, scripted


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


def explain_by(requests, fails=()):
    """Answers with the recorded action of the prompt; a prompt that holds one of the texts is refused."""

    def answer(number, path, body):
        if path.endswith("/models"):
            return 200, {}, {"data": [{"id": "m"}]}
        prompt = body["messages"][-1]["content"]
        requests.append(prompt)
        if any(text in prompt for text in fails):
            return 400, {}, {"error": {"message": "too long for this model"}}
        action = re.findall(r"> act: (.*)", prompt)[-1]
        text = f" It fits. Next, I need to {action}\n> act: x"
        return 200, {}, completion(text, ids=None, logprobs=None, prompt=None)

    return answer


def test_mind2webs_recorded_steps_are_explained_in_hindsight(tmp_path, capsys):
    """A refused episode is asked for again, nothing else is; the memory finds steps by the thoughts."""
    data, run, to = tmp_path / "data", tmp_path / "run", tmp_path / "thoughts"
    write_rows(data, pages=24)
    for path in data.rglob("*.json"):  # Mind2Web's own files have no thoughts
        path.write_text(re.sub(r'"thought": ?"[^"]*"', '"thought": ""', path.read_text()))
    world = f"webreplay:text:{data}"
    assert main(["collect", "--worlds", world, "--split", "train", "--to", str(run), "--agent", "expert"]) == 0
    with Store.open(run / "trajectories") as store:
        recorded = list(store.trajectories())
    steps = sum(len(each.steps) for each in recorded)
    refused = recorded[1]
    assert len(recorded) >= 3 and not any(step.thought for each in recorded for step in each.steps)
    words = ["memory", "explain", str(run), "--worlds", world, "--to", str(to), "--model", "m", "--steps", "1"]
    words += ["--outcome", "--slots", "2"]
    first, second = [], []
    capsys.readouterr()
    instruction = str(refused.steps[0].observation).splitlines()[0]
    with scripted(explain_by(first, fails=(instruction,))) as (url, _):
        assert main([*words, "--endpoint", url]) == 1
    assert f"{refused.id}: " in (shown := capsys.readouterr().out) and "episodes without thoughts: 1" in shown
    with scripted(explain_by(second)) as (url, _):
        assert main([*words, "--endpoint", url]) == 0
        assert f"{len(recorded) - 1} episodes were done before" in capsys.readouterr().out
        assert main([*words, "--endpoint", url]) == 0, "a third time: nothing is left to ask"
    asked = [prompt for prompt in first if instruction not in prompt] + second
    assert len(asked) == steps and len(set(asked)) == len(asked)
    with Store.open(to / "trajectories") as store:
        explained = {each.id: each for each in store.trajectories()}
    for each in recorded:
        thoughts = [step.thought for step in explained[each.id].steps]
        assert thoughts == [f"It fits. Next, I need to {step.action}" for step in each.steps]
        assert [step.action for step in explained[each.id].steps] == [step.action for step in each.steps]
    for prompt in asked:
        assert prompt.count("> act: ") == 1 and "The last action led to:\n" in prompt
    assert any("The last action led to:\nThe task is over." in prompt for prompt in asked)
    assert main(["memory", "build", str(to), "--to", str(tmp_path / "memory"), "--every"]) == 0
    query = ["memory", "query", str(tmp_path / "memory"), f"Next, I need to {refused.steps[0].action}", "--json"]
    capsys.readouterr()
    assert main([*query, "--k", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["thought"].startswith("It fits.")


def test_a_killed_explanation_asks_for_the_missing_answers_only(tmp_path):
    """Answers are kept one by one: also those of episodes that were not finished."""
    write_jsonl([episode(at, thought=None) for at in range(2)], tmp_path / "some.jsonl")
    words = ["memory", "explain", str(tmp_path / "some.jsonl"), "--worlds", "lookup", "--to", str(tmp_path / "to")]
    tasks = [Task("lookup", "1", {"n": at}) for at in range(2)]
    rows = [Trajectory(f"run/{at}", tasks[at], episode(at, thought=None).steps, "end") for at in range(2)]
    write_jsonl(rows, tmp_path / "some.jsonl")
    first, second = [], []
    with scripted(explain_by(first, fails=("> act: use it",))) as (url, _):
        assert main([*words, "--endpoint", url, "--model", "m"]) == 1
    answers = (tmp_path / "to" / "answers.jsonl").read_bytes()
    assert answers.count(b"\n") == 2
    (tmp_path / "to" / "answers.jsonl").write_bytes(answers + b'{"key": "torn')
    with scripted(explain_by(second)) as (url, _):
        assert main([*words, "--endpoint", url, "--model", "m"]) == 0
        assert len(second) == 2 and all("> act: use it" in prompt for prompt in second)
        assert main([*words, "--endpoint", url, "--model", "m", "--outcome"]) == 2, "thoughts of other settings"
        assert main([*words, "--endpoint", url, "--model", "other"]) == 2
    with Store.open(tmp_path / "to" / "trajectories") as store:
        assert [step.thought for each in store.trajectories() for step in each.steps] == [
            "It fits. Next, I need to take mug 0",
            "It fits. Next, I need to use it",
            "It fits. Next, I need to take mug 1",
            "It fits. Next, I need to use it",
        ]
