"""Functions that a worker process of a test calls: each fails in one way, without any outside software."""

from __future__ import annotations

import os
import time


def echo(*values):
    """Returns its first argument."""
    return values[0]


def end_process(*_values):
    """Ends the process, as native code does that runs out of stack or memory."""
    os._exit(7)


def sleep_long(*_values):
    """Takes longer than any limit of a test."""
    time.sleep(60)


def ask_for_memory(*_values):
    """Asks for four gigabytes at once; the pages are never touched."""
    return len(bytes(2**32))
