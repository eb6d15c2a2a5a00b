"""Calls of tools as texts of actions, both ways; and the seats of clients at a host."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.errors import AtCapacity, ConfigError, InvalidAction, SessionGone
from evolvent.messages import Call
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.local import LocalHost
from evolvent.serve.seats import ClientSession, ClientSessions, TaskChoice, choose_task, count_train_tasks
from evolvent.serve.toolcalls import ACT, CallGrammar, find_tool, format_action, format_call, list_tools, parse_call
from evolvent.worlds.base import Parsed
from evolvent.worlds.panel import Sizes
from evolvent.worlds.tools.weather import Weather
from tests.serve.small_host import Count, Till

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True).filter(lambda name: name != "Action:")


@given(NAMES, st.dictionaries(st.text(), JSON, max_size=4))
def test_what_is_written_is_read(name, arguments):
    call = Call(name, arguments)
    text = format_call(call)
    assert "\n" not in text and parse_call(text) == call
    assert parse_call(text.replace(" ", " with Action Input: ", 1)) == call
    parsed = CallGrammar().parse(f"Thought: because\n\nAction: {text}")
    assert parsed == Parsed(text, "because")
    assert CallGrammar().parse(CallGrammar().render(parsed)) == parsed


@given(st.text())
def test_no_text_does_more_than_be_refused(text):
    try:
        call = parse_call(text)
    except InvalidAction:
        return
    assert parse_call(format_call(call)) == call


def test_python_is_never_read():
    for text in ("__import__('os').system('true')", "f {'a': __import__('os')}", "f (1)", "f {} {}", "f {", '{"a": 1}'):
        with pytest.raises(InvalidAction):
            parse_call(text)


def test_a_text_world_has_the_tool_act():
    world = Count()
    task = world.tasks("train", "seen")[0]
    tools = list_tools(world, task)
    assert tools == (ACT,)
    assert format_action(world, Call("act", {"action": "up"}), tools) == "up"
    for arguments in ({}, {"action": 3}, {"action": None}):
        with pytest.raises(InvalidAction, match="the action is not text"):
            format_action(world, Call("act", arguments), tools)
    with pytest.raises(InvalidAction, match="did you mean 'act'"):
        find_tool(tools, "axt")


def test_a_tool_world_writes_its_calls_or_reads_the_long_form():
    till, weather = Till(), Weather(sizes=Sizes(train=30, dev=20, test=20))
    tools = list_tools(till, till.tasks("train", "seen")[0])
    assert format_action(till, Call("add", {"n": 3}), tools) == "add 3"
    with pytest.raises(InvalidAction, match="no JSON"):
        format_action(till, Call("add", {"n": float("nan")}), tools)
    task = weather.tasks("train", "seen")[0]
    for action in weather.expert(task):
        call = weather.grammar.parse_call(action)
        assert weather.grammar.parse_call(format_action(weather, call, list_tools(weather, task))) == call
    strange = Call("finish", {"answer": 'it " with Action Input: {} said', "more": [1, {"a": None}]})
    assert weather.grammar.parse_call(format_action(weather, strange, list_tools(weather, task))) == strange


def test_a_world_that_fails_to_tell_its_tools():
    class Broken(Till):
        def toolbox(self, task):
            raise OSError("no tools today")

    world = Broken()
    with pytest.raises(Exception, match=r"world 'till' failed in toolbox at .*test_toolcalls.py:\d+: OSError"):
        list_tools(world, world.tasks("train", "seen")[0])


def hosted(work, *, capacity=4, idle_s=600.0, clock=None):
    """Run a coroutine function over a host and a catalogue of the small worlds."""

    async def run():
        worlds = {"count": Count(), "till": Till()}
        timed = {} if clock is None else {"clock": clock}
        async with LocalHost(worlds, capacity=capacity, idle_s=idle_s, **timed) as host:
            return await work(host, TaskIndex(worlds))

    return asyncio.run(run())


def test_a_choice_is_an_id_an_index_or_a_seed():
    async def work(host, catalogue):
        train = Count().tasks("train", "seen")
        assert await count_train_tasks(catalogue, "count", ("seen",)) == len(train)
        by = {"tiers": ("seen",)}
        assert await choose_task(catalogue, "count", TaskChoice(task=train[3].id, index=1, seed=2), **by) == train[3]
        assert await choose_task(catalogue, "count", TaskChoice(index=1, seed=2), **by) == train[1]
        assert await choose_task(catalogue, "count", TaskChoice(seed=len(train) + 2), **by) == train[2]
        assert (await choose_task(catalogue, "count", TaskChoice(), **by)) in train
        with pytest.raises(ConfigError):
            await choose_task(catalogue, "count", TaskChoice(index=10**9), **by)

    hosted(work)


def test_a_world_without_tasks():
    class Empty(Count):
        def specs(self):
            return ()

    async def work():
        with pytest.raises(ConfigError, match="does not have tasks"):
            await choose_task(TaskIndex({"empty": Empty()}), "empty", TaskChoice(), tiers=("seen",))

    asyncio.run(work())


def test_a_seat_outlives_its_session():
    async def work(host, catalogue):
        seat = ClientSession(host, catalogue, "count")
        with pytest.raises(SessionGone):
            await seat.step("up")
        with pytest.raises(InvalidAction, match="no Unicode"):
            await seat.step("\ud800")
        assert (await seat.begin(TaskChoice(index=3))).observation.startswith("count to")
        first = seat.session
        await host.close(first)  # as the reaper would
        with pytest.raises(SessionGone):
            await seat.step("up")
        assert (await seat.begin(TaskChoice(index=3))).observation.startswith("count to") and seat.session != first
        assert (await seat.step("stop")).is_done and seat.steps == 1
        await seat.close()
        await seat.close()
        assert sum(host.status().sessions.values()) == 0

    hosted(work)


def test_a_beginning_that_fails_takes_no_place():
    async def work(host, catalogue):
        held, other = ClientSession(host, catalogue, "count"), ClientSession(host, catalogue, "till")
        await held.open()
        with pytest.raises(AtCapacity):
            await other.begin(TaskChoice())
        with pytest.raises(ConfigError):
            await held.begin(TaskChoice(index=99))
        assert held.session is not None and host.status().sessions["count"] == 1

    hosted(work, capacity=1)


def test_seats_are_forgotten_when_nobody_uses_them():
    now = [0.0]

    async def work(host, catalogue):
        seats = ClientSessions(host, catalogue, "count", idle_s=10, clock=lambda: now[0])

        async def taken(key):
            seat = seats.create()
            await seat.open()
            await seats.keep(key, seat)
            return seat

        old, used = await taken("old"), await taken("used")
        now[0] = 8.0
        assert seats.get("used") is used and seats.get("none") is None
        now[0] = 12.0
        await taken("new")
        assert (len(seats), seats.get("old"), old.session) == (2, None, None)
        assert host.status().sessions["count"] == 2
        assert await seats.drop("new") and not await seats.drop("new")
        seats.forget("used")
        assert used.session is not None and seats.get("used") is None
        await taken("last")
        await seats.clear()
        assert (len(seats), host.status().sessions["count"]) == (0, 1)

    hosted(work)


def test_json_of_a_call_is_compact():
    assert format_call(Call("f", {"a": [1, "é"]})) == 'f {"a": [1, "é"]}'
    assert json.loads(format_call(Call("f", {"a": "\n"})).split(" ", 1)[1]) == {"a": "\n"}
