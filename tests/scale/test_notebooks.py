"""Python and notebooks: short texts of objects, numbers as tables, tasks and strings, and runs that lists name."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

import evolvent as ev
from evolvent.cli.main import main
from evolvent.run import MetricsTable
from evolvent.scale.local_backend import EvaluationPanel


class Say(ev.TextWorld):
    name, horizon = "say", 2

    def specs(self):
        return [{"number": number} for number in range(60)]

    def vocabulary(self):
        return ["say", "hello", "<b>"]

    def play(self, spec):
        yield "say <b>hello"
        return 1.0


@pytest.fixture
def policy():
    return ev.tiny_policy(["say", "hello", "<", "b", ">"], size="xs", context=64, seed=0)


def test_a_run_of_one_world_takes_tasks_and_strings_and_is_listed(tmp_path, monkeypatch, capsys, policy):
    monkeypatch.chdir(tmp_path)
    world = Say()
    tasks = world.tasks("train", "seen")[:3]
    with ev.local_run("runs/first", world, seed=7, panel=EvaluationPanel(limit=3), max_tokens=2) as run:
        played = run.collect(policy, tasks)
        (row,) = run.arm("mine").evaluate(policy, 1)
        assert json.loads(Path("runs/first/run.json").read_text())["state"] == "running"
        metrics = run.metrics()
        assert repr(run) == "Run('runs/first', seed=7, 2 finished stages)"
        assert "base-0-collect" in run._repr_html_()
    assert [trajectory.task for trajectory in played] == tasks
    assert len(list(ev.collect({"say": world}, tasks, ev.Script(lambda world, task: ["hi"])))) == 3
    record = json.loads(Path("runs/first/run.json").read_text())
    assert (record["name"], record["seed"], record["state"], record["arms"]) == (
        "first",
        7,
        "finished",
        ["base", "mine"],
    )
    assert main(["runs", "list"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "first" in line]
    assert "finished" in line and " 7 " in line and record["method"] == "python" and "python" in line
    ev.report("runs/first")
    assert "<bdi>first</bdi>" in Path("runs/first/report.html").read_text()
    assert isinstance(metrics, list) and metrics[0]["episodes"] == 3
    assert isinstance(metrics.to_arrow(), pa.Table) and len(metrics.to_arrow()) == len(metrics)
    assert (
        repr(row).startswith("Evaluation(world='say', tier='seen', split='test', n=3, mean=1, low=")
        and len(repr(row)) < 160
    )


def test_a_run_that_fails_says_so(tmp_path, policy):
    with pytest.raises(ZeroDivisionError), ev.local_run(tmp_path, Say()):
        1 / 0  # noqa: B018
    assert json.loads((tmp_path / "run.json").read_text())["state"] == "failed"


def test_objects_are_short_and_their_pages_escape(policy):
    world = Say()
    assert repr(world) == "<world 'say', version 1: Say, at most 2 steps>"
    (trajectory,) = ev.collect({"say": world}, world.tasks("train", "seen")[:1], ev.Script(lambda world, task: ["<i>"]))
    assert repr(trajectory).endswith("say/seen/train, 1 step, success=True, return=1.0, ended by world)")
    assert "<li><code>say &lt;b&gt;hello</code> → <b>&lt;i&gt;</b></li>" in trajectory._repr_html_()
    assert "<td>&lt;b&gt;</td>" in MetricsTable([{"a": "<b>"}])._repr_html_()


def test_a_policy_and_evaluations_are_short_and_paths_may_be_texts(tmp_path, monkeypatch, policy):
    monkeypatch.chdir(tmp_path)
    assert len(repr(policy)) < 200 and "\n" not in repr(policy)
    policy.save("saved")
    assert ev.load_policy("saved").version == policy.version
    world = Say()
    (row,) = ev.evaluate(ev.Script(lambda world, task: ["hi"]), world, limit=2)
    assert len(repr(row)) < 200 and row._repr_html_().startswith("<code>Evaluation(world=&#x27;say&#x27;")
    with ev.local_run("run", world, panel=EvaluationPanel(limit=2), max_tokens=2) as run:
        run.evaluate(policy, 0)
    ev.report(run.folder, "mine.html")
    assert Path("mine.html").is_file()
