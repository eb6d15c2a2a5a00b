"""Drawing a page again and again while the work that it shows goes on: on a thread, for a bounded share of its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["redrawing"]


@contextmanager
def redrawing(
    draw: Callable[[], None], *, first: float = 5.0, every: float = 30.0, share: float = 0.01
) -> Iterator[None]:
    """Inside, `draw` is called now and then; a drawing that has begun is waited for at the end.

    Args:
        draw: called in a thread of its own; an error there ends the drawing, not the work.
        first, every: seconds before the first drawing, and between two.
        share: of one processor that drawing may take; long pages are drawn less often.
    """
    ended = threading.Event()

    def loop() -> None:
        pause = min(first, every)
        while not ended.wait(pause):
            began = time.thread_time()
            draw()
            pause = max(every, (time.thread_time() - began) / share)

    thread = threading.Thread(target=loop, name="report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
