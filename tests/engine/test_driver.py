"""The driver: order, slots, errors, deadlines, interrupts, with real threads and a real engine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

from evolvent.engine.asks import BlockingCall, SampleAsk
from evolvent.engine.driver import DriverCounts, ask_and_wait, run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.errors import ConfigError, EvolventError, StaleNode, StepTimeout, VocabularyMismatch
from tests.engine.models import llama

Asking = Generator[Any, Any, Any]


def say(value: Any) -> Asking:
    return value
    yield ()


def wait(call: Callable[[], Any], timeout_s: float | None = None) -> Asking:
    (answer,) = yield [BlockingCall(call, timeout_s)]
    return answer


def test_works_end_in_order_of_completion() -> None:
    gate = threading.Event()

    def second() -> Asking:
        yield ()
        gate.set()
        return "second"

    done = list(run_jobs([wait(gate.wait), second(), say("third")], None, slots=3))
    assert [each.index for each in done] == [2, 1, 0]
    assert [each.value for each in done] == ["third", "second", True]


def test_no_more_works_are_alive_than_slots_and_a_freed_slot_is_taken() -> None:
    alive, most, begun = 0, 0, []

    def work(index: int) -> Asking:
        nonlocal alive, most
        alive, begun[len(begun) :] = alive + 1, [index]
        most = max(most, alive)
        for _ in range(index % 4):
            yield ()
        alive -= 1
        return index

    done = list(run_jobs((work(index) for index in range(30)), None, slots=4))
    assert sorted(each.value for each in done) == list(range(30))
    assert most == 4 and begun == sorted(begun)


def test_an_exception_ends_its_work_only() -> None:
    def bad() -> Asking:
        yield ()
        raise KeyError("mine")

    done = {each.index: each for each in run_jobs([say(1), bad(), say(2)], None, slots=2)}
    assert isinstance(done[1].error, KeyError) and done[1].value is None
    assert (done[0].value, done[2].value) == (1, 2) and done[0].error is None


def test_errors_of_asks_are_thrown_into_the_work() -> None:
    engine = LocalEngine(llama(), slots=2)

    def handles() -> Asking:
        try:
            yield [SampleAsk(None, [1], 2), SampleAsk(None, [999], 1)]
        except VocabularyMismatch:
            ((sample,),) = yield [SampleAsk(None, [1], 2)]
            return len(sample.ids)

    def does_not() -> Asking:
        yield [SampleAsk(None, [999], 1)]

    done = {each.index: each for each in run_jobs([handles(), does_not()], engine, slots=2)}
    assert done[0].value == 2
    assert isinstance(done[1].error, VocabularyMismatch)
    (asked,) = run_jobs([does_not()], None, slots=1)
    assert isinstance(asked.error, ConfigError) and "no engine" in str(asked.error)


def test_asks_of_all_works_share_forwards() -> None:
    engine = LocalEngine(llama(), slots=16)

    def work(index: int) -> Asking:
        ((sample,),) = yield [SampleAsk(None, [index, 1, 2], 5, seeds=(index,))]
        return sample.ids.tolist()

    counts = DriverCounts()
    together = {d.index: d.value for d in run_jobs([work(i) for i in range(16)], engine, slots=16, counts=counts)}
    assert engine.usage.forwards == 5 and counts.asks == 16
    alone = {d.index: d.value for d in run_jobs([work(i) for i in range(16)], LocalEngine(llama(), slots=1), slots=1)}
    assert together == alone


def test_several_asks_are_answered_in_their_order() -> None:
    engine = LocalEngine(llama(), slots=2)

    def work() -> Asking:
        answers = yield [SampleAsk(None, [1], 6), BlockingCall(lambda: "waited"), SampleAsk(None, [2], 2)]
        return answers

    (done,) = run_jobs([work()], engine, slots=1)
    assert done.error is None
    first, waited, last = done.value
    assert (len(first[0].ids), waited, len(last[0].ids)) == (6, "waited", 2)


def test_a_wait_raises_in_its_work() -> None:
    def fails() -> Any:
        raise OSError("disk")

    def work() -> Asking:
        try:
            yield [BlockingCall(fails)]
        except OSError as error:
            return str(error)

    (done,) = run_jobs([work()], None, slots=1)
    assert done.value == "disk"


def test_a_hung_wait_is_left_behind_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    counts = DriverCounts()
    works = [wait(release.wait, 0.05), wait(release.wait, 0.05), *[wait(lambda: "fine", 5.0) for _ in range(4)]]
    with caplog.at_level(logging.WARNING):
        done = {each.index: each for each in run_jobs(works, None, slots=6, threads=2, counts=counts)}
    release.set()
    assert all(isinstance(done[index].error, StepTimeout) for index in (0, 1))
    assert [done[index].value for index in range(2, 6)] == ["fine"] * 4
    assert counts.leaked == 2 and "was abandoned" in caplog.text


@pytest.mark.parametrize(("exit_error", "message"), [(SystemExit(2), "SystemExit: 2"), (KeyboardInterrupt(), "Keyb")])
def test_a_wait_that_exits_is_an_error_and_its_thread_takes_no_other(
    exit_error: BaseException, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`exit()` in a text that a reward runs ends the call; it used to end the thread that the next call waited for."""
    monkeypatch.setattr(threading, "excepthook", lambda problem: None)  # an interrupt still ends its thread

    def exits() -> Any:
        raise exit_error

    started = time.monotonic()
    works = [wait(exits, 30.0), wait(exits, 30.0), wait(lambda: "fine", 30.0)]
    done = {each.index: each for each in run_jobs(works, None, slots=3, threads=1)}
    assert time.monotonic() - started < 20 and done[2].value == "fine"
    for index in (0, 1):
        assert isinstance(done[index].error, EvolventError) and message in str(done[index].error)


def test_waits_run_beside_the_engine() -> None:
    """While a wait is open, a work that samples runs to its end."""
    engine = LocalEngine(llama(), slots=2)
    sampled = threading.Event()

    def samples() -> Asking:
        node = None
        for turn in range(5):
            ((sample,),) = yield [SampleAsk(node, [turn], 3)]
            node = sample.node
        sampled.set()

    done = list(run_jobs([wait(lambda: sampled.wait(60)), samples()], engine, slots=2))
    assert [each.index for each in done] == [1, 0] and done[1].value is True


def test_no_more_threads_than_asked_for() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1

    assert len(list(run_jobs([wait(call) for _ in range(20)], None, slots=20, threads=3))) == 20
    assert 1 <= most <= 3


@pytest.mark.parametrize("how", ["interrupt", "stop"])
def test_all_works_are_closed_when_the_caller_stops(how: str) -> None:
    closed = []

    def work(index: int) -> Asking:
        try:
            yield [BlockingCall(threading.Event().wait)]
        finally:
            closed.append(index)

    def interrupts() -> Asking:
        yield ()
        if how == "interrupt":
            raise KeyboardInterrupt
        return None

    driven = run_jobs([work(0), interrupts(), work(2)], None, slots=3)
    if how == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            list(driven)
    else:
        assert next(driven).index == 1
        driven.close()
    assert sorted(closed) == [0, 2]


def test_slots_and_threads() -> None:
    with pytest.raises(ConfigError):
        list(run_jobs([say(1)], None, slots=0))
    with pytest.raises(ConfigError):
        list(run_jobs([say(1)], None, slots=1, threads=0))
    assert list(run_jobs([], None, slots=1)) == []


def test_blocking_raises_the_first_error() -> None:
    with pytest.raises(EvolventError):
        ask_and_wait([SampleAsk(None, [999], 1)], LocalEngine(llama(), slots=1))


@pytest.mark.parametrize("kind", [LocalEngine, RecomputeEngine])
def test_what_is_still_asked_is_cancelled_when_the_caller_stops(kind: Any) -> None:
    engine = kind(llama(), slots=4)
    alone = ask_and_wait([SampleAsk(None, [1, 2], 8, seeds=(3,))], kind(llama(), slots=1))

    def asks(index: int) -> Asking:
        yield [SampleAsk(None, [index, 2], 30, seeds=(1, 2, 3))]

    def stops() -> Asking:
        yield [SampleAsk(None, [5], 2)]

    driven = run_jobs([asks(1), stops(), asks(3)], engine, slots=3)
    assert next(driven).index == 1
    assert engine.pending() == 2
    driven.close()
    fed = engine.usage.computed
    assert engine.pending() == 0 and not engine.poll() and engine.usage.computed == fed
    ((again,),) = ask_and_wait([SampleAsk(None, [1, 2], 8, seeds=(3,))], engine)
    assert again.ids.tolist() == alone[0][0].ids.tolist(), "its rows are clean"


def test_a_work_that_fails_asks_for_nothing_more() -> None:
    engine = LocalEngine(llama(), slots=2)

    def fails() -> Any:
        raise OSError("gone")

    def work() -> Asking:
        try:
            yield [SampleAsk(None, [1], 40), BlockingCall(fails)]
        except OSError:
            assert engine.pending() == 0
            return "cancelled"

    (done,) = run_jobs([work()], engine, slots=1)
    assert done.value == "cancelled"


def test_blocking_hears_only_its_own_answers() -> None:
    engine = LocalEngine(llama(), slots=2)
    engine.submit(SampleAsk(None, [3], 1))
    (answer,) = ask_and_wait([SampleAsk(None, [1], 4)], engine)
    assert len(answer[0].ids) == 4
    with pytest.raises(VocabularyMismatch):
        ask_and_wait([SampleAsk(None, [1], 40), SampleAsk(None, [999], 1)], engine)
    assert engine.pending() == 0


def test_an_interrupted_forward_leaves_an_engine_that_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = llama()
    engine = LocalEngine(policy, slots=2)
    ((first,),) = ask_and_wait([SampleAsk(None, [1], 2)], engine)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def work() -> Asking:
        yield [SampleAsk(first.node, [2], 5)]

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_sample", interrupt)
        with pytest.raises(KeyboardInterrupt):
            list(run_jobs([work()], engine, slots=1))
    assert engine.pending() == 0
    with pytest.raises(StaleNode):
        engine.submit(SampleAsk(first.node, [2], 5))
    ((again,),) = ask_and_wait([SampleAsk(None, [1], 2)], engine)
    assert again.ids.tolist() == first.ids.tolist()


def test_a_work_that_fails_while_it_is_closed_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def bad() -> Asking:
        try:
            yield ()
            yield [BlockingCall(threading.Event().wait)]
        finally:
            raise OSError("close me not")

    driven = run_jobs([bad(), say(1)], None, slots=2)
    assert next(driven).index == 1
    driven.close()
    assert "close me not" in caplog.text
