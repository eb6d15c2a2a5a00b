"""A whole run in this process: stages are kept, shared, resumed to the same result, and locked."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

import evolvent as ev
from evolvent.errors import Locked
from evolvent.learn.token_sequences import flatten
from evolvent.methods.agentevol import AgentEvolConfig
from evolvent.scale.local_backend import EvaluationPanel
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.lookup import Lookup
from evolvent.worlds.panel import Sizes
from tests.faults.launched import Launched

JOB = Path(__file__).with_name("local_job.py")


def job(folder: Path, *, told: bool = False) -> tuple[int, list[str]]:
    """Run the job to its end: the exit code, and what it says; `told`: also of stages that it did not do again."""
    with Launched(1, [JOB, folder], cwd=folder.parent) as process:
        (code,) = process.wait(seconds=300)
        lines = process.said().splitlines()
        return code, [line for line in lines if told or not line.startswith("read from the earlier run")]


def count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def results(folder: Path):
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return sorted((r["arm"], r["round"], r["tier"], json.dumps(r["outcomes"])) for r in rows)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job") / "whole"
    assert job(folder) == (0, ["stage"] * 7)
    return folder


def test_both_arms_are_measured_and_share_the_cloning(whole):
    assert {(arm, number) for arm, number, _, _ in results(whole)} == {("base", 0), ("evolve", 1), ("control", 1)}
    verbs = [json.loads(line)["name"].rsplit("-", 1)[0] for line in (whole / "stages.jsonl").read_text().splitlines()]
    assert verbs == [
        "base-0-fit",
        "base-0-evaluate",
        "evolve-1-collect",
        "evolve-1-fit",
        "evolve-1-evaluate",
        "control-1-fit",
        "control-1-evaluate",
    ]


def test_control_learns_as_many_tokens_on_the_same_schedule(whole):
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    fits = {arm: [r for r in rows if r.get("arm") == arm and r["kind"] == "fit"] for arm in ("evolve", "control")}
    tokens = {arm: sum(r["tokens"] for r in fit) for arm, fit in fits.items()}
    update = max(r["tokens"] for fit in fits.values() for r in fit)  # a fit ends with the update that passes its budget
    assert abs(tokens["evolve"] - tokens["control"]) <= update
    assert fits["evolve"][0]["lr"] == fits["control"][0]["lr"], "warm-up begins alike"


def written(folder: Path, what: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(what) if path.is_file())


def killed(folder: Path, stages: int, what: str) -> int:
    """Kill the job after so many stages when files of the next one have grown; how many stages are finished."""
    ledger, out = folder / "stages.jsonl", folder.parent / ".out-0"
    out.unlink(missing_ok=True)
    before = count(ledger)
    with Launched(1, [JOB, folder], cwd=folder.parent) as process:
        if stages > before:
            process.until(out, stages - before)
        begun = written(folder, what)
        while written(folder, what) <= begun and process.processes[0].is_alive():
            time.sleep(0.005)
        process.signal(signal.SIGKILL)
        assert process.wait() == [-signal.SIGKILL]
        said = [line for line in process.said().splitlines() if not line.startswith("read from the earlier run")]
    finished = count(ledger)  # the next stage may have ended before the signal came
    assert said == ["stage"] * len(said) and len(said) <= finished - before, "finished stages are not done again"
    assert stages <= finished < 7
    return finished


def test_a_run_killed_three_times_resumes_to_the_same_result(whole, tmp_path):
    """It is killed while it clones, while it explores, and while it learns from that."""
    folder = tmp_path / "run"
    killed(folder, 0, "metrics.jsonl")
    killed(folder, 2, "trajectories/log/*")
    finished = killed(folder, 3, "metrics.jsonl")
    assert job(folder) == (0, ["stage"] * (7 - finished)), "finished stages are not done again"
    assert results(folder) == results(whole)
    weights = [(one / "model" / "model.safetensors").read_bytes() for one in (whole, folder)]
    assert weights[0] == weights[1], "bit for bit"


def test_a_finished_run_does_nothing_again(whole, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    code, (line,) = job(copy, told=True)
    assert code == 0 and line.startswith(f"read from the earlier run in {copy}, not done again: base-0-fit-")
    assert len(line.rpartition(": ")[2].split(", ")) == 7
    assert results(copy) == results(whole)


def test_two_writers_are_refused(whole):
    with ev.local_run(whole, [ev.Lookup()]):
        with pytest.raises(Locked, match=f"Process {os.getpid()}"):
            ev.local_run(whole, [ev.Lookup()])


def test_every_episode_is_in_the_store(whole):
    found = list(ev.Store.open(whole / "trajectories").trajectories())
    assert len(found) == 3 * 32 + 60
    assert len({t.id for t in found}) == len(found)


def test_null_evolution_equals_continued_cloning_bit_for_bit(tmp_path):
    world = ev.Lookup()
    seen = world.tasks("train", "seen")
    demonstrations = ev.collect_demonstrations([world], seen[:20])
    digests = []
    for name, change in (("explores", {"samples_per_task": 1}), ("idle", {"samples_per_task": 0})):
        config = AgentEvolConfig(iterations=2, clone_tokens=1000, round_tokens=800, keep="none", **change)
        with ev.local_run(tmp_path / name, [world], panel=EvaluationPanel(limit=2, tiers=("seen",))) as run:
            policy = ev.agentevol(ev.make_policy([world]), seen[20:24], demonstrations, config=config, run=run)
            digests.append(run._verbs.origin(policy))
    assert digests[0] == digests[1]


def test_names_that_mean_something_are_shown_once():
    """The one book of the workshop has its own names; other worlds beside it are shown in as many namings as asked."""
    book, free = Crafting("own"), Crafting(sizes=Sizes(train=20, dev=10, test=10))
    tasks = [book.tasks("train", "seen")[0], free.tasks("train", "seen")[0]]
    shown = ev.collect_demonstrations([book, free], tasks, namings=3)
    assert [one.task.world for one in shown].count(book.name) == 1
    assert [one.task.world for one in shown].count(free.name) == 3


def test_demonstrations_that_fail_are_refused():
    class Wrong(ev.Lookup):
        def expert(self, task):
            return ["answer nobody"]

    with pytest.raises(ev.ConfigError, match="demonstrations did not succeed"):
        ev.collect_demonstrations([Wrong()], Wrong().tasks("train", "seen")[:3])


def test_two_arms_that_come_to_the_same_policy_are_both_reported(tmp_path):
    world = ev.Lookup()
    demonstrations = ev.collect_demonstrations([world], world.tasks("train", "seen")[:5])
    config = AgentEvolConfig(iterations=1, samples_per_task=0, clone_tokens=300, round_tokens=300)
    with ev.local_run(tmp_path, [world], panel=EvaluationPanel(limit=2, tiers=("seen",))) as run:
        for arm in ("evolve", "control"):
            ev.agentevol(ev.make_policy([world]), [], demonstrations, config=config, run=run.arm(arm))
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(row["arm"], row["round"]) for row in rows] == [("base", 0), ("evolve", 1), ("control", 1)]
    assert len((tmp_path / "stages.jsonl").read_text().splitlines()) == 4, "played once"


def test_the_context_holds_what_the_experts_do():
    """Households have long texts: a policy made for them has room for the demonstrations; for lookup 256 is enough."""
    small = Sizes(train=30, dev=20, test=20)
    household = HouseholdWorld(sizes=small)
    assert ev.make_policy([Lookup(sizes=small)]).context == 256
    policy = ev.make_policy([Lookup(sizes=small), household])
    assert policy.context >= 512
    shown = ev.collect_demonstrations([household], household.tasks("train", "seen"))
    flat = flatten(shown, policy.dialect, instructions=lambda task: household.instructions, context=policy.context)
    assert not flat.refused
