"""A run's ledger: what makes a stage another one, what is refused, and what is never lost; the verbs do nothing."""

import json
from dataclasses import dataclass, replace

import pytest

import evolvent as ev
from evolvent.errors import ConfigError, CorruptRecord, ErrorRecord
from evolvent.run import Run
from evolvent.store.log import read_rows
from evolvent.store.schema import INTERRUPTED
from evolvent.trajectory import trajectory_name

TASKS = [ev.Task("toy", "1", {"n": n}) for n in range(3)]


class Weights:
    """A policy."""

    def __init__(self, number=0):
        self.number = number


class Verbs:
    """Counts what it is asked to do; fails on the episode whose number is `breaks`."""

    def __init__(self, breaks=None):
        self.breaks, self.played, self.fits = breaks, [], 0

    def collect(self, policy, starts, stage, *, temperature=1.0, horizon=None):
        for start in starts:
            if start.task.spec["n"] == self.breaks:
                raise KeyboardInterrupt
            self.played.append(start.task.spec["n"])
            won = None if start.task.spec["n"] == 2 else True
            error = ErrorRecord("EnvLost", "gone") if won is None else None
            done = ev.Trajectory(
                trajectory_name(start, stage.name),
                start.task,
                (ev.Step("o", "a", 1.0),),
                error=error,
                ended_by="error" if error else "world",
                score=ev.Score(success=won),
            )
            stage.store.append(done)
            yield done

    def search(self, policy, starts, stage, *, search, value_model=None):
        return self.collect(policy, starts, stage)

    def label(self, policy, data, stage, *, labeler):
        for one in data:
            if one.task.spec["n"] == self.breaks:
                raise KeyboardInterrupt
            self.played.append(one.task.spec["n"])
            yield one.id, [{"n": one.task.spec["n"], "at": at} for at in range(2)]

    def fit(self, policy, data, stage, **options):
        self.fits += 1
        return Weights(policy.number + 1)

    def save(self, policy, folder):
        folder.mkdir()
        (folder / "number").write_text(str(policy.number))

    def load(self, folder):
        return Weights(int((folder / "number").read_text()))

    def origin(self, policy):
        return str(policy.number)

    def usage(self):
        return {"generated": 10 * len(self.played)}


def starts(*samples):
    return [ev.Start(task, sample) for task in TASKS for sample in samples or (0,)]


def test_an_interrupted_collection_plays_only_what_is_missing(tmp_path):
    with Run(tmp_path, Verbs(breaks=1)) as run, pytest.raises(KeyboardInterrupt):
        run.collect(Weights(), starts())
    verbs = Verbs()
    with Run(tmp_path, verbs) as run:
        found = run.collect(Weights(), starts())
        assert [t.task for t in found] == TASKS and verbs.played == [1, 2]
    (row,) = read_rows(tmp_path / "stages.jsonl")
    assert row["result"] == {"episodes": 3, "success": 2, "errors": 1}, "who was not scored is no failure"
    assert row["counts"] == {"generated": 30}, "what the interrupted try had cost is counted"


def test_what_a_killed_try_noted_is_counted(tmp_path):
    """A process that was killed has run no `finally`: what it noted while it worked is there all the same."""

    class Noting(Verbs):
        def collect(self, policy, starts, stage, **options):
            for trajectory in super().collect(policy, starts, stage, **options):
                stage.log({"step": 1})
                yield trajectory

    with Run(tmp_path, Noting(breaks=2)) as run, pytest.raises(KeyboardInterrupt):
        run.collect(Weights(), starts())
    (spent,) = tmp_path.glob("stages/*/spent.json")
    noted = json.loads(spent.read_text())
    assert noted["generated"] == 20
    spent.write_text(json.dumps({**noted, "cpu_s": 1000.0}))
    with Run(tmp_path, Verbs()) as run:
        run.collect(Weights(), starts())
    (row,) = read_rows(tmp_path / "stages.jsonl")
    assert row["counts"] == {"generated": 30} and 1000 <= row["cpu_s"] < 1100


def test_an_episode_that_reads_as_interrupted_is_played_again(tmp_path):
    class Streams(Verbs):
        def collect(self, policy, starts, stage, *, temperature=1.0, horizon=None):
            name = trajectory_name(starts[0], stage.name)
            stage.store.begin(name, starts[0].task)
            stage.store.step(name, ev.Step("o", "a", 1.0))
            raise KeyboardInterrupt
            yield

    with Run(tmp_path, Streams()) as run, pytest.raises(KeyboardInterrupt):
        run.collect(Weights(), starts())
    assert [t.error.kind for t in ev.Store.open(tmp_path / "trajectories").trajectories()] == [INTERRUPTED]
    verbs = Verbs()
    with Run(tmp_path, verbs) as run:
        assert run.collect(Weights(), starts())[0].success
    assert verbs.played == [0, 1, 2]


def test_the_same_start_twice_is_refused_before_anything_is_played(tmp_path):
    verbs = Verbs()
    with Run(tmp_path, verbs) as run, pytest.raises(ConfigError, match=r"same task and sample.*Give each sample"):
        run.collect(Weights(), starts(0, 1, 0))
    assert not verbs.played


@dataclass(frozen=True)
class Twice:
    by: float = 2.0

    def __call__(self, trajectory):
        return self.by


def test_a_finished_fit_is_known_by_content_weight_and_settings(tmp_path):
    verbs = Verbs()
    first = ev.Trajectory("t", TASKS[0], (ev.Step("o", "a", 1.0),))
    edited = replace(first, steps=(ev.Step("o", "b", 1.0),))

    def fit(data, weight=None, settings=None):
        with Run(tmp_path, verbs, settings=settings) as run:
            run.fit(Weights(), [data], "nll", weight=weight)
        return verbs.fits

    assert [fit(first), fit(first), fit(edited), fit(edited)] == [1, 1, 2, 2]
    assert [fit(first, Twice()), fit(first, Twice()), fit(first, Twice(3.0))] == [3, 3, 4]
    assert [fit(first, settings={"fit": "lr 1"}), fit(first, settings={"fit": "lr 2", "collect": "x"})] == [5, 6]
    assert fit(first, settings={"fit": "lr 2", "collect": "y"}) == 6, "what it does not depend on"
    with pytest.raises(ConfigError, match=r"this weight has no unique identity.*frozen dataclass"):
        fit(first, lambda trajectory: 1.0)


def test_a_search_is_known_by_how_and_by_its_judge(tmp_path):
    verbs = Verbs()

    def searched(how, judge=None):
        with Run(tmp_path, verbs) as run:
            found = run.search(Weights(), [ev.Start(TASKS[0])], how, value_model=judge)
        assert [one.task for one in found] == [TASKS[0]]
        return len(verbs.played)

    assert [searched("beam 4"), searched("beam 4"), searched("beam 8")] == [1, 1, 2]
    assert [searched("beam 4", Weights(7)), searched("beam 4", Weights(7)), searched("beam 4", Weights(8))] == [3, 3, 4]
    with Run(tmp_path, verbs) as run:
        run.collect(Weights(), [ev.Start(TASKS[0])])
        assert len(verbs.played) == 5, "a search is no plain collection"
        with pytest.raises(ConfigError, match=r"this search has no unique identity.*frozen dataclass"):
            run.search(Weights(), [ev.Start(TASKS[0])], lambda root: root)


def test_an_interrupted_labelling_goes_on(tmp_path):
    data = [ev.Trajectory(f"t{n}", task, (ev.Step("o", "a", 1.0),)) for n, task in enumerate(TASKS[:3])]
    last = TASKS[2].spec["n"]
    verbs = Verbs(breaks=last)
    with Run(tmp_path, verbs) as run, pytest.raises(KeyboardInterrupt):
        run.label(Weights(), data, "four of each")
    verbs.breaks = None
    for _ in range(2):
        with Run(tmp_path, verbs) as run:
            rows = run.label(Weights(), data, "four of each")
        numbers = [task.spec["n"] for task in TASKS[:3]]
        assert [(row["n"], row["at"]) for row in rows] == [(n, at) for n in numbers for at in range(2)]
        assert verbs.played == numbers, "each once"


def test_labels_of_different_trajectories_of_one_id_are_refused(tmp_path):
    """They would come back as those of one of them: whichever ended last. The same one twice is no mistake."""
    first, verbs = ev.Trajectory("t", TASKS[0], (ev.Step("o", "a", 1.0),)), Verbs()
    with Run(tmp_path, verbs) as run:
        with pytest.raises(ConfigError, match="different trajectories have the same id"):
            run.label(Weights(), [first, replace(first, task=TASKS[1])], "four of each")
        assert not verbs.played
        assert [row["n"] for row in run.label(Weights(), [first, first], "four of each")] == [0] * 4


def test_a_measurement_that_is_alone_costs_what_it_did_alone(tmp_path):
    """What a practice plays ahead of it and after it is the practice's, as is what it plays beside it."""

    class Ahead(Verbs):
        def evaluate(self, policy, stage, *, split=None):
            self.played += [1, 1]
            with stage.exclusive():
                self.played += [2]
                stage.log({"step": 1})
                noted.append(json.loads((stage.folder / "spent.json").read_text())["generated"])
            self.played += [3]
            return [], []

        def train_rl(self, policy, stage, *, spec):
            return Practised(policy)

    class Practised:
        def __init__(self, policy):
            self.policy = policy

        def close(self):
            pass

    noted, verbs = [], Ahead()
    with Run(tmp_path, verbs) as run:
        with run.train_rl(Weights(), "setup") as practice:
            verbs.played += [0]
            run.evaluate(practice.policy, 1)
    counts = {row["verb"]: row["counts"] for row in read_rows(tmp_path / "stages.jsonl")}
    assert counts == {"evaluate": {"generated": 10}, "practise": {"generated": 40}}
    assert noted == [10]


def test_a_broken_ledger_gives_the_folder_back(tmp_path):
    (tmp_path / "stages.jsonl").write_text('{"key": "a"\n{"key": "b"}\n')
    with pytest.raises(CorruptRecord, match="broken line"):
        Run(tmp_path, Verbs())
    (tmp_path / "stages.jsonl").write_text('{"key": "a", "name": "x"}\n{"key": "b"}')
    with Run(tmp_path, Verbs()) as run:
        assert len(run._shared.ledger) == 1 and run._shared.ledger.get("a"), (
            "a line without its end is torn, whatever it says"
        )
