from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from evolvent.errors import ConfigError, IsolationUnavailable
from evolvent.sandbox.box import Sandbox
from evolvent.sandbox.limits import CallRequest, Outcome, SandboxLimits
from evolvent.sandbox.pool import SandboxPool

LONG = SandboxLimits(wall_s=60.0, cpu_s=60)


def test_values_errors_and_what_was_printed(boxes):
    source = "print('loaded')\ndef f(x):\n    print('given', x)\n    return 10 // x\n"
    found = boxes.observe(
        source, [CallRequest("f", (5,)), CallRequest("f", (0,)), CallRequest("f", (), {"x": 3})], LONG
    )
    assert found == (
        Outcome("value", 2, "", "loaded\ngiven 5\n"),
        Outcome("raised", None, "ZeroDivisionError: integer division or modulo by zero (line 4)", "given 0\n"),
        Outcome("value", 3, "", "given 3\n"),
    )


def test_all_that_is_printed_belongs_to_its_request(boxes):
    source = """
import os, subprocess, sys
def python(): print("one")
def past(): os.write(1, b"two\\n")
def other(): subprocess.run(["/bin/echo", "three"])
def closed():
    sys.stdout = open(os.devnull, "w")
    print("nobody hears this")
def after(): pass
"""
    names = ("python", "past", "other", "closed", "after")
    outcomes = boxes.observe(source, [CallRequest(name) for name in names], LONG)
    assert [outcome.stdout for outcome in outcomes] == ["one\n", "two\n", "three\n", "", ""]
    assert all(outcome.ok for outcome in outcomes)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("def f(:", "SyntaxError: invalid syntax (<candidate>, line 1)"),
        ("import math\nx = math.nothing", "AttributeError: module 'math' has no attribute 'nothing' (line 2)"),
        ("raise SystemExit(3)", "SystemExit: 3 (line 1)"),
        ("def f(): return '\0'", "source code string cannot contain null bytes"),
        ("x = '\ud800'", "UnicodeEncodeError"),
        ("import numpy", "No module named 'numpy'"),
    ],
)
def test_a_source_that_does_not_load_answers_all_requests_alike(boxes, source, error):
    first, second = boxes.observe(source, [CallRequest("f"), CallRequest("g")], LONG)
    assert first.status == second.status == "raised"
    assert error in first.error and first.error == second.error


def test_a_source_alone(boxes):
    assert boxes.observe("print('a')", [CallRequest("")], LONG) == (Outcome("value", None, "", "a\n"),)
    assert boxes.observe("print('a')", [], LONG) == ()


def test_entries_lead_into_objects(boxes):
    source = "class A:\n    @staticmethod\n    def f(x): return [x]\n"
    found = boxes.observe(source, [CallRequest("A.f", (1,)), CallRequest("A.g"), CallRequest("B")], LONG)
    assert [outcome.status for outcome in found] == ["value", "raised", "raised"]
    assert found[0].value == [1]


def test_sources_are_modules_like_others(boxes):
    source = """
import dataclasses, typing
@dataclasses.dataclass
class P:
    x: typing.List[int]
def f(): return [dataclasses.asdict(P([1])), typing.get_type_hints(P)["x"] == list[int], __name__]
"""
    (found,) = boxes.observe(source, [CallRequest("f")], LONG)
    assert found.value == [{"x": [1]}, False, "candidate"]


def test_the_working_folder_is_new_each_time(boxes):
    source = "import os\ndef f():\n    open('left', 'w').close()\n    return os.listdir('.'), os.getcwd(), os.getpid()"
    for _ in range(3):
        assert boxes.observe(source, [CallRequest("f")], LONG)[0].value[0] == ["left"]


def test_what_comes_after_an_end_has_the_same_reason(boxes):
    source = "import os\ndef f(x): return x if x else os._exit(0)"
    found = boxes.observe(source, [CallRequest("f", (value,)) for value in (1, 0, 2)], LONG)
    assert [outcome.status for outcome in found] == ["value", "killed", "killed"]
    assert found[1].error == found[2].error == "the process ended without an answer (exit code 0)"


def test_limits_are_the_jobs_own(boxes):
    source = "def f(n): return len(bytearray(n * 2**20))"
    for memory, status in ((128, "raised"), (700, "value")):
        limits = SandboxLimits(wall_s=60, memory_mb=memory, total_mb=2000)
        assert boxes.observe(source, [CallRequest("f", (256,))], limits)[0].status == status
    write = "def f():\n    for n in range(30):\n        open(str(n), 'wb').write(bytes(2**20))\n    return n"
    assert boxes.observe(write, [CallRequest("f")], SandboxLimits(wall_s=60))[0].status == "raised"
    assert boxes.observe(write, [CallRequest("f")], SandboxLimits(wall_s=60, tmp_mb=40))[0].value == 29


def test_large_arguments_and_values(boxes):
    text = "\u00e9" * 100_000
    source = "def f(x): return x[::-1]"
    assert boxes.observe(source, [CallRequest("f", (text + "a",))], LONG)[0].value == "a" + text
    with pytest.raises(ConfigError, match="the source is too large for the sandbox"):
        boxes.observe(source, [CallRequest("f", ("x" * 2**22,))], LONG)
    with pytest.raises(ConfigError, match="the source is too large for the sandbox"):
        boxes.observe("#" * 2**22, [CallRequest("f")], LONG)
    row = []
    row.append(row)
    with pytest.raises(ConfigError, match="the arguments of the request are too large"):
        boxes.observe(source, [CallRequest("f", (row,))], LONG)


def test_calls_of_the_outside(boxes):
    seen = []

    def double(args, kwargs):
        seen.append((args, kwargs))
        return Outcome("value", 2 * args[0]) if args[0] != 3 else Outcome("raised", error="ValueError: three")

    source = """
def f():
    total = double(1) + double(2, by=2)
    try:
        double(3)
    except RuntimeError as error:
        return total, str(error)
"""
    with boxes.open(source, LONG, {"double": double}) as box:
        assert box.ask("f").value == (6, "raised: ValueError: three")
        assert box.end()
    assert seen == [((1,), {}), ((2,), {"by": 2}), ((3,), {})]


def test_a_thread_may_hold_two_boxes_where_one_is_allowed(isolated):
    with SandboxPool(at_once=1, ahead=0) as pool:
        with pool.open("def f(): return 1", LONG) as one, pool.open("def g(x): return x + 1", LONG) as two:
            assert two.ask("g", (one.ask("f").value,)).value == 2


def test_many_threads(boxes):
    answers = {}

    def ask(number):
        answers[number] = boxes.observe("def f(x): return x * x", [CallRequest("f", (number,))], LONG)[0].value

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: number * number for number in range(24)}


def test_boxes_outlive_the_thread_that_orders_them(isolated):
    """The kernel ends a box with the thread that started it; an order comes from any thread, and that may end."""
    with SandboxPool(ahead=1) as pool:
        first = threading.Thread(target=pool.observe, args=("def f(): return 1", [CallRequest("f")], LONG))
        first.start()
        first.join()
        time.sleep(0.2)
        assert pool.observe("def f(): return 2", [CallRequest("f")], LONG)[0].value == 2


def test_a_box_that_was_ended_while_it_waited_is_replaced(isolated):
    with SandboxPool(ahead=1) as pool:
        waiting = pool._ready.get(timeout=30)
        waiting.wait(30)
        waiting._process.kill()
        waiting._process.wait()
        pool._ready.put(waiting)
        assert pool.observe("def f(): return 2", [CallRequest("f")], LONG)[0].value == 2


def test_packages(isolated):
    with SandboxPool(packages=("numpy", "json"), ahead=1) as pool:
        source = "def f():\n    import numpy\n    return int(numpy.arange(10).sum())"
        limits = SandboxLimits(wall_s=60, cpu_s=60, memory_mb=4000, total_mb=4000)
        assert pool.observe(source, [CallRequest("f")], limits)[0].value == 45
        (denied,) = pool.observe("def f(): open(__import__('numpy').__file__, 'a')", [CallRequest("f")], limits)
        assert "Read-only file system" in denied.error


def test_packages_that_do_not_import(isolated, tmp_path, monkeypatch):
    (tmp_path / "broken_here.py").write_text("raise ValueError('broken on import')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with SandboxPool(packages=("broken_here",), ahead=0) as pool:
        with pytest.raises(IsolationUnavailable, match="broken on import"):
            pool.observe("", [CallRequest("")], LONG)


def test_unsafe_says_so():
    with SandboxPool(unsafe=True, ahead=1) as pool:
        assert pool.unsafe
        found = pool.observe("import os\ndef f(): return os.getpid()", [CallRequest("f"), CallRequest("g")], LONG)
    assert [outcome.status for outcome in found] == ["value", "raised"]
    assert all(outcome.unsafe for outcome in found)
    assert found[0].value > 2 and not Path(f"/proc/{found[0].value}").exists()


def test_unsafe_ends_what_was_started():
    source = (
        "import subprocess\ndef f():\n    return subprocess.Popen(['/bin/sleep', '600'], start_new_session=True).pid"
    )
    with SandboxPool(unsafe=True, ahead=0) as pool:
        pid = pool.observe(source, [CallRequest("f")], LONG)[0].value
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] == "Z"


def test_nothing_is_left_open(isolated):
    before = {entry.name for entry in os.scandir("/proc/self/fd")}
    with SandboxPool(ahead=2) as pool:
        for status, source in (("value", "def f(): return 1"), ("killed", "import os\ndef f(): os._exit(1)")):
            assert pool.observe(source, [CallRequest("f")], LONG)[0].status == status
    assert {entry.name for entry in os.scandir("/proc/self/fd")} <= before


def test_mistakes_at_once():
    with pytest.raises(ConfigError) as caught:
        SandboxPool(ahead=-1, at_once=0, tmp_mb=0, unsafe=True)
    assert [problem.where for problem in caught.value.problems] == ["ahead", "at_once", "tmp_mb"]


def test_a_closed_pool():
    pool = SandboxPool(unsafe=True, ahead=0)
    pool.close()
    pool.close()
    with pytest.raises(ConfigError, match="the sandbox pool is closed"):
        pool.observe("", [CallRequest("")], LONG)


@pytest.mark.parametrize("made", range(6))
def test_a_box_that_finds_no_descriptor_leaves_none_open(made, monkeypatch):
    """Whichever pipe cannot be made, those that were made before it are closed again."""
    left, pipe = [None] * made, os.pipe

    def few():
        if not left:
            raise OSError(errno.EMFILE, "Too many open files")
        left.pop()
        return pipe()

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, "pipe", few)
    with pytest.raises(OSError, match="Too many open files"):
        Sandbox(None, tmp_mb=4, folders=(), packages=())
    assert len(list(Path("/proc/self/fd").iterdir())) == before
