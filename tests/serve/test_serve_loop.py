"""The loop on a thread: values, deadlines, and giving back what lives on it, also when it is forgotten."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time

import pytest

from evolvent.errors import ConfigError, EnvLost, StepTimeout
from evolvent.serve.loop import Loop


@pytest.fixture
def loop():
    made = Loop("loop-under-test")
    yield made
    made.close()
    assert "loop-under-test" not in {thread.name for thread in threading.enumerate()}


async def value(what, after=0.0):
    await asyncio.sleep(after)
    return what


class Kept:
    """Something that has to be closed before what runs is cancelled."""

    def __init__(self):
        self.events = []

    async def hold(self):
        try:
            await asyncio.sleep(60)
        finally:
            self.events.append("cancelled")

    async def close(self):
        await asyncio.sleep(0.01)
        self.events.append("closed")


def test_values_and_errors(loop):
    assert not loop.is_running
    assert loop.run(value(3), 5) == 3 and loop.is_running

    async def wrong():
        raise KeyError("x")

    async def late():
        raise TimeoutError("its own")

    with pytest.raises(KeyError):
        loop.run(wrong(), 5)
    with pytest.raises(TimeoutError, match="its own"):
        loop.run(late(), 5)
    assert loop.run(value("slow", 0.05), None) == "slow"


def test_many_threads_use_one_loop(loop):
    found = []
    threads = [threading.Thread(target=lambda n=n: found.append(loop.run(value(n, 0.01), 5))) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(20))


def test_past_the_deadline_the_coroutine_is_cancelled(loop):
    kept = Kept()
    with pytest.raises(StepTimeout, match=r"asking: no answer before the deadline of 0.05 s"):
        loop.run(kept.hold(), 0.05, label="asking")
    loop.run(value(0), 5)
    assert kept.events == ["cancelled"]


def test_a_loop_does_not_wait_for_itself(loop):
    async def nested():
        loop.run(value(1), 1)

    with pytest.raises(ConfigError, match="Await it instead"):
        loop.run(nested(), 5)


def test_closing_closes_what_is_kept_and_cancels_the_rest():
    loop, kept, forgotten = Loop(), Kept(), Kept()
    loop.start(kept.hold())
    for each in (kept, forgotten):
        loop.keep(each)
    loop.forget(forgotten)
    loop.close()
    loop.close()
    assert kept.events == ["closed", "cancelled"] and forgotten.events == []
    assert not loop.is_running
    with pytest.raises(EnvLost, match="was closed"):
        loop.run(value(1), 1)
    with pytest.raises(EnvLost):
        loop.keep(kept)


def test_what_fails_at_the_end_is_told(caplog):
    class Broken:
        async def close(self):
            raise OSError("stuck")

    loop = Loop()
    loop.keep(Broken())
    loop.close()
    assert "failed when it was closed" in caplog.text


def test_a_loop_that_was_never_used_has_no_thread():
    before = threading.active_count()
    loop = Loop()
    loop.close()
    with pytest.raises(EnvLost):
        loop.run(value(1), 1)
    assert threading.active_count() == before


def test_a_forgotten_loop_ends():
    loop, kept = Loop("forgotten"), Kept()
    loop.start(kept.hold())
    loop.run(value(0), 5)
    del loop
    gc.collect()
    end = time.monotonic() + 60
    while "forgotten" in {thread.name for thread in threading.enumerate()} and time.monotonic() < end:
        time.sleep(0.01)
    assert kept.events == ["cancelled"]


def test_the_end_of_the_process_is_an_end_too():
    program = (
        "import asyncio\n"
        "from evolvent.serve.loop import Loop\n"
        "async def hold():\n"
        "    try:\n"
        "        await asyncio.sleep(60)\n"
        "    finally:\n"
        "        print('given back', flush=True)\n"
        "loop = Loop()\n"
        "loop.start(hold())\n"
        "loop.run(asyncio.sleep(0), 5)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("given back\n", "", 0)
