"""The watcher: every snapshot's numbers bear its step, what is broken is passed over, and training is left alone."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from evolvent.bench.evaluators import PerplexityConfig, measure_perplexity
from evolvent.bench.measures import Evaluator, Measure
from evolvent.bench.questions import Text
from evolvent.bench.watch import EVALUATIONS_FILE, WatchCounts, Watcher, watch
from evolvent.errors import ConfigError, CorruptRecord, EngineError, Locked, MissingExtra
from evolvent.models.snapshots import lease
from tests.bench.small_policies import publish, small_policy, state
from tests.faults.launched import Launched

TEXTS = [Text("you see a lamp"), Text("take key"), Text("go north")]


def predicted(policy, engine):
    return measure_perplexity(policy, TEXTS, engine=engine)


PERPLEXITY = Evaluator("perplexity", predicted, "three texts")


def lines(run):
    path = run / EVALUATIONS_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def expected(step):
    (found,) = measure_perplexity(small_policy(seed=step), TEXTS)
    return found.value


# ---------------------------------------------------------------------- in step with the training


def test_every_snapshot_is_evaluated_once_in_the_synchronous_mode(tmp_path):
    with Watcher(tmp_path, [PERPLEXITY]) as watcher:
        assert watcher.evaluate_newest() is False, "nothing was published yet"
        for step in (0, 7, 14):
            publish(tmp_path, step)
            assert watcher.evaluate_newest() is True
            assert watcher.evaluate_newest() is False, "it was evaluated already"
    assert watcher.did == WatchCounts(evaluated=3)
    rows = lines(tmp_path)
    assert [row["step"] for row in rows] == [0, 7, 14]
    assert [row["snapshot"] for row in rows] == ["step-000000", "step-000007", "step-000014"]
    for row in rows:
        (measure,) = row["measures"]
        assert measure["value"] == pytest.approx(expected(row["step"]), rel=1e-6) and measure["n"] == 8
        assert measure["low"] <= measure["value"] <= measure["high"]
        assert (row["kind"], row["stage"], row["arm"]) == ("snapshot", "perplexity", "")
        assert row["seconds"] >= 0 and row["time_s"] > 0 and row["at"].endswith("Z")


def test_behind_it_takes_the_newest_and_counts_the_rest(tmp_path):
    with Watcher(tmp_path, [PERPLEXITY]) as watcher:
        publish(tmp_path, 1)
        watcher.evaluate_newest()
        for step in (2, 3, 4, 5):
            publish(tmp_path, step)
        assert watcher.evaluate_newest() and not watcher.evaluate_newest()
    assert [row["step"] for row in lines(tmp_path)] == [1, 5]
    assert watcher.did == WatchCounts(evaluated=2, skipped=3)


def test_a_snapshot_is_leased_while_it_is_evaluated(tmp_path):
    seen = []

    def evaluate(policy, engine):
        for step in (2, 3):
            publish(tmp_path, step, keep=1)
        seen.append((tmp_path / "snapshots" / "step-000001" / "model.safetensors").exists())
        return [Measure("x", 1.0, None, None, 1)]

    publish(tmp_path, 1, keep=1)
    with Watcher(tmp_path, [Evaluator("x", evaluate)]) as watcher:
        watcher.evaluate_newest()
    assert seen == [True]
    publish(tmp_path, 4, keep=1)
    assert sorted(path.name for path in (tmp_path / "snapshots").glob("step-*")) == ["step-000004"]


def test_what_was_done_is_not_done_again(tmp_path):
    publish(tmp_path, 1)
    for _ in range(2):
        with Watcher(tmp_path, [PERPLEXITY]) as watcher:
            watcher.evaluate_newest()
    assert len(lines(tmp_path)) == 1 and watcher.did == WatchCounts()
    other = Evaluator("perplexity", partial(lambda policy, engine: predicted(policy, engine)), "other settings")
    with Watcher(tmp_path, [other, Evaluator("more", predicted, "three texts")]) as watcher:
        watcher.evaluate_newest()
    assert [row["stage"] for row in lines(tmp_path)] == ["perplexity", "perplexity", "more"]


# ---------------------------------------------------------------------- until the run ends


def test_it_watches_until_the_run_has_ended(tmp_path):
    """A training in another thread: it publishes, evaluates nothing, and waits for nobody."""
    state(tmp_path, "running")
    published = threading.Event()

    def train():
        for step in range(5):
            publish(tmp_path, step)
            published.set()
            time.sleep(0.03)
        publish(tmp_path, 5)
        state(tmp_path, "finished")

    thread = threading.Thread(target=train)
    with Watcher(tmp_path, [PERPLEXITY]) as watcher:
        thread.start()
        did = watch(watcher, poll_s=0.005)
    thread.join()
    steps = [row["step"] for row in lines(tmp_path)]
    assert steps == sorted(set(steps)) and steps[-1] == 5, "in order, each once, and the last one in any case"
    assert did == watcher.did and did.evaluated == len(steps) and did.evaluated + did.skipped <= 6


@pytest.mark.parametrize("said", ["finished", "failed", "interrupted"])
def test_of_a_run_that_has_ended_the_last_snapshot_is_evaluated(tmp_path, said):
    publish(tmp_path, 3)
    state(tmp_path, said)
    with Watcher(tmp_path, [PERPLEXITY]) as watcher:
        assert watch(watcher, poll_s=0.01) == WatchCounts(evaluated=1)


def test_it_ends_when_nothing_new_comes(tmp_path):
    publish(tmp_path, 1)
    state(tmp_path, "running")
    with Watcher(tmp_path, [PERPLEXITY]) as watcher:
        assert watch(watcher, poll_s=0.01, idle_s=0.05) == WatchCounts(evaluated=1)


# ---------------------------------------------------------------------- trouble


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.safetensors", "Incomplete"),
        ("config.json", "Incomplete"),
        ("tokenizer.json", "Incomplete"),
        ("evolvent.json", "Incomplete"),
    ],
)
def test_a_broken_snapshot_is_noted_counted_and_passed_over(tmp_path, name, kind):
    path = publish(tmp_path, 1)
    (path / name).write_bytes((path / name).read_bytes()[:-9])
    with Watcher(tmp_path, [PERPLEXITY]) as watcher:
        assert watcher.evaluate_newest() and not watcher.evaluate_newest()
        publish(tmp_path, 2)
        assert watcher.evaluate_newest()
    broken, whole = lines(tmp_path)
    assert (broken["step"], broken["stage"], broken["error"]["kind"]) == (1, "load", kind)
    assert "step-000001" in broken["error"]["message"] or "step 1" in broken["error"]["message"]
    assert whole["step"] == 2 and "measures" in whole
    assert watcher.did == WatchCounts(evaluated=1, broken=1)


def test_a_broken_pointer_is_waited_for(tmp_path):
    publish(tmp_path, 1)
    pointer = tmp_path / "snapshots" / "LATEST.json"
    pointer.write_text("{")
    with Watcher(tmp_path, [PERPLEXITY]) as watcher:
        assert watcher.evaluate_newest() is False
        publish(tmp_path, 2)
        assert watcher.evaluate_newest() is True
    assert [row["step"] for row in lines(tmp_path)] == [2]


def test_an_evaluator_that_fails_leaves_the_others(tmp_path):
    def wrong(policy, engine):
        raise ZeroDivisionError("a bug in an evaluator")

    def typed(policy, engine):
        raise EngineError("the model's output is not finite", value="after 3 tokens")

    publish(tmp_path, 1)
    chosen = [Evaluator("wrong", wrong), Evaluator("typed", typed), PERPLEXITY]
    with Watcher(tmp_path, chosen) as watcher:
        watcher.evaluate_newest()
    found = {row["stage"]: row for row in lines(tmp_path)}
    assert found["wrong"]["error"]["kind"] == "EvolventError" and "ZeroDivision" in found["wrong"]["error"]["message"]
    assert found["typed"]["error"] == {
        "kind": "EngineError",
        "message": "the model's output is not finite: got after 3 tokens",
    }
    assert "measures" in found["perplexity"] and watcher.did == WatchCounts(evaluated=1, failed=2)
    with Watcher(tmp_path, chosen) as watcher:
        watcher.evaluate_newest()
    assert [row["stage"] for row in lines(tmp_path)[3:]] == ["wrong", "typed"], "what failed is tried again"


def test_what_is_missing_on_this_machine_ends_the_watch(tmp_path):
    def needs(policy, engine):
        raise MissingExtra("sciworld", "this world")

    publish(tmp_path, 1)
    with Watcher(tmp_path, [Evaluator("x", needs)]) as watcher, pytest.raises(MissingExtra):
        watcher.evaluate_newest()


def test_one_watcher_a_run(tmp_path):
    with Watcher(tmp_path, [PERPLEXITY]):
        with pytest.raises(Locked, match=r", or a killed watcher left evaluations\.lock behind"):
            Watcher(tmp_path, [PERPLEXITY])
    with Watcher(tmp_path, [PERPLEXITY]) as again:
        again.close()


def test_bad_input_is_refused(tmp_path):
    for evaluators in ([], [PERPLEXITY, PERPLEXITY]):
        with pytest.raises(ConfigError, match="evaluator names are not unique"):
            Watcher(tmp_path, evaluators)
    with pytest.raises(ConfigError, match="run folder not found"):
        Watcher(tmp_path / "none", [PERPLEXITY])
    with Watcher(tmp_path, [PERPLEXITY]) as watcher, pytest.raises(ConfigError, match="poll_s"):
        watch(watcher, poll_s=0)
    (tmp_path / EVALUATIONS_FILE).write_text('{"step": 1}\nnot json\n{}\n')
    with pytest.raises(CorruptRecord):
        Watcher(tmp_path, [PERPLEXITY])


def test_a_torn_last_line_is_replaced(tmp_path):
    (tmp_path / EVALUATIONS_FILE).write_text('{"step": 1, "stage": "perplexity"}\n{"step": 2, "sta')
    publish(tmp_path, 3)
    with Watcher(tmp_path, [PERPLEXITY]) as watcher:
        watcher.evaluate_newest()
    assert [row["step"] for row in lines(tmp_path)] == [1, 3]


# ---------------------------------------------------------------------- beside a real training

TRAINING = Path(__file__).resolve().parents[1] / "faults"


def test_a_training_is_the_same_with_and_without_observers(tmp_path, monkeypatch):
    """Losses and weights bit for bit, with a watcher in another process meanwhile."""
    monkeypatch.syspath_prepend(str(TRAINING))
    import small_training
    import torch

    from evolvent.models.snapshots import publish_snapshot

    made, original = [], small_training.small_policy
    monkeypatch.setattr(small_training, "small_policy", lambda **more: made.append(original(**more)) or made[-1])
    run = tmp_path / "run"
    state(run, "running")
    (tmp_path / "texts.jsonl").write_text('{"text": "you see a lamp"}\n')

    def train(observed):
        losses = []

        def on_update(metrics):
            losses.append((metrics.loss, metrics.grad_norm))
            if observed and metrics.update % 2 == 0:
                publish_snapshot(run, metrics.update, made[-1].save)

        return small_training.train(None, on_update=on_update, max_steps=30), losses

    alone = train(observed=False)
    words = ["watch", run, "--perplexity.data", tmp_path / "texts.jsonl", "--poll_s", "0.01"]
    with Launched(1, words, cwd=tmp_path) as watcher:
        watcher.until(tmp_path / ".out-0", 1)
        assert watcher.said().startswith("watching ")
        observed = train(observed=True)
        with lease(run) as snapshot:
            assert snapshot.step == 30
        while "\nstep 30  perplexity  " not in watcher.said():
            assert watcher.processes[0].is_alive(), watcher.said()
            time.sleep(0.02)
        watcher.signal(signal.SIGINT)
        assert watcher.wait(seconds=60) == [130]
        assert watcher.errors() == ["interrupted\n"] and "\nstep 30  " in watcher.said().rpartition("\n")[0]
        assert (tmp_path / ".out-0").read_text().splitlines()[-1].startswith("step 30  "), "nothing after it"
    assert not list((run / "snapshots" / "leases").iterdir()), "and nothing is left behind"
    with Watcher(run, [PERPLEXITY]):
        pass
    assert observed[1] == alone[1] and len(alone[1]) == 30
    assert small_training.same(observed[0], alone[0])
    assert all(torch.equal(a, b) for a, b in zip(made[0].model.parameters(), made[1].model.parameters(), strict=True))
    rows = lines(run)
    assert rows[-1]["step"] == 30
    (found,) = measure_perplexity(made[1], [Text("you see a lamp")], PerplexityConfig())
    assert rows[-1]["measures"][0]["value"] == pytest.approx(found.value, rel=1e-5)
    assert math.isfinite(found.value)
