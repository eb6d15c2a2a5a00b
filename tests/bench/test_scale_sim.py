"""The model behind `benchmarks.scale_sim`, held to closed forms and to events one by one; and the command."""

from __future__ import annotations

import heapq
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scale_sim import __main__ as scale_sim
from benchmarks.scale_sim.events import Clock, Cores, Letters, Servers
from benchmarks.scale_sim.fleet import GPU, MODELS, Fleet, Library, Workload, with_constant
from benchmarks.scale_sim.model import (
    Costs,
    Machine,
    Shape,
    circle,
    departures,
    erlang_wait,
    fitted,
    ring_s,
    rounds,
    schedule,
    slice_work,
    wait_s,
)
from benchmarks.scale_sim.plan import breaks, costs_of, library_of, planned, remedies, workload_of
from benchmarks.scale_sim.round import ahead_of, round_of, turn_exactly, turn_s
from evolvent.errors import ConfigError

COSTS = Costs(
    forward_s=2e-3,
    row_s=5e-5,
    read_s=1e-5,
    step_s=3e-4,
    play_s=1e-4,
    deal_s=2e-5,
    receive_s=1e-4,
    store_s=2e-4,
    learn_s=0.02,
    learn_token_s=5e-5,
    pack_s=0.01,
    load_s=0.03,
)
LIBRARY = Library(
    forward_s=8e-4,
    row_s=5e-6,
    turn_s=3e-4,
    env_s=1e-4,
    latency_s=4e-4,
    deal_s=3e-5,
    take_s=2e-3,
    episode_bytes=1e5,
    pack_s=1.3e-9,
    load_s=1.9e-9,
)
WORK = Workload((2, 3, 3, 4, 4, 9, 9, 9))


def fleet(model="0.5B", gpus=64, environments=10_000, **others):
    return Fleet(gpus, environments, MODELS[model], WORK, LIBRARY, **others)


def shape(count, seed=0):
    rng = np.random.default_rng(seed)
    return Shape(rng.integers(2, 10, count), rng.integers(10, 80, count), rng.integers(40, 120, count))


# ------------------------------------------------------------------ events


def served(arrivals, services, count):
    """Mean seconds that jobs wait, event by event."""
    clock = Clock()
    servers = Servers(clock, count)

    def job(came, service):
        yield clock.sleep(came)
        yield servers.serve(service)

    for came, service in zip(arrivals, services, strict=True):
        clock.spawn(job(float(came), float(service)))
    clock.run()
    assert servers.served == len(arrivals) and math.isclose(servers.busy_s, float(np.sum(services)))
    return servers.waited_s / servers.served


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (3, 0.8)])
def test_a_queue_waits_as_erlang_says(servers, load):
    rng = np.random.default_rng(1)
    count = 20_000
    arrivals = np.cumsum(rng.exponential(1 / (load * servers), count))
    waited = served(arrivals, rng.exponential(1.0, count), servers)
    assert waited == pytest.approx(erlang_wait(load * servers, 1.0, servers), rel=0.12)


def test_a_queue_of_constant_services_waits_as_pollaczek_and_khinchine_say():
    rng = np.random.default_rng(2)
    arrivals = np.cumsum(rng.exponential(1 / 0.6, 15_000))
    waited = served(arrivals, np.ones(15_000), 1)
    assert waited == pytest.approx(0.6 / (2 * (1 - 0.6)), rel=0.1)
    assert float(wait_s(np.array(0.6), 1.0, 1, 0.5)) == pytest.approx(0.6 / (2 * (1 - 0.6)))
    at_once = departures(arrivals, 1.0) - arrivals - 1.0
    assert at_once.mean() == pytest.approx(waited, abs=1e-9), "the recursion, all at once, is the queue"


def test_erlangs_formula_by_hand():
    assert erlang_wait(0.5, 1.0, 1) == pytest.approx(1.0)  # rho / (1 - rho)
    assert erlang_wait(1.0, 1.0, 2) == pytest.approx(1 / 3)  # C(2, 1) = 1/3, over c - a = 1
    assert erlang_wait(2.0, 1.0, 2) == math.inf and wait_s(np.array(2.0), 1.0, 2, 1.0) == math.inf
    for load, near in ((0.7, 0.35), (0.9, 0.1), (0.97, 0.03)):  # the approximation is good where waiting matters
        found = float(wait_s(np.array(load * 14), 1.0, 14, 1.0))
        assert found == pytest.approx(erlang_wait(load * 14, 1.0, 14), rel=near)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=20), st.floats(0.01, 2))
@settings(max_examples=30, deadline=None)
def test_departures_are_those_of_the_recursion(arrivals, service):
    expected, free = [], 0.0
    for came in sorted(arrivals):
        free = max(came, free) + service
        expected.append(free)
    assert np.sort(departures(np.array(arrivals), service)) == pytest.approx(expected)


def working(amounts, count, **how):
    """When each thread has had its core-seconds."""
    clock, ends = Clock(), {}
    cores = Cores(clock, count, **how)

    def thread(number, amount):
        yield cores.work(amount)
        ends[number] = clock.now

    for number, amount in enumerate(amounts):
        clock.spawn(thread(number, amount))
    clock.run()
    return [ends[number] for number in range(len(amounts))], cores.done_s


def test_cores_are_shared_equally():
    assert working([1.0, 1.0], 2)[0] == pytest.approx([1, 1])
    assert working([1.0] * 4, 2)[0] == pytest.approx([2] * 4)
    ends, done = working([1.0, 2.0, 3.0], 2)  # 2/3 each until 1.5; then one core each: 1 and 2 more seconds
    assert ends == pytest.approx([1.5, 2.5, 3.5]) and done == pytest.approx(6.0)
    assert working([1.0], 2, rivals=3)[0] == pytest.approx([2]), "half of a core beside three others"
    assert working([1.0, 1.0], 2, slowed=0.2)[0] == pytest.approx([1.25] * 2) and working([1.0], 2, slowed=0.2)[0] == [
        1
    ]
    with pytest.raises(ConfigError):
        Cores(Clock(), 0)


def test_letters_wait_and_are_waited_for():
    clock = Clock()
    letters, got = Letters(clock), []

    def reader():
        for _ in range(2):
            got.append(((yield letters.take()), clock.now))

    def writer():
        letters.put("a")
        yield clock.sleep(1.0)
        letters.put("b")

    clock.spawn(reader())
    clock.spawn(writer())
    clock.run()
    assert got == [("a", 0.0), ("b", 1.0)]


# ------------------------------------------------------------------ an engine and a circle


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_rows_take_the_next_episode_when_they_are_free(units, rows):
    free, ends = [0] * rows, []
    for each in units:
        begun = heapq.heappop(free)
        heapq.heappush(free, begun + each)
        ends.append(begun + each)
    active, found = schedule(np.array([units]), rows)
    assert found[0].tolist() == ends and len(active) == max(ends)
    busy = [
        sum(end - each <= moment < end for each, end in zip(units, ends, strict=True)) for moment in range(max(ends))
    ]
    assert active[:, 0].tolist() == busy


def test_engines_do_not_disturb_each_other():
    rng = np.random.default_rng(3)
    units = rng.integers(1, 9, (4, 11))
    units[2, -1] = 0
    together, ends = schedule(units, 3)
    for engine in range(4):
        alone, own = schedule(units[engine : engine + 1], 3)
        assert own[0].tolist() == ends[engine].tolist()
        assert (
            together[: len(alone), engine].tolist() == alone[:, 0].tolist() and not together[len(alone) :, engine].any()
        )


def test_equal_episodes_take_waves():
    active, _ = schedule(np.full((1, 10), 7), 4)
    assert len(active) == math.ceil(10 / 4) * 7
    with pytest.raises(ConfigError):
        schedule(np.ones((1, 1), dtype=np.int64), 0)


def test_a_slice_costs_what_its_parts_cost():
    own = shape(30)
    spent, ends = slice_work(own, 8, COSTS)
    expected = (
        COSTS.forward_s * len(spent)
        + COSTS.row_s * own.written.sum()
        + COSTS.read_s * own.read.sum()
        + COSTS.step_s * own.steps.sum()
        + COSTS.play_s * 30
    )
    assert spent.sum() == pytest.approx(expected) and ends.max() == len(spent)


def test_one_worker_alone_is_a_sum():
    """Five equal episodes on two rows, on cores for all: packing, dealing, loading, forwards, storing, learning."""
    own = Shape(np.full(5, 3), np.full(5, 10), np.full(5, 20))
    costs = replace(COSTS, receive_s=0.0, store_s=0.0)
    found = circle(own, costs, workers=1, rows=2, machine=Machine(2), learned=150)
    each = 20 * costs.read_s + 3 * costs.step_s + costs.play_s
    forwards = 30 * costs.forward_s + 50 * costs.row_s + 5 * each
    first = costs.pack_s + 5 * costs.deal_s + costs.load_s + forwards
    assert found.collected_s == pytest.approx(first)
    assert found.wall_s == pytest.approx(first + costs.learn_s + 150 * costs.learn_token_s)
    assert found.stored == 5 and found.work_s == pytest.approx(found.wall_s)


@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_every_episode_is_stored_once(workers):
    found = circle(shape(53), COSTS, workers=workers, rows=4, machine=Machine(2, 1.5, 0.1))
    assert found.stored == 53


def test_more_workers_help_while_there_are_cores():
    light = replace(COSTS, load_s=0.0)
    walls = {count: circle(shape(80), light, workers=count, rows=4, machine=Machine(2)).wall_s for count in (1, 2)}
    assert walls[1] / 2 < walls[2] < walls[1]
    crowded = circle(shape(80), COSTS, workers=4, rows=4, machine=Machine(2))
    assert crowded.wall_s >= crowded.work_s / 2, "two cores do not do more than two seconds in a second"
    assert circle(shape(80), COSTS, workers=4, rows=4, machine=Machine(2, rivals=2)).wall_s > crowded.wall_s


# ------------------------------------------------------------------ closed forms


def test_rounds():
    assert rounds([3, 3, 3], [2, 2, 2], [1, 1, 1], stale=0).tolist() == [6, 12, 18]
    # the second round is collected (3..6) while the first is learned from (3..5) and handed over (..6)
    assert rounds([3, 3, 3], [2, 2, 2], [1, 1, 1], stale=1).tolist() == [6, 9, 12]
    assert rounds([1, 1, 1], [5, 5, 5], [0, 0, 0], stale=1).tolist() == [6, 11, 16], "learning holds it up"
    rng = np.random.default_rng(4)
    times = [rng.exponential(1, 9) for _ in range(3)]
    last = [rounds(*times, stale=stale)[-1] for stale in range(5)]
    assert last == sorted(last, reverse=True) and last[0] == pytest.approx(sum(each.sum() for each in times))
    with pytest.raises(ConfigError):
        rounds([1], [1], [1], stale=-1)


def test_an_all_reduce():
    assert ring_s(8e9, 1, 1e9, 1.0) == 0
    assert ring_s(8e9, 4, 1e9, 0.5) == pytest.approx(2 * 3 / 4 * 8 + 6 * 0.5)
    assert ring_s(8e9, 4, 2e9, 0.0) == ring_s(8e9, 4, 1e9, 0.0) / 2


def test_fits():
    assert fitted([[1, 1, 1], [1, 2, 4]], [5, 7, 11]) == pytest.approx([3, 2])
    assert fitted([[1, 1, 1], [1, 2, 4]], [1.0, 2.0, 4.1])[0] == 0, "nothing costs less than nothing"
    assert fitted([[1, 1], [1, 2]], [-1.0, -2.0], [1, 1]) == [0, 0]


# ------------------------------------------------------------------ many GPUs


def test_a_forward_reads_weights_and_caches():
    one = fleet("7B")
    expected = (2 * 7.62e9 + 10 * WORK.seen() * 2 * 2 * 28 * 4 * 128) / (0.7 * 3.35e12)
    assert float(one.forward_gpu_s(np.array(10.0))) == pytest.approx(expected)
    assert WORK.context == 4 * 9 * 384 and one.rows == int((72e9 - 2 * 7.62e9) / (57_344 * WORK.context))
    steps = 4 * np.array(WORK.lengths)
    in_turns = [384 * turn for each in steps for turn in (np.arange(each) + 0.5)]
    assert WORK.seen() == pytest.approx(np.mean(in_turns)), "a turn sees what came before it"


@pytest.mark.parametrize("env_s", [1e-4, 0.1, 1.0])
def test_turns_in_the_mean_are_turns_event_by_event(env_s):
    one = fleet(gpus=8)
    one = replace(one, workload=replace(WORK, written=16), library=replace(LIBRARY, env_s=env_s))
    for rows in (4, 24):
        exact = turn_exactly(one, rows, turns=8 * rows * 12)
        assert float(turn_s(one, np.array([float(rows)]))[0][0]) == pytest.approx(exact, rel=0.12)
    full = turn_s(one, np.array([1e4]))[0][0]
    assert full * 112 >= 8e4 * env_s, "112 cores give no more than 112 seconds in a second"


def test_a_round_conserves_and_adds_up():
    for environments in (1, 10, 1000, 10_007, 300_000):
        found = round_of(fleet(environments=environments))
        assert sum(found["share"].values()) == pytest.approx(1.0, abs=1e-3)  # but for failures
        assert all(0 <= used <= 1.001 for used in found["used"].values()), (environments, found["used"])
        steps = found["steps_s"] * found["round_s"] / environments
        assert 8 <= steps <= 36 and (environments < 1000 or steps == pytest.approx(4 * np.mean(WORK.lengths), rel=0.1))


def test_a_steady_stream_is_what_it_stands_for():
    """Where a part of the episodes is not played one by one, times are those of playing all of them."""
    one = fleet(gpus=8, environments=60_000, drivers=4)
    one = with_constant(one, "gpu.memory_bytes", 0.1)  # few rows: seventy-odd episodes of each
    from benchmarks.scale_sim import round as module

    short = module.round_of(one)
    kept, module._DEPTH = module._DEPTH, 10**6
    try:
        whole = module.round_of(one)
    finally:
        module._DEPTH = kept
    assert 60_000 / one.engines / one.rows > kept
    assert short["round_s"] == pytest.approx(whole["round_s"], rel=0.02)
    assert short["used"] == pytest.approx(whole["used"], rel=0.03, abs=1e-3)


@pytest.mark.parametrize("constant", ["gpu.bandwidth", "gpu.network", "gpu.flops", "gpu.cores", "gpu.memory_bytes"])
def test_better_hardware_is_never_slower(constant):
    for model in ("0.5B", "70B"):
        rates = [round_of(with_constant(fleet(model), constant, factor))["steps_s"] for factor in (1.0, 2.0, 4.0)]
        assert rates == pytest.approx(sorted(rates), rel=2e-3)
    costly = [round_of(with_constant(fleet(), "library.take_s", factor))["steps_s"] for factor in (1.0, 2.0, 4.0)]
    assert costly[0] > costly[1] > costly[2]
    with pytest.raises(ConfigError):
        with_constant(fleet(), "gpu.colour", 2.0)


def test_what_breaks_is_named():
    driver = round_of(fleet(gpus=1024, environments=100_000))
    assert driver["bound_by"] == "driver" and driver["full"] == ["driver"]
    assert round_of(fleet(gpus=1024, environments=100_000, drivers=64))["steps_s"] > 5 * driver["steps_s"]
    assert driver["steps_s"] < 4 * np.mean(WORK.lengths) / LIBRARY.take_s * 1.05, "no faster than one driver takes in"
    slow = replace(fleet(), library=replace(LIBRARY, env_s=2.0, take_s=0.0))
    assert round_of(slow)["bound_by"] == "environments"
    assert round_of(fleet("70B", gpus=8))["bound_by"] == "memory"
    assert round_of(fleet("70B", gpus=1024, environments=1000))["bound_by"] == "hand_over"
    rows = {str(count): round_of(fleet(gpus=1024, environments=count)) for count in (1000, 100_000)}
    assert breaks(rows) == {"what": "driver", "environments": 100_000}
    assert breaks({"1000": round_of(fleet(gpus=8, environments=1000))})["what"] == ""


def test_playing_ahead_hides_learning():
    ahead = ahead_of(fleet("7B", gpus=64))
    behind = ahead_of(fleet("7B", gpus=64), stale=0)
    assert ahead["steps_s"] > behind["steps_s"] and ahead["playing"] in (0.25, 0.5, 0.75)
    assert not ahead_of(fleet("7B", gpus=8)), "one node is not divided"
    assert "all of these" in remedies(fleet(), 0)


MEASURED = {
    "forward_s": 2e-3,
    "row_s": 5e-5,
    "read_s": 1e-5,
    "mixed_s": 1e-4,
    "step_s": 6e-4,
    "lengths": list(WORK.lengths),
    "calibrated_at": 0.9,
    "outside_forward_s": 8e-4,
    "outside_mixed_s": 1e-4,
    "outside_row_s": 5e-6,
    "outside_step_s": 3e-4,
    "tell_s": [5e-5, 1e-5, 1e-7],
    "receive_s": [5e-5, 1e-5, 1e-7],
    "store_s": [2e-4, 1e-5, 1e-7],
    "wire_bytes": [268.0, 126.0, 14.0],
    "env_step_s": 4e-6,
    "server_step_s": 9e-5,
    "server_latency_s": 3e-4,
    "deal_s": 3e-5,
    "pack_s": [0.01, 1e-9],
    "load_s": [0.03, 2e-9],
    "learn_s": 0.02,
    "learn_token_s": 5e-5,
    "gradient_bytes": 7e5,
}


def test_costs_are_those_of_the_episodes_and_of_a_quiet_machine():
    own = Shape(np.array([2, 4]), np.array([10, 30]), np.array([60, 100]))  # 3 steps and 100 tokens in the mean
    found = costs_of(MEASURED, own, 1e6)
    assert found.store_s == pytest.approx(0.9 * (2e-4 + 3 * 1e-5 + 100 * 1e-7))
    assert found.forward_s == pytest.approx(0.9 * 2.1e-3) and found.load_s == pytest.approx(0.9 * (0.03 + 2e-3))
    library = library_of(MEASURED, workload_of(MEASURED))
    steps = 4 * np.mean(WORK.lengths)
    assert library.take_s == pytest.approx(0.9 * (2.5e-4 + steps * 2e-5 + steps * 384 * 2e-7))
    assert library.episode_bytes == pytest.approx(268 + steps * 126 + steps * 384 * 14)


def test_the_plan_is_told(tmp_path, monkeypatch, capsys):
    first = planned(MEASURED, quick=True, seed=3)
    again = round_of(
        Fleet(64, 10_000, MODELS["7B"], workload_of(MEASURED), library_of(MEASURED, workload_of(MEASURED))), seed=3
    )
    assert first["predictions"]["7B"]["64"]["10000"] == again
    assert set(first["predictions"]) == set(MODELS) and first["mean_field"]["worst"] < 0.12
    told = {"1": [3.0, 2.0, 1.5, 1.4, 1.6, 1.1]}
    kept = {"measured": MEASURED, "checks": told, "out_of_sample": {"lookup": told}, **first}
    monkeypatch.setattr(scale_sim, "RESULT", tmp_path / "scale_sim.json")
    with pytest.raises(SystemExit, match="nothing is kept"):
        scale_sim.main(["--report"])
    (tmp_path / "scale_sim.json").write_text(json.dumps(kept), encoding="utf-8")
    scale_sim.main(["--report"])
    said = capsys.readouterr().out
    assert "| lookup | 1 | 3.00 | 2.00 | 1.50 | 1.40 to 1.60 | 1.10 |" in said and "memory at 1,000" in said
    assert GPU.between_failures_s == pytest.approx(54 * 86_400 * 16_384 / 419, rel=0.01)


# ------------------------------------------------------------------ the command


@pytest.mark.long
def test_the_command(capsys, tmp_path, monkeypatch):
    scale_sim.main(["--quick", "--json", "--save", str(tmp_path / "scale_sim.json")])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == json.loads((tmp_path / "scale_sim.json").read_text(encoding="utf-8"))
    assert set(found["checks"]) == {"1", "2"} and set(found["out_of_sample"]) == {"lookup"}
    assert all(len(row) == 6 and row[0] / row[1] == pytest.approx(row[2], rel=0.5) for row in found["checks"].values())
    assert found["worst_ratio"] >= 1 and found["measured"]["row_s"] > 0 and found["measured"]["server_errors"] == 0
    assert (
        found["predictions"]["7B"]["64"]["10000"]["steps_s"] > 0
        and found["breaks_first"]["70B"]["8"]["what"] == "memory"
    )
    monkeypatch.setattr(scale_sim, "RESULT", tmp_path / "scale_sim.json")
    scale_sim.main(["--report", "--json"])
    told = capsys.readouterr().out
    assert json.loads(told.splitlines()[-1]) == found and "| 7B | 64 |" in told
