from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from evolvent.errors import ConfigError, GraderTimeout, ScoringError
from evolvent.workers import Workers, pack_message

ROOT = Path(__file__).parents[1]


def twice(value):
    return 2 * value


def pid(value=None):
    return os.getpid()


def strange(value):
    if value == "exit":
        os._exit(0)
    if value == "raise":
        raise RuntimeError("no such answer")
    if value == "print":
        os.write(1, b'\x10\x00\x00\x00{"value": 1}')
        sys.stdout.write("passed")
    if value == "memory":
        return len(bytearray(2**31))
    if value == "set":
        return {1, 2}
    if value == "spin":
        while True:
            pass
    return value


CALLS = []


def slow_once(value):
    """Takes long at its first call in a process, as a library that builds its tables then."""
    CALLS.append(value)
    if len(CALLS) == 1:
        time.sleep(0.7)
    return CALLS


def test_the_first_call_is_made_before_time_runs():
    with Workers(slow_once, wall_s=0.5, max_processes=1) as workers, pytest.raises(GraderTimeout):
        workers.call("asked")
    with Workers(slow_once, wall_s=0.5, max_processes=1, warmup_args=["ready"]) as workers:
        assert workers.call("asked") == ["ready", "asked"]


def test_a_first_call_that_raises_is_no_process_that_starts():
    with (
        Workers(strange, max_processes=1, warmup_args=["raise"]) as workers,
        pytest.raises(ScoringError, match="no such answer"),
    ):
        workers.call("fine")


def test_calls_and_answers():
    with Workers(twice) as workers:
        assert workers.call(21) == 42
        assert workers.call("ab") == "abab"
        assert workers.call([1, None]) == [1, None, 1, None]


def test_one_process_serves_many_calls():
    with Workers(pid, max_processes=1) as workers:
        first = workers.call()
        assert first == workers.call() != os.getpid()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("exit", "exit code 0"),
        ("raise", "RuntimeError: no such answer"),
        ("memory", "MemoryError"),
        ("set", "TypeError"),
    ],
)
def test_failures_are_never_results(given, said):
    with Workers(strange, max_processes=1) as workers:
        with pytest.raises(ScoringError, match=said):
            workers.call(given)
        assert workers.call("after") == "after"


def test_a_forged_answer_on_standard_output_is_not_read():
    with Workers(strange, max_processes=1) as workers:
        assert workers.call("print") == "print"


def test_a_call_without_end_is_killed():
    with Workers(strange, wall_s=0.3, max_processes=1) as workers:
        assert workers.call("a") == "a"
        (worker,) = [workers._free.get()]
        workers._free.put(worker)
        number = worker._process.pid
        with pytest.raises(GraderTimeout, match=r"0\.3 s"):
            workers.call("spin")
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)
        assert workers.call("b") == "b"


def test_the_process_ends_by_itself_when_nobody_is_left_to_kill_it():
    with Workers(strange, wall_s=0.2, max_processes=1) as workers:
        workers.call("a")
        worker = workers._free.get()
        os.write(worker._process.stdin.fileno(), pack_message(["spin"]))
        assert worker._process.wait(30) != 0
        workers._free.put(worker)
        assert workers.call("b") == "b"


def test_a_process_with_thousands_of_open_handles_has_workers():
    """`select` takes no handle from 1024 on; a server with that many connections grades all the same."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    held = []
    try:
        while not held or held[-1] < 1050:
            held.append(os.open(os.devnull, os.O_RDONLY))
        with Workers(strange, wall_s=0.3, max_processes=1) as workers:
            assert workers.call("a") == "a"
            assert workers.call("b" * 200_000) == "b" * 200_000
            with pytest.raises(GraderTimeout):
                workers.call("spin")
    finally:
        for handle in held:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_caller_with_a_lower_limit_of_memory_has_workers():
    """As under `ulimit -v`: the workers keep the lower limit instead of asking for a higher one, and it holds."""
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "from evolvent.workers import Workers\n"
        "from tests.test_workers import strange\n"
        "with Workers(strange, memory_mb=4096, max_processes=1) as workers:\n"
        "    print(workers.call('fine'))\n"
        "    try:\n"
        "        workers.call('memory')\n"
        "    except Exception as error:\n"
        "        print(error)\n"
    )
    paths = os.pathsep.join(path for path in (str(ROOT), *sys.path) if path)
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    first, second = done.stdout.splitlines()
    assert first == "fine" and "MemoryError" in second, done.stderr


def test_a_call_may_have_months():
    """`poll` counts in milliseconds, and in an int of C no more than 24 days."""
    with Workers(strange, wall_s=1e7, max_processes=1) as workers:
        assert workers.call("a") == "a"


def test_threads_share_the_processes():
    seen, lock = [], threading.Lock()

    def ask(number):
        answer = workers.call(number)
        with lock:
            seen.append((number, answer))

    with Workers(twice, max_processes=2) as workers:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == [(number, 2 * number) for number in range(12)]


def test_closing_leaves_no_process():
    workers = Workers(pid, max_processes=2)
    number = workers.call()
    workers.close()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_all_mistakes_at_once():
    with pytest.raises(ConfigError) as caught:
        Workers(lambda value: value, wall_s=0, memory_mb=-1, max_processes=0)
    assert [problem.where for problem in caught.value.problems] == [
        "workers.wall_s",
        "workers.memory_mb",
        "workers.most",
        "workers.function",
    ]


def test_arguments_must_be_json():
    with Workers(twice) as workers, pytest.raises(ConfigError, match="the arguments of the worker are not JSON"):
        workers.call({1, 2})
