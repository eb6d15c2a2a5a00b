"""Repeated drawing of a page while its work goes on: on a thread, for a bounded share of its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["redraw_repeatedly"]


@contextmanager
def redraw_repeatedly(
    draw: Callable[[], None], *, first: float = 5.0, every: float = 30.0, share: float = 0.01
) -> Iterator[None]:
    """Calls `draw` now and then inside the block; waits at the end for a drawing that has begun.

    Args:
        draw: called in a thread of its own; an error there ends the drawing, not the work.
        first, every: seconds before the first drawing, and between two.
        share: of one processor that drawing may take; long pages are drawn less often.
    """
    stop_event = threading.Event()

    def draw_repeatedly() -> None:
        pause = min(first, every)
        while not stop_event.wait(pause):
            cpu_start_s = time.thread_time()
            draw()
            pause = max(every, (time.thread_time() - cpu_start_s) / share)

    thread = threading.Thread(target=draw_repeatedly, name="report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop_event.set()
        thread.join()
