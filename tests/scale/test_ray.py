"""A run on a cluster of two nodes: what it plays, searches and labels is what is played here, whatever is killed."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial

import numpy as np
import psutil
import pytest

pytest.importorskip("ray")

import evolvent as ev
from evolvent.curate.shards import list_shards
from evolvent.curate.stages import transform
from evolvent.errors import BatchMismatch, ConfigError, EngineError, NothingToLearn, VersionMismatch, VocabularyMismatch
from evolvent.learn.annotate import annotate
from evolvent.learn.sources import vocabulary_digest
from evolvent.learn.token_sequences import TokenSequence
from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.reward.labelling import LabellingConfig
from evolvent.rl.trainer import RLConfig
from evolvent.scale import ray_data
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.scale.ray_annotate import annotate_on_cluster
from evolvent.scale.ray_backend import RayBackend
from evolvent.scale.ray_cluster import Cluster, Placement, connect, parse_cluster
from evolvent.scale.ray_data import transform_on_cluster
from evolvent.scale.ray_players import WorldFactory, open_players
from evolvent.scale.ray_versions import read_versions
from evolvent.search.settings import ForestConfig, SearchConfig
from evolvent.store.store import Store
from evolvent.trajectory import Start
from tests.learn.byte_policy import byte_policy
from tests.scale.ray_nodes import node_of, simulated
from tests.scale.ray_worlds import Marking, made

PLACING = Placement(players=2, resources={"place": 1}, lost_s=120)


@pytest.fixture(scope="module")
def cluster():
    with simulated(2) as (found, nodes):
        with connect(Cluster(found.address)):
            yield found, nodes


@pytest.fixture(scope="module")
def crew(cluster):
    with open_players(
        Cluster(cluster[0].address, PLACING), WorldFactory("tests.scale.ray_worlds:made"), made()
    ) as found:
        yield found


@pytest.fixture(scope="module")
def policy():
    return byte_policy(context=256, seed=3)


def verbs(kind=LocalBackend, **more):
    train = ev.TrainConfig(lr=2e-3, weight_decay=0.0, warmup_steps=0, final_lr_ratio=1.0, batch_tokens=2048)
    return kind(made(), train, EvaluationPanel(limit=4), slots=4, max_tokens=4, **more)


def starts(count):
    return [Start(task) for task in made()["pausing"].tasks("train", "seen")[:count]]


def stored(folder):
    """The lines of a run's store by id; ids that are there twice fail."""
    lines = [
        one for path in sorted((folder / "trajectories" / "log").iterdir()) for one in path.read_bytes().splitlines()
    ]
    rows = [json.loads(line) for line in lines]
    found = {row["traj"]: {**row, "crc": 0, "run": ""} for row in rows if row["kind"] == "trajectory"}
    assert len(found) == len([row for row in rows if row["kind"] == "trajectory"]), "doubled"
    return found


def whole(folder, using, policy):
    """Collecting, measuring and practising: what a run plays, and what it learns of that."""
    with ev.Run(folder, using, seed=5, settings=using.settings()) as run:
        played = run.collect(policy, starts(20), temperature=1.2)
        rows = run.evaluate(policy, 0)
        ahead = {"prefetch_rollouts": True, "max_policy_lag": 1}  # the second iteration is played ahead
        practice = RLConfig(iterations=2, tasks_per_iteration=2, group_size=3, temperature=1.3, **ahead)
        tasks = made()["pausing"].tasks("train", "seen")
        best = grpo(policy, tasks, config=GRPOConfig(practice=practice), run=run.arm("grpo"))
    return played, [row.outcomes for row in rows], best


def test_a_run_there_is_the_run_here(tmp_path, crew, policy):
    played, rows, best = whole(tmp_path / "here", verbs(), policy)
    there = verbs(RayBackend, players=crew)
    played_there, rows_there, best_there = whole(tmp_path / "there", there, policy)
    assert played_there == played and rows_there == rows
    assert stored(tmp_path / "there") == stored(tmp_path / "here"), "bit for bit, log-probabilities included"
    for own, other in zip(best_there.model.parameters(), best.model.parameters(), strict=True):
        assert bool((own == other).all())
    assert best_there.version == best.version == 2
    assert len(set(crew.pids())) == 2 and crew.counts["lost"] == crew.counts["twice"] == 0
    assert there.usage()["generated"] == sum(row["sampled"] for row in sampled(tmp_path / "here"))


def sampled(folder):
    return [{"sampled": one.count_generated_tokens()} for one in Store.open(folder / "trajectories").trajectories()]


@pytest.mark.parametrize("kind", [SearchConfig, partial(ForestConfig, forest=2)])
def test_searches_and_labels_there_are_those_here(tmp_path, crew, policy, kind):
    def both(folder, using):
        with ev.Run(folder, using, seed=2, settings=using.settings()) as run:
            tasks = [Start(task) for task in Marking().tasks("train", "seen")[:6]]
            how = kind(method="sampled_tree", value="none", paths=3, max_tokens=6, generated=200)
            found = run.search(policy, tasks, how)
            data = run.collect(policy, tasks[:3])
            rows = run.label(policy, data, LabellingConfig(kind="shepherd", count=2, max_tokens=6, separators=("e",)))
        (folder_of,) = (folder / "stages").glob("*search*")
        told = [
            json.loads(line)
            for name in ("searches", "trees")
            for line in (folder_of / f"{name}.jsonl").read_text().splitlines()
        ]
        for one in told:
            one.get("spent", {}).pop("seconds", None)
            one.get("spent", {}).pop("computed", None)
        return found, rows, sorted(told, key=lambda one: (len(one), one["id"]))

    here, there = both(tmp_path / "here", verbs()), both(tmp_path / "there", verbs(RayBackend, players=crew))
    assert here == there
    assert len(here[0]) == 6 and here[1] and len(here[2]) == 10


def test_a_run_that_is_interrupted_there_goes_on_there_and_here(tmp_path, crew, policy):
    whole_run = verbs()
    with ev.Run(tmp_path / "whole", whole_run, seed=1, settings=whole_run.settings()) as run:
        run.collect(policy, starts(24))
    folder = tmp_path / "cut"
    for stop in (5, 9):
        with pytest.raises(KeyboardInterrupt):
            cut(folder, verbs(RayBackend, players=crew), policy, stop)
        assert stop <= len(stored(folder)) < 24
    with ev.Run(folder, verbs(), seed=1, settings=whole_run.settings()) as run:
        run.collect(policy, starts(24))
    assert stored(folder) == stored(tmp_path / "whole")


def cut(folder, using, policy, stop):
    """Collect until so many episodes have ended, and be interrupted there."""
    play = using.collect

    def interrupted(*given, **named):
        with closing(play(*given, **named)) as playing:
            for count, one in enumerate(playing, 1):
                yield one
                if count == stop:
                    raise KeyboardInterrupt

    using.collect = interrupted
    with ev.Run(folder, using, seed=1, settings=using.settings()) as run:
        run.collect(policy, starts(24))


def test_other_kinds_of_settings_are_refused(tmp_path, crew, policy):
    class Own(SearchConfig):
        pass

    using = verbs(RayBackend, players=crew)
    with ev.Run(tmp_path / "run", using, settings=using.settings()) as run:
        with pytest.raises(ConfigError, match="Own does not travel"):
            run.search(policy, starts(1), Own())


# ------------------------------------------------------------------ data


def test_shards_made_there_are_the_bytes_of_those_made_here(tmp_path, cluster):
    import ray

    from tests.scale.ray_worlds import Doubled

    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(40)) + "no json\n", encoding="utf-8")
    shards, own = list_shards(data, rows=7), (Doubled(but=3),)
    here = transform(shards, own, tmp_path / "here.jsonl", cache=tmp_path / "a")
    seen: list[tuple[int, int]] = []
    placing = Placement(players=2, cpus=0)  # beside the players, which have all the processors
    there = transform_on_cluster(
        shards,
        own,
        tmp_path / "there.jsonl",
        ray=ray,
        cache=tmp_path / "b",
        placement=placing,
        progress=lambda done, of: seen.append((done, of)),
    )
    assert here == there and there.reused == 0 and there.refused["three"] == 1 and len(there.refused) == 2
    assert (tmp_path / "here.jsonl").read_bytes() == (tmp_path / "there.jsonl").read_bytes()
    assert seen == [(n, 6) for n in range(1, 7)]
    files = [sorted((path.name, path.read_bytes()) for path in (tmp_path / name).iterdir()) for name in "ab"]
    assert files[0] == files[1], "the shards too, so that either goes on with what the other has made"
    again = transform_on_cluster(
        shards, own, tmp_path / "again.jsonl", ray=ray, cache=tmp_path / "b", placement=placing
    )
    assert again.reused == 6 and again.sha256 == here.sha256
    third = {"ray": ray, "cache": tmp_path / "c", "placing": placing}
    with pytest.raises(NothingToLearn):
        transform_on_cluster(shards[:1], (Doubled(but=None),), tmp_path / "no.jsonl", **third)
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        transform_on_cluster(shards[:1], (Doubled(but=-1),), tmp_path / "no.jsonl", **third)


def test_a_node_with_other_packages_makes_no_shards(tmp_path, cluster, monkeypatch):
    """Here the run has them: what is compared is what both sides say."""
    import ray

    from tests.scale.ray_worlds import Doubled

    data = tmp_path / "rows.jsonl"
    data.write_text('{"n": 1}\n', encoding="utf-8")
    monkeypatch.setattr(ray_data, "versions", lambda: {**read_versions(), "transformers": "0"})
    with pytest.raises(VersionMismatch, match="'transformers': '0'"):
        transform_on_cluster(
            list_shards(data, rows=7),
            (Doubled(but=3),),
            tmp_path / "out.jsonl",
            ray=ray,
            cache=tmp_path / "cache",
            placement=Placement(players=1, cpus=0),
        )


def many_parts(count):
    """Of every length up to 40, as a trajectory that was cloned would give them."""
    rng = np.random.default_rng(0)
    for number in range(count):
        length = 2 + number % 39
        weight = np.ones(length, np.float32)
        weight[0] = 0
        flags, zeros = np.ones(length, bool), np.zeros(length, np.int32)
        yield TokenSequence(
            f"one/{number}",
            rng.integers(1, 90, length).astype(np.int32),
            flags,
            ~flags,
            np.zeros(length, np.float32),
            zeros,
            zeros,
            weight,
            group=f"{number}",
        )


def test_annotation_on_a_cluster_is_the_one_here(cluster, policy):
    import ray

    words = vocabulary_digest(policy.tokenizer)
    placing = Placement(players=2, cpus=0)
    here = list(annotate(policy, many_parts(1300), vocabulary=words, teacher_k=3))
    there, killed = [], 0
    for one in annotate_on_cluster(policy, many_parts(1300), ray=ray, vocabulary=words, teacher_k=3, placement=placing):
        there.append(one)
        if len(there) == 10:  # the first window is here, others are under way
            killed = kill_workers("Annotator")
    assert killed, "no annotator was found to kill"
    assert [one.trajectory for one in there] == [one.trajectory for one in here]
    for own, other in zip(here, there, strict=True):
        assert own.columns.keys() == other.columns.keys()
        assert all(np.array_equal(own.columns[name], other.columns[name]) for name in own.columns)
    with pytest.raises(VocabularyMismatch):
        annotate_on_cluster(policy, many_parts(1), ray=ray, vocabulary="another", placement=placing)
    with pytest.raises(BatchMismatch):
        list(annotate_on_cluster(byte_policy(context=8), many_parts(20), ray=ray, vocabulary=words, placement=placing))


def kill_workers(name):
    """Kill -9 one actor's process of this name on this machine."""
    found = [one for one in psutil.process_iter(["cmdline"]) if f"ray::{name}" in " ".join(one.info["cmdline"] or ())]
    for one in found[:1]:
        one.kill()
    return len(found)


# ------------------------------------------------------------------ what is killed; the last, because a node is gone


def test_a_node_is_killed_and_nothing_is_lost_or_doubled(tmp_path, cluster, crew, policy):
    found, nodes = cluster
    here = verbs()
    with ev.Run(tmp_path / "here", here, seed=4, settings=here.settings()) as run:
        expected = run.collect(policy, starts(60))
    using = verbs(RayBackend, players=crew)
    play, before = using.collect, crew.counts.copy()

    def hurt(*given, **named):
        for count, one in enumerate(play(*given, **named), 1):
            yield one
            if count == 6:
                found.remove_node(node_of(crew.pids()[0], nodes), allow_graceful=False)

    using.collect = hurt
    with ev.Run(tmp_path / "there", using, seed=4, settings=using.settings()) as run:
        assert run.collect(policy, starts(60)) == expected
    assert stored(tmp_path / "there") == stored(tmp_path / "here")
    assert crew.counts["lost"] == before["lost"] + 1 and crew.counts["again"] > before["again"]
    assert crew.counts["twice"] == 0 and len(crew.pids()) == 1, "a replacement waits for a node"


def test_no_room_is_said_at_once(cluster):
    with pytest.raises(ConfigError, match="no node has room"):
        with open_players(
            parse_cluster(f"{cluster[0].address}?elsewhere=1"), WorldFactory("tests.scale.ray_worlds:made"), made()
        ):
            pass
