"""Calls on threads: what waits goes on when what runs is given up."""

from __future__ import annotations

import asyncio
import threading

from evolvent.serve.calls import CallRunner


def test_a_call_that_nobody_waits_for_any_more_makes_room_for_the_next():
    go, begun = threading.Event(), threading.Event()

    def hang():
        begun.set()
        go.wait(60)

    async def both():
        calls = CallRunner(threads=1)
        first = asyncio.create_task(calls.run(hang, 60.0))
        await asyncio.to_thread(begun.wait, 60)
        second = asyncio.create_task(calls.run(lambda: "done", 60.0))
        await asyncio.sleep(0)  # it waits for the only thread
        first.cancel()
        try:
            done, _ = await asyncio.wait({second}, timeout=10.0)
            assert done and second.result() == "done" and calls.leaked == 1
        finally:
            go.set()
            await calls.close(1.0)

    asyncio.run(both())
