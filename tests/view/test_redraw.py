"""Drawing beside work: again and again, for a bounded share of the time, and not after the end."""

from __future__ import annotations

import threading
import time

import pytest

from evolvent.view.redraw import redraw_repeatedly


def test_it_is_drawn_while_work_goes_on_and_not_after() -> None:
    drawn, thrice = [], threading.Event()

    def draw() -> None:
        drawn.append(threading.current_thread())
        if len(drawn) >= 3:
            thrice.set()

    with redraw_repeatedly(draw, first=0.0, every=0.001, share=1.0):
        assert thrice.wait(30)
    count = len(drawn)
    assert threading.current_thread() not in drawn
    assert not any(thread.is_alive() for thread in drawn)
    assert len(drawn) == count


def test_a_drawing_that_takes_long_is_not_done_again_soon() -> None:
    drawn, once = [], threading.Event()

    def draw() -> None:
        began = time.thread_time()
        while time.thread_time() - began < 0.01:
            pass
        drawn.append(1)
        once.set()

    with redraw_repeatedly(draw, first=0.0, every=0.0, share=1e-6):  # the next would come after hours
        assert once.wait(30)
        time.sleep(0.05)
    assert len(drawn) == 1


def test_an_error_of_the_work_passes_and_ends_the_drawing() -> None:
    def fail() -> None:
        raise ValueError("of the work")

    before = threading.active_count()
    with pytest.raises(ValueError, match="of the work"), redraw_repeatedly(lambda: None, first=60.0):
        fail()
    assert threading.active_count() == before
