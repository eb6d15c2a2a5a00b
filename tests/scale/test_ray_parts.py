"""What lies between a run and its players on Ray, without Ray: addresses, dealing, messages, and a player by itself."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evolvent as ev
from evolvent.agents.candidates import CandidateAgent
from evolvent.agents.history import Summarise, Window
from evolvent.agents.language import LanguageAgent
from evolvent.agents.plain import Expert, Random, Script
from evolvent.cli.collect import CollectConfig
from evolvent.cli.eval import EvalConfig
from evolvent.cli.evolve import EvolveConfig
from evolvent.cli.train.rl_settings import TrainRLConfig
from evolvent.cli.train.search import TrainOpenRConfig, TrainTSLLMConfig
from evolvent.config import resolve
from evolvent.curate.shards import list_shards
from evolvent.engine.asks import Sampling
from evolvent.engine.fitting import engine_for
from evolvent.errors import ConfigError
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.rollout.episode import BranchedStarts, BranchOrigins, collect
from evolvent.rollout.search import SearchPlayer as Searcher
from evolvent.rollout.search import search_starts
from evolvent.scale.ray_cluster import Placement, count_player_slots, parse_cluster
from evolvent.scale.ray_data import process_shard
from evolvent.scale.ray_player import Player
from evolvent.scale.ray_players import make_error
from evolvent.scale.ray_versions import read_versions
from evolvent.scale.ray_wire import (
    PolicyPacker,
    agent_from_row,
    agent_to_row,
    build_message,
    load_policy_files,
    parse_message,
    read_policy_files,
    start_from_row,
    start_to_row,
    trajectory_from_line,
    trajectory_to_line,
)
from evolvent.scale.ray_work import WorkItem, WorkQueue
from evolvent.search.settings import ForestConfig, SearchConfig
from evolvent.trajectory import Branch, Start
from tests.learn.byte_policy import byte_policy
from tests.scale.ray_worlds import Doubled, made


@pytest.fixture(scope="module")
def policy():
    return byte_policy(context=256, seed=3)


# ------------------------------------------------------------------ where


def test_an_address_says_where_and_what_a_player_takes():
    assert parse_cluster("ray").address is None and parse_cluster("ray").placement == Placement()
    assert parse_cluster("ray://head.example:10001").address == "ray://head.example:10001"
    found = parse_cluster("10.0.0.1:6379?players=3&cpus=4&gpus=0.5&minecraft=1")
    assert found.address == "10.0.0.1:6379"
    assert found.placement == Placement(3, 4.0, 0.5, {"minecraft": 1.0})
    assert found.placement.ray_resources() == {"CPU": 4.0, "GPU": 0.5, "minecraft": 1.0}


@pytest.mark.parametrize(
    "told",
    [
        "",
        "local",
        "host",
        "host:",
        ":6379",
        "host:99999",
        "http://host:1",
        "ray?players=0",
        "ray?players=1.5",
        "ray?cpus=many",
        "ray?cpus=nan",
        "ray?cpus=-1",
        "ray?cpus",
        "ray?&",
    ],
)
def test_an_address_that_is_none_is_refused(told):
    with pytest.raises(ConfigError):
        parse_cluster(told)


def test_all_that_is_wrong_with_an_address_is_said_at_once():
    with pytest.raises(ConfigError) as caught:
        parse_cluster("nowhere?players=none&cpus=x")
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    "config", [CollectConfig, EvalConfig, EvolveConfig, TrainRLConfig, TrainOpenRConfig, TrainTSLLMConfig]
)
def test_commands_take_a_place_and_refuse_what_is_none(config):
    more = ["--policy", "xs"] if config is EvalConfig else []
    assert resolve(config, overrides=[*more, "--on", "ray?players=2"]).backend == "ray?players=2"
    with pytest.raises(ConfigError, match="expected ray, HOST:PORT"):
        resolve(config, overrides=[*more, "--on", "nowhere"])


def test_an_endpoint_is_not_played_on_a_cluster():
    asked = ["--agent", "endpoint", "--endpoint", "http://127.0.0.1:1/v1", "--model", "m"]
    assert resolve(CollectConfig, overrides=asked).backend == "here"
    with pytest.raises(
        ConfigError, match="--on works only with --agent expert, random or policy, and without a memory"
    ):
        resolve(CollectConfig, overrides=[*asked, "--on", "ray"])
    served = ["--endpoint", "http://127.0.0.1:1/v1", "--model", "m", "--hand_over", "handed"]
    assert resolve(TrainRLConfig, overrides=served).backend == "here"
    with pytest.raises(ConfigError, match="--endpoint and --on cannot be combined; pass only one of them"):
        resolve(TrainRLConfig, overrides=[*served, "--on", "ray"])


class Nodes:
    def __init__(self, *resources):
        self._nodes = [{"Alive": True, "Resources": one} for one in resources]

    def nodes(self):
        return [*self._nodes, {"Alive": False, "Resources": {"CPU": 1000}}]


def test_room_is_counted_node_by_node():
    """Two nodes of three processors hold two players of two, not three."""
    assert count_player_slots(Nodes({"CPU": 3}, {"CPU": 3}), Placement(cpus=2)) == 2
    assert count_player_slots(Nodes({"CPU": 8, "a": 1}, {"CPU": 8}), Placement(resources={"a": 0.5})) == 2
    with pytest.raises(ConfigError, match="no node has room"):
        count_player_slots(Nodes({"CPU": 8}), Placement(gpus=1))


# ------------------------------------------------------------------ dealing


def items(count):
    return [WorkItem(str(n), {"n": n}) for n in range(count)]


def test_one_player_is_dealt_everything_at_once():
    todo = WorkQueue(items(1000), slots=8)
    assert len(todo.next_slice(1)) == 1000 and not todo.has_waiting and len(todo) == 1000


def test_slices_become_smaller_until_they_fill_the_slots():
    todo, sizes = WorkQueue(items(640), slots=16), []
    while todo.has_waiting:
        sizes.append(len(todo.next_slice(2)))
    assert sum(sizes) == 640 and sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 160 and min(sizes[:-1]) == 16
    few = WorkQueue(items(20), slots=16)
    assert [len(few.next_slice(2)), len(few.next_slice(2))] == [10, 10], "all take part"


def test_slices_are_whole_rounds_of_slots():
    """Episodes of one length would leave slots idle at the end of every slice that is not."""
    todo, sizes = WorkQueue(items(96), slots=8), []
    while todo.has_waiting:
        sizes.append(len(todo.next_slice(2)))
    assert sum(sizes) == 96 and all(size % 8 == 0 for size in sizes) and len(sizes) > 3


def test_what_counts_once_counts_once():
    todo = WorkQueue(items(2), slots=1)
    assert todo.finish("0") == WorkItem("0", {"n": 0})
    assert todo.finish("0") is None and len(todo) == 1


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 60), slots=st.integers(1, 20), deadly=st.integers(0, 59), data=st.data())
def test_an_item_that_kills_its_player_is_found_and_the_others_end(count, slots, deadly, data):
    """Players end some of a slice; one that holds the deadly item dies with what it has not handed over."""
    todo, ended, killed = WorkQueue(items(count), slots=slots), [], []
    players = data.draw(st.integers(1, 4))
    for _ in range(2000):
        if not todo:
            break
        part = todo.next_slice(players)
        assert part, "what has not ended is dealt again"
        cut = len(part)
        if any(item.key == str(deadly) for item in part):
            cut = data.draw(st.integers(0, [item.key for item in part].index(str(deadly))))
        ended += [item.key for item in part[:cut] if todo.finish(item.key) is not None]
        if cut < len(part):
            killed += todo.put_back(part[cut:])
    assert not todo
    assert sorted([*ended, *(item.key for item in killed)], key=int) == [str(n) for n in range(count)]
    assert [item.key for item in killed] == ([str(deadly)] if deadly < count else [])


def test_lost_items_come_again_in_smaller_slices():
    todo = WorkQueue(items(64), slots=16)
    first = todo.next_slice(1)
    assert todo.put_back(first) == []
    assert [len(todo.next_slice(1)) for _ in range(3)] == [4, 4, 4]


# ------------------------------------------------------------------ what travels


def test_a_message_comes_back_with_its_lines():
    head = {"a": [1, 0.1, None, "ü\r\n\u2028"], "nan": float("inf")}
    assert parse_message(build_message(head, [b'{"x":1}\n', b"\n"])) == (head, [b'{"x":1}\n', b"\n"])


def test_starts_and_trajectories_come_back(policy):
    worlds = made()
    task = worlds["pausing"].tasks("train", "seen")[0]
    start = Start(task, 3, Branch("parent", 1, 2))
    assert start_from_row(json.loads(json.dumps(start_to_row(start)))) == start
    assert start_from_row(start_to_row(Start(task))).task.id == task.id
    (played,) = local(worlds, [Start(task, 5)], LanguageAgent(policy, max_tokens=3))
    assert trajectory_from_line(trajectory_to_line(played)) == played


def test_agents_come_back(policy):
    for agent in (
        LanguageAgent(policy, Sampling(0.7, 5, 0.9), 9, True, Window(0.25)),
        LanguageAgent(policy, history=Summarise()),
        CandidateAgent(policy, 0.0, "tokens"),
        Expert(),
        Random(),
    ):
        row = json.loads(json.dumps(agent_to_row(agent)))
        assert agent_from_row(row, policy) == agent
    with pytest.raises(ConfigError, match="Script cannot run on Ray"):
        agent_to_row(Script(lambda world, task: []))
    with pytest.raises(ConfigError, match="cannot be sent to Ray"):
        agent_to_row(LanguageAgent(policy, history=Summarise(summary=str)))


def test_a_policy_comes_back_bit_by_bit_with_its_limit(policy, tmp_path):
    own = replace(policy.next_version(), limit=99)
    files, contents = read_policy_files(own)
    assert any(name.endswith(".safetensors") for name in files.names)
    found = load_policy_files(tmp_path, files, contents)
    assert (found.version, found.context, found.dialect.name) == (1, 99, own.dialect.name)
    assert same_weights(found, own)


def test_an_adapters_base_travels_once(policy, tmp_path):
    tuned = adapt(policy, AdapterConfig(kind="lora", rank=2), seed=1)
    files, contents = read_policy_files(tuned)
    other, more = read_policy_files(adapt(policy, AdapterConfig(kind="lora", rank=2), seed=2).next_version())
    changed = {name for name in files.names if files.names[name] != other.names[name]}
    assert "adapter_model.safetensors" in changed and "base/model.safetensors" not in changed
    assert files.digest != other.digest
    assert same_weights(load_policy_files(tmp_path, files, contents), tuned)
    assert set(contents) - set(more), "the adapter's own weights"


def test_versions_of_an_adapter_share_a_base_that_is_written_read_and_sent_once(policy, tmp_path):
    """The second version brings its adapter alone; both play as they would by themselves."""
    versions = [adapt(policy, AdapterConfig(kind="lora", rank=2), seed=seed) for seed in (1, 2)]
    packer, bases, held = PolicyPacker(), {}, {}
    loaded, packed_bytes = [], []
    for number, tuned in enumerate(versions):
        before = packer.written_bytes
        files, contents = packer.pack(tuned, held_digests=held)
        packed_bytes.append(packer.written_bytes - before)
        assert files == read_policy_files(tuned)[0], "the files are those of a policy that is packed alone"
        assert not contents.keys() & held.keys()
        held |= contents
        sent = {digest: held[digest] for digest in files.list_digests(without_base=number > 0)}
        assert (files.names["base/model.safetensors"] in sent) == (number == 0)
        loaded.append(load_policy_files(tmp_path / str(number), files, sent, bases=bases))
    packer.close()
    base_bytes = sum(weight.nbytes for weight in policy.model.parameters())
    assert packed_bytes[0] > base_bytes > 4 * (packed_bytes[1] - (packed_bytes[0] - base_bytes))
    assert not (tmp_path / "1" / "base").exists() and len(bases) == 1
    for tuned, found in zip(versions, loaded, strict=True):
        assert same_weights(found, tuned)
    first, second = (dict(one.model.named_parameters()) for one in loaded)
    shared = [name for name, weight in first.items() if weight.data_ptr() == second[name].data_ptr()]
    assert len(shared) == len(dict(policy.model.named_parameters())), "and their base is one in memory"


def same_weights(one, other):
    mine, theirs = (dict(each.model.named_parameters()) for each in (one, other))
    return mine.keys() == theirs.keys() and all(bool((mine[name] == theirs[name]).all()) for name in mine)


def test_errors_come_back_as_what_they_were():
    assert isinstance(make_error("VersionMismatch", "x"), ev.errors.VersionMismatch)
    assert isinstance(make_error("ConfigError", "x"), ConfigError)
    assert "CorruptRecord: x" in str(make_error("CorruptRecord", "x")), "which takes more than a sentence"
    assert "Exit: x" in str(make_error("Exit", "x")) and "boundary: x" in str(make_error("boundary", "x"))


# ------------------------------------------------------------------ a player by itself


def local(worlds, starts, agent, *, seed=0, **more):
    policy = getattr(agent, "policy", None)
    engine = None if policy is None else engine_for(policy, slots=5)
    return list(collect(worlds, starts, agent, engine=engine, seed=seed, slots=5, **more))


VERSIONS = {"pausing": "1", "marking": "1"}


def hired(**changes):
    setup = {"worlds": ["tests.scale.ray_worlds:made", []], "versions": read_versions(), "made": VERSIONS, "threads": 1}
    return Player(build_message(setup | changes))


def sliced(head, policy, rows, *, lines=(), parents=0, know=True, slots=3):
    files, contents = read_policy_files(policy)
    named = {"policy": {"names": files.names, "limit": files.limit}}
    told = {
        **head,
        "slots": slots,
        "rows": rows,
        "parents": parents,
        "policies": named,
        "contents": list(contents) if know else [],
    }
    return build_message(told, lines), list(contents.values()) if know else []


def ended(player, count=2):
    rows, lines = [], []
    while True:
        head, more = parse_message(player.more(count, 60.0))
        assert "error" not in head, head
        rows, lines = rows + head["rows"], lines + more
        assert len(head["rows"]) <= count
        if head["end"]:
            return rows, lines


def test_a_player_plays_what_is_played_here_with_branches(policy):
    worlds = made()
    agent = LanguageAgent(policy, Sampling(1.3), max_tokens=4)
    tasks = worlds["pausing"].tasks("train", "seen")
    parents = local(worlds, [Start(task) for task in tasks[:3]], agent)
    begun = [Start(one.task, 1, Branch(one.id, 2)) for one in parents] + [Start(task) for task in tasks[3:7]]
    here = local(worlds, BranchedStarts(begun, BranchOrigins({one.id: one for one in parents})), agent, seed=7)
    head = {
        "do": "play",
        "agent": agent_to_row(agent),
        "seed": 7,
        "name": "",
        "limits": {"reset_s": 60.0, "step_s": 60.0, "horizon": None},
    }
    player = hired()
    assert "pid" in parse_message(player.hello())[0]
    told, contents = sliced(
        head,
        policy,
        [start_to_row(start) for start in begun],
        lines=[trajectory_to_line(p) for p in parents],
        parents=3,
    )
    assert "error" not in parse_message(player.play(told, *contents))[0]
    rows, lines = ended(player)
    assert [key for key, _ in rows] == [trajectory_from_line(line).id for line in lines]
    there = {trajectory_from_line(line).id: line for line in lines}
    assert there == {one.id: trajectory_to_line(one) for one in here}, "bit for bit, in other company"
    assert sum(more.get("replayed", 0) for _, more in rows) == 6
    told, _ = sliced(head, policy, [start_to_row(begun[-1])], know=False)
    assert "error" not in parse_message(player.play(told))[0], "the weights are still there"
    assert ended(player)[1] == [there[here_id(begun[-1])]]


def here_id(start):
    return ev.trajectory.trajectory_name(start)


@pytest.mark.parametrize("kind", [SearchConfig, ForestConfig])
def test_a_player_searches_what_is_searched_here_in_one_tree_or_in_several(policy, kind):
    more = {"forest": 2, "between": "majority"} if kind is ForestConfig else {}
    how = kind(method="sampled_tree", value="none", paths=3, max_tokens=6, generated=200, **more)
    starts = [Start(task) for task in made()["marking"].tasks("train", "seen")[:3]]
    who = Searcher(policy, engine_for(policy, slots=3))
    here = {one.trajectory.id: one for one in search_starts(made(), starts, how, player=who, seed=7, trees=3)}
    player = hired()
    player.hello()
    head = {"do": "search", "how": how.model_dump(mode="json"), "forest": kind is ForestConfig, "seed": 7, "name": ""}
    told, contents = sliced(head, policy, [{**start_to_row(start), "tree": True} for start in starts])
    player.play(told, *contents)
    rows, lines = ended(player)
    assert {trajectory_from_line(line).id: line for line in lines} == {
        key: trajectory_to_line(here[key].trajectory) for key in here
    }
    for key, found in rows:
        assert untimed([found["tree"], *found["forest"]]) == untimed([here[key].tree, *here[key].forest])
        assert len(found["forest"]) == (2 if kind is ForestConfig else 0)
        assert found["spent"]["generated"] == here[key].spent.generated


def untimed(trees):
    """Trees without what one clock, and one engine in other company, said of them."""
    return [{**tree, "spent": {**tree["spent"], "seconds": 0, "computed": 0}} for tree in trees]


def test_a_player_that_is_given_up_goes_on_with_another_slice(policy):
    agent = LanguageAgent(policy, max_tokens=2)
    tasks = made()["pausing"].tasks("train", "seen")
    head = {
        "do": "play",
        "agent": agent_to_row(agent),
        "seed": 0,
        "name": "s",
        "limits": {"reset_s": 60.0, "step_s": 60.0, "horizon": 1},
    }
    player = hired()
    player.hello()
    told, contents = sliced(head, policy, [start_to_row(Start(task)) for task in tasks[:6]])
    player.play(told, *contents)
    first = parse_message(player.more(1, 60.0))[0]
    assert len(first["rows"]) == 1 and first["usage"]["generated"] > 0 and not first["end"]
    player.stop()
    assert parse_message(player.more(9, 60.0))[0] == {"end": True, "rows": [], "usage": {}}
    told, _ = sliced(head, policy, [start_to_row(Start(tasks[9]))], know=False)
    player.play(told)
    assert [key for key, _ in ended(player)[0]] == [f"s/{tasks[9].id}/0"]


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"made": VERSIONS | {"pausing": "2"}}, "VersionMismatch", "worlds of a cluster node differ from the run"),
        ({"versions": {"evolvent": "0"}}, "VersionMismatch", "packages of a cluster node differ from the run"),
        ({"worlds": ["tests.scale.nowhere:made", []]}, "EngineError", "nowhere"),
    ],
)
def test_a_player_of_another_make_says_so(changes, kind, says):
    (told, text) = parse_message(hired(**changes).hello())[0]["error"]
    assert told == kind and says in text


def test_a_shard_is_made_with_the_packages_of_the_run_or_not_at_all(tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"n": 1}\n', encoding="utf-8")
    (shard,) = list_shards(data, rows=7)
    row = {**asdict(shard), "path": str(shard.path)}
    rows, _, error = process_shard(row, (Doubled(but=3),), read_versions())
    assert error is None and rows.count(b"\n") == 2
    rows, summary, error = process_shard(row, (Doubled(but=3),), {**read_versions(), "numpy": "0"})
    assert (rows, summary) == (b"", b"") and error is not None
    assert (
        error[0] == "VersionMismatch"
        and "packages of a cluster node differ from the run" in error[1]
        and "'numpy': '0'" in error[1]
    )


def test_a_mistake_of_a_player_is_a_message_and_no_exception(policy):
    player = hired()
    player.hello()
    told, contents = sliced(
        {"do": "play", "agent": {"kind": "random"}, "seed": 0, "name": "", "limits": {}},
        policy,
        [start_to_row(Start(made()["pausing"].tasks("train", "seen")[0]))] * 2,
    )
    player.play(told, *contents)
    kind, text = parse_message(player.more(1, 1.0))[0]["error"]
    assert kind == "ConfigError" and "two starts would produce the same trajectory id" in text


@pytest.mark.parametrize("told", ["ray?CPU=2", "ray?GPU=1", "ray?cpus=0.00001"])
def test_amounts_that_ray_refuses_are_refused_with_the_address(told):
    with pytest.raises(ConfigError, match="backend, "):
        parse_cluster(told)
    assert parse_cluster("ray?cpus=0.33333333").placement.cpus == 0.3333
