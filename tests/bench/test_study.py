"""Freezing and running a study: one digest, nothing played twice, failures recorded, two processes at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.bench.plan import list_changes
from evolvent.bench.results import StudyResults, hold_lock
from evolvent.bench.study import (
    Arm,
    ArmFailure,
    ArmResult,
    PrimaryComparison,
    Study,
    collect_outcomes,
    freeze_study,
    read_costs,
    read_results,
    read_study,
    run_study,
)
from evolvent.errors import (
    ConfigError,
    CorruptRecord,
    Locked,
    NonFinite,
    NoSpace,
    ScoringError,
    UnknownSchema,
)
from evolvent.run import Evaluation, Run
from tests.bench import studies
from tests.bench.studies import answers, played, study

# ---------------------------------------------------------------- freezing


def test_the_digest_is_the_same_on_every_machine():
    assert study().digest() == "21a7aae4b187262108316dd21df60b36"


def test_freezing_twice_gives_one_digest(tmp_path):
    digest = freeze_study(study(), tmp_path)
    before = (tmp_path / "study.json").read_bytes()
    assert freeze_study(study(), tmp_path) == digest == study().digest()
    assert (tmp_path / "study.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"threshold": 0.1}, "threshold: 0.05 -> 0.1"),
        ({"seeds": (0, 1)}, "seeds: [0, 1, 2, 3, 4, 5] -> [0, 1]"),
        ({"budget": None}, "budget: 1000 -> null"),
        ({"facts": {"worlds": {"lookup": "1", "maze": "3"}, "lr": 0.004}}, 'facts.worlds.maze: "2" -> "3"'),
        ({"primary": PrimaryComparison("evolve", "control", ("evo",))}, 'primary.tiers: ["evo", "combo"] -> ["evo"]'),
    ],
)
def test_a_changed_study_is_refused_with_both_digests(tmp_path, change, said):
    digest = freeze_study(study(), tmp_path)
    changed = replace(study(), **change)
    with pytest.raises(ConfigError, match="Use another folder for the changed study") as error:
        freeze_study(changed, tmp_path)
    assert digest in str(error.value) and changed.digest() in str(error.value)
    assert said in str(error.value)
    assert str(error.value).count("->") == 1, "only what changed is named"


def test_a_changed_question_an_added_and_a_moved_arm_are_named():
    before = study().describe()
    arms = [replace(study().arms[0], question="why?"), study().arms[2], study().arms[1]]
    after = replace(study(), arms=(*arms, Arm("upper", "the best", answers))).describe()
    found = "\n".join(list_changes(before, after))
    assert 'arms.base.question: "where all start" -> "why?"' in found
    assert "order of the arms: base, evolve, control -> base, control, evolve, upper" in found
    assert 'arms.upper.question: absent -> "the best"' in found
    assert "arms.evolve" not in found


def test_how_an_arm_is_played_is_not_part_of_the_digest():
    """The function cannot be described; what it depends on belongs into the facts."""
    assert study(lambda seat: played()).digest() == study().digest()


def test_a_study_is_read_back(tmp_path):
    freeze_study(study(), tmp_path)
    found = read_study(tmp_path)
    assert found == study() and found.digest() == study().digest()
    with pytest.raises(ConfigError, match=r"arms.base: has no `play`"):
        run_study(found, tmp_path)


def test_an_edited_study_is_refused(tmp_path):
    digest = freeze_study(study(), tmp_path)
    path = tmp_path / "study.json"
    path.write_text(path.read_text().replace('"threshold": 0.05', '"threshold": 0.01'))
    edited = replace(study(), threshold=0.01).digest()
    with pytest.raises(ConfigError, match=f"changed after freezing: recorded digest {digest}, actual digest {edited}"):
        read_study(tmp_path)
    with pytest.raises(ConfigError, match=r"threshold: 0.01 -> 0.05"):
        freeze_study(study(), tmp_path)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"study": 1}', '{"study": {"name": "x", "arms": 5}}', '{"format": "new"}']
)
def test_a_file_that_is_no_study(tmp_path, text):
    (tmp_path / "study.json").write_text(text)
    with pytest.raises((ConfigError, CorruptRecord), match=r"study\.json"):
        read_study(tmp_path)


def test_no_study_and_a_newer_one(tmp_path):
    with pytest.raises(ConfigError, match="does not hold a frozen study"):
        read_study(tmp_path)
    (tmp_path / "study.json").write_text('{"format": 99}')
    with pytest.raises(UnknownSchema, match="newer version"):
        read_study(tmp_path)


def test_every_mistake_is_told_at_once():
    arms = (
        Arm("a/b", "?"),
        Arm("Two", "?", after=("tow",)),
        Arm("two", "?"),
        Arm("x", "?", after=("y",)),
        Arm("y", "?", after=("x",)),
    )
    with pytest.raises(ConfigError) as error:
        Study("", arms, (1, 1), 0, PrimaryComparison("evolv", "two", (), base="bse"), 2.0, {"x": float("nan")})
    told = [str(problem) for problem in error.value.problems]
    assert [problem.where for problem in error.value.problems] == [
        "arms",
        "arms",
        "arms.Two.after",
        "arms",
        "primary.arm",
        "primary.base",
        "primary.tiers",
        "seeds",
        "budget",
        "threshold",
        "facts",
    ]
    assert "unknown arm 'tow' (did you mean 'two'?)" in told[2]
    assert "x, y depend on each other in a cycle" in told[3]


def test_arms_are_played_after_those_they_name():
    arms = [Arm(name, "?", answers, after) for name, after in (("c", ("b",)), ("a", ()), ("b", ("a",)), ("d", ()))]
    found = Study("s", arms, (0,), None, PrimaryComparison("a", "b"))
    assert [arm.name for arm in found.sort_arms()] == ["a", "b", "c", "d"]


# ---------------------------------------------------------------- running


def test_everything_is_played_once_and_kept_small(tmp_path):
    seen = []

    def play(seat):
        seen.append((seat.arm, seat.seed))
        assert seat.folder == tmp_path / "runs" / seat.arm / str(seat.seed) and seat.folder.is_dir()
        assert (list(seat.previous), seat.budget) == ([] if seat.arm == "base" else ["base"], 1000)
        if seat.previous:
            assert seat.previous["base"].result.notes == {"curve": [0.5]}
            assert (seat.previous["base"].folder / "policy").read_text() == str(seat.seed)
        else:
            (seat.folder / "policy").write_text(str(seat.seed))
        return played("110000011", notes={"curve": [0.5]})

    found = run_study(study(play, seeds=(7, 3)), tmp_path)
    assert seen == [(arm, seed) for seed in (7, 3) for arm in ("base", "evolve", "control")]
    assert set(found) == set(seen) and found["evolve", 3] == played("110000011", notes={"curve": [0.5]})
    row = json.loads((tmp_path / "results" / "evolve" / "3.json").read_text())
    assert row["outcomes"] == {"lookup/evo": "1100", "lookup/combo": "00", "maze/evo": "011"}
    assert (row["study"], row["tokens"], row["cpu_s"]) == (
        study(seeds=(7, 3)).digest(),
        {"computed": 100, "generated": 10},
        2.0,
    )
    assert json.loads((tmp_path / "panels.json").read_text())["panels"]["lookup/combo"] == [
        ["lookup/combo-0", "kind 0"],
        ["lookup/combo-1", "kind 0"],
    ]
    events = []
    assert run_study(study(play, seeds=(7, 3)), tmp_path, observe=events.append) == found
    assert len(seen) == 6 and {event.state for event in events} == {"known"}


def test_the_order_of_tasks_does_not_matter(tmp_path):
    def play(seat):
        turned = {panel: rows[::-1] for panel, rows in studies.outcomes("110000011").items()}
        return ArmResult(turned if seat.arm == "evolve" else studies.outcomes("110000011"), tokens={"computed": 0})

    found = run_study(study(play, seeds=(0,)), tmp_path)
    assert found["evolve", 0].outcomes == found["base", 0].outcomes


def test_a_failed_arm_is_recorded_and_tried_again(tmp_path):
    broken = {("base", 1), ("control", 2)}
    seen = []

    def play(seat):
        seen.append((seat.arm, seat.seed))
        if (seat.arm, seat.seed) in broken:
            raise NonFinite("loss is NaN", value="update 7")
        return answers(seat)

    events = []
    found = run_study(study(play, seeds=(0, 1, 2)), tmp_path, observe=events.append)
    assert found["base", 1] == ArmFailure("NonFinite", "loss is NaN: got update 7")
    assert found["evolve", 1] == found["control", 1] == ArmFailure("NotPlayed", "because base failed")
    assert [key for key, result in found.items() if isinstance(result, ArmResult)] == [
        ("base", 0),
        ("evolve", 0),
        ("control", 0),
        ("base", 2),
        ("evolve", 2),
    ]
    assert next((e.arm, e.seed, e.why) for e in events if e.state == "failed") == (
        "base",
        1,
        "loss is NaN: got update 7",
    )
    broken.clear()
    seen.clear()
    found = run_study(study(play, seeds=(0, 1, 2)), tmp_path)
    assert seen == [("base", 1), ("evolve", 1), ("control", 1), ("control", 2)]
    assert all(isinstance(result, ArmResult) for result in found.values()) and len(found) == 9


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, SystemExit])
def test_what_is_no_error_of_the_library_passes_and_the_study_goes_on_later(tmp_path, error):
    seen = []

    def play(seat):
        seen.append((seat.arm, seat.seed))
        if len(seen) == 5:
            raise error
        return answers(seat)

    with pytest.raises(error):
        run_study(study(play, seeds=(0, 1)), tmp_path)
    assert not (tmp_path / "results" / "evolve" / "1.json").exists()
    assert len(run_study(study(play, seeds=(0, 1)), tmp_path)) == 6
    assert seen[4:] == [("evolve", 1), ("evolve", 1), ("control", 1)]


def test_more_than_the_budget_is_a_failure_with_both_numbers(tmp_path):
    found = run_study(study(seeds=(0,), budget=99), tmp_path / "a")
    assert found["base", 0].kind == "LimitExceeded" and "got 100, expected at most 99" in found["base", 0].message
    assert isinstance(run_study(study(seeds=(0,), budget=100), tmp_path / "b")["base", 0], ArmResult)
    silent = study(lambda seat: ArmResult(studies.outcomes("1" * 9)), seeds=(0,))
    assert "the arm does not report its computed tokens" in run_study(silent, tmp_path / "c")["base", 0].message
    assert isinstance(run_study(replace(silent, budget=None), tmp_path / "d")["base", 0], ArmResult)


def test_other_tasks_in_a_panel_are_a_failure(tmp_path):
    def play(seat):
        rows = studies.outcomes("1" * 9)
        if seat.arm == "control":
            rows["maze/evo"] = [*rows["maze/evo"][:2], ("another", "kind 1", True)]
        return ArmResult(rows, tokens={"computed": 1})

    found = run_study(study(play, seeds=(0,)), tmp_path)
    assert isinstance(found["evolve", 0], ArmResult)
    assert "maze/evo: was evaluated on different tasks before: 1 of its 3 are missing, 1 are others" in (
        found["control", 0].message
    )


def test_an_arm_may_play_fewer_or_more_panels(tmp_path):
    def play(seat):
        rows = studies.outcomes("1" * 9)
        return ArmResult(
            rows | {"new/evo": [("t", "k", False)]} if seat.arm == "evolve" else dict([*rows.items()][:1]),
            tokens={"computed": 1},
        )

    found = run_study(study(play, seeds=(0,)), tmp_path)
    assert list(found["evolve", 0].outcomes) == [*studies.PANELS, "new/evo"]
    assert list(found["control", 0].outcomes) == ["lookup/evo"]


def test_only_some_arms_bring_those_they_come_after(tmp_path):
    found = run_study(study(seeds=(0, 1)), tmp_path, only=["control"], seeds=[1])
    assert list(found) == [("base", 1), ("control", 1)]
    with pytest.raises(ConfigError) as error:
        run_study(study(seeds=(0, 1)), tmp_path, only=["evolv"], seeds=[4])
    assert "unknown arm 'evolv' (did you mean 'evolve'?)" in str(error.value) and "unknown seeds [4]" in str(
        error.value
    )


def test_results_of_another_study_are_refused(tmp_path):
    run_study(study(seeds=(0,)), tmp_path)
    other = replace(study(seeds=(0,)), name="other")
    (tmp_path / "study.json").unlink()
    with pytest.raises(
        ConfigError, match=f"belongs to the study {study(seeds=(0,)).digest()}, not to {other.digest()}"
    ):
        run_study(other, tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("results/base/0.json", "{"),
        ("results/base/0.json", '{"study": "DIGEST"}'),
        ("results/base/0.json", '{"study": "DIGEST", "tokens": {}, "cpu_s": 1, "outcomes": {"maze/evo": "01"}}'),
        ("results/base/0.json", '{"study": "DIGEST", "tokens": {}, "cpu_s": 1, "outcomes": {"x/y": "01"}}'),
        ("panels.json", '{"study": "DIGEST", "panels": [1]}'),
    ],
)
def test_damaged_files_are_named(tmp_path, name, text):
    run_study(study(seeds=(0,)), tmp_path)
    (tmp_path / name).write_text(text.replace("DIGEST", study(seeds=(0,)).digest()))
    with pytest.raises(CorruptRecord, match=name.replace(".", r"\.")):
        read_results(study(seeds=(0,)), tmp_path)


def test_a_full_disk_is_no_failure_of_the_arm(tmp_path, monkeypatch):
    def full(self, arm, seed, *, result):
        raise NoSpace("no space left")

    monkeypatch.setattr(StudyResults, "write", full)
    with pytest.raises(NoSpace):
        run_study(study(seeds=(0,)), tmp_path)


# ---------------------------------------------------------------- several processes


def test_what_another_process_holds_is_left_to_it(tmp_path):
    events = []
    freeze_study(study(seeds=(0, 1)), tmp_path)
    with hold_lock(tmp_path / "locks" / "base" / "0"):
        found = run_study(study(seeds=(0, 1)), tmp_path, observe=events.append)
    assert {seed for _, seed in found} == {1}
    states = {(event.arm, event.state) for event in events if event.seed == 0}
    assert states == {("base", "held"), ("evolve", "waits"), ("control", "waits")}
    assert len(run_study(study(seeds=(0, 1)), tmp_path)) == 6


def test_a_run_that_is_held_elsewhere_is_no_failure(tmp_path):
    def play(seat):
        if seat.arm == "evolve":
            raise Locked("the run has a writer", pid=1, host="other")
        return answers(seat)

    assert list(run_study(study(play, seeds=(0,)), tmp_path)) == [("base", 0), ("control", 0)]


def test_two_at_once_share_the_work(tmp_path):
    seen, gate = [], threading.Barrier(2)

    def play(seat):
        if seat.arm == "base" and seat.seed < 2:
            gate.wait(timeout=20)  # both are at work at the same time
        seen.append((seat.arm, seat.seed))
        time.sleep(0.002)
        return answers(seat)

    workers = [threading.Thread(target=run_study, args=(study(play), tmp_path)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert sorted(seen) == sorted({(arm, seed) for arm in study().arm_names for seed in range(6)})
    assert len(read_results(study(), tmp_path)) == 18


def test_a_killed_process_leaves_nothing_held(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom evolvent.bench.study import run_study\n"
        "from tests.bench.studies import answers, study\n"
        "def play(seat):\n"
        "    if seat.arm == 'control':\n        print('ready', flush=True)\n        time.sleep(60)\n"
        "    return answers(seat)\n"
        f"run_study(study(play, seeds=(0,)), Path({str(tmp_path)!r}))\n"
    )
    root = Path(__file__).parents[2]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=paths) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            events = []
            run_study(study(seeds=(0,)), tmp_path, observe=events.append)
        finally:
            process.send_signal(signal.SIGKILL)
    (held,) = [event for event in events if event.state != "known"]
    assert (held.arm, held.state, f"process {process.pid} " in held.why) == ("control", "held", True)
    assert len(run_study(study(seeds=(0,)), tmp_path)) == 3


# ---------------------------------------------------------------- results


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=9, max_size=9), st.dictionaries(st.text(max_size=5), st.integers() | st.text()))
def test_results_come_back_as_they_were(tmp_path_factory, marks, notes):
    kept = StudyResults(tmp_path_factory.mktemp("study"), "d")
    result = played("".join("01"[mark] for mark in marks), notes=notes)
    kept.write("arm", 3, result=kept.accept(result))
    assert StudyResults(kept._folder, "d").get("arm", 3) == result


def test_nan_in_the_notes_does_not_lose_a_result(tmp_path):
    found = run_study(study(lambda seat: played(notes={"loss": float("nan")}), seeds=(0,)), tmp_path)
    assert found["base", 0].notes == {"loss": "nan"}


@pytest.mark.parametrize(
    ("outcomes", "more", "said"),
    [
        ({}, {}, "are empty"),
        ({"evo": [("t", "k", True)]}, {}, "invalid panel 'evo'"),
        ({"w/evo": []}, {}, "has no task"),
        ({"w/evo": [("t", "k", True), ("t", "k", False)]}, {}, "has no task, or has a task twice"),
        ({"w/evo": [("t", "k", 0.5)]}, {}, "has a success that is not a bool"),
        ({"w/evo": [("t", "k", True)]}, {"tokens": {"computed": -1}}, "tokens.computed: got -1"),
        ({"w/evo": [("t", "k", True)]}, {"tokens": {"computed": 1.5}}, "tokens.computed: got 1.5"),
        ({"w/evo": [("t", "k", True)]}, {"cpu_s": float("nan")}, "cpu_s: got nan"),
        ({"w/evo": [("t", "k", True)]}, {"notes": {"x": object()}}, "notes: are not JSON values"),
    ],
)
def test_what_is_no_result(outcomes, more, said):
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        ArmResult(outcomes, **more)


def test_unscored_episodes_are_no_result():
    with pytest.raises(ScoringError, match="could not be scored: 1 of 2 in w/evo"):
        ArmResult({"w/evo": [("t", "k", True), ("u", "k", None)]})


def _evaluation(world="lookup", tier="evo", split="test", outcomes=(("t", "k", True),)):
    errors = sum(success is None for *_, success in outcomes)
    return Evaluation(world, tier, split, len(outcomes), None, None, None, None, errors, 0, 0, tuple(outcomes))


def test_outcomes_of_evaluations():
    rows = [_evaluation(), _evaluation("maze", "combo", outcomes=(("a", "k", False), ("b", "l", True)))]
    assert collect_outcomes(rows) == {
        "lookup/evo": (("t", "k", True),),
        "maze/combo": (("a", "k", False), ("b", "l", True)),
    }
    with pytest.raises(ConfigError, match="two evaluations of lookup/evo"):
        collect_outcomes([_evaluation(), _evaluation(split="dev")])
    with pytest.raises(ScoringError, match="1 of 1 episodes of lookup/evo could not be scored"):
        collect_outcomes([_evaluation(outcomes=(("t", "k", None),))])


class Verbs:
    """A toy whose fits cost 7 trained and 9 computed tokens."""

    def __init__(self):
        self.fits = 0

    def fit(self, policy, data, stage, **options):
        self.fits += 1
        return object.__new__(Policy)

    def evaluate(self, policy, stage, *, split=None):
        return [_evaluation()], []

    def save(self, policy, folder):
        folder.mkdir(parents=True)

    def load(self, folder):
        return Policy()

    def origin(self, policy):
        return "policy"

    def usage(self):
        return {"trained": 7 * self.fits, "computed": 9 * self.fits, "padded": 3}


class Policy:
    """Nothing."""


def test_what_a_run_cost_is_read_from_its_ledger(tmp_path):
    assert read_costs(tmp_path) == ({"generated": 0, "computed": 0, "trained": 0, "fed": 0}, 0.0)
    for _ in range(2):  # the second time everything is found in the ledger and costs nothing more
        with Run(tmp_path, Verbs()) as run:
            policy = run.fit(run.fit(Policy(), [], "objective"), [], "objective")
            run.evaluate(policy, 1)
    tokens, cpu_s = read_costs(tmp_path)
    assert tokens == {"generated": 0, "computed": 18, "trained": 14, "fed": 0} and 0 <= cpu_s < 5
    assert read_costs(tmp_path, verbs=("evaluate",))[0]["computed"] == 0
    with (tmp_path / "stages.jsonl").open("a") as file:
        file.write("broken\n")
    with pytest.raises(CorruptRecord, match="broken line"):
        read_costs(tmp_path)
