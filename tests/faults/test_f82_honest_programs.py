"""Fault 82: what refuses attacks must not refuse honest programs: databases, pools of processes, event loops, files.

Each of them runs in a box with the default limits, as the code that a model writes does.
"""

from __future__ import annotations

import pytest
from attack_base import f

from evolvent.sandbox.limits import CallRequest, SandboxLimits
from evolvent.sandbox.pool import SandboxPool

LIMITS = SandboxLimits(wall_s=60.0, cpu_s=60)
PROGRAMS = {
    "threads": (
        """
        with ThreadPoolExecutor(8) as pool:
            squares = list(pool.map(lambda x: x * x, range(20)))
        lock, total = threading.Lock(), []
        threads = [threading.Thread(target=lambda: total.append(lock.acquire() and lock.release())) for _ in range(9)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        return squares[-1], len(total)""",
        "import threading\nfrom concurrent.futures import ThreadPoolExecutor",
        (361, 9),
    ),
    "subprocesses": (
        """
        said = subprocess.run(["/bin/sh", "-c", "cat; echo b >&2"], input="a", capture_output=True, text=True)
        other = subprocess.run([sys.executable, "-I", "-S", "-c", "print(6 * 7)"], stdout=subprocess.PIPE, timeout=20)
        with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            echoed = process.communicate(b"x" * 300_000)[0]
        return said.stdout, said.stderr, other.stdout, len(echoed)""",
        "import subprocess, sys",
        ("a", "b\n", b"42\n", 300_000),
    ),
    "a pool of processes": (
        """
        with multiprocessing.get_context("fork").Pool(3) as pool:
            found = pool.map(square, range(10))
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            return found[-1], list(pool.map(square, [7]))""",
        """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        def square(x): return x * x""",
        (81, [49]),
    ),
    "queues, locks and values of processes": (
        """
        context = multiprocessing.get_context("fork")
        queue, lock, value, event = context.Queue(), context.Lock(), context.Value("i", 5), context.Event()
        left, right = context.Pipe()
        def work():
            with lock:
                value.value += 1
            queue.put("queue")
            right.send("pipe")
            event.set()
        process = context.Process(target=work)
        process.start()
        found = queue.get(timeout=20), left.recv(), event.wait(20), value.value
        process.join()
        return found""",
        "import multiprocessing",
        ("queue", "pipe", True, 6),
    ),
    "shared memory": (
        """
        memory = shared_memory.SharedMemory(create=True, size=1000)
        memory.buf[:5] = b"hello"
        again = shared_memory.SharedMemory(memory.name)
        found = bytes(again.buf[:5])
        again.close(), memory.close(), memory.unlink()
        return found""",
        "from multiprocessing import shared_memory",
        b"hello",
    ),
    "a database in a file": (
        """
        for mode in ("delete", "wal"):
            with closing(sqlite3.connect(f"{mode}.db")) as base, closing(sqlite3.connect(f"{mode}.db")) as other:
                base.execute(f"PRAGMA journal_mode={mode}")
                base.execute("CREATE TABLE t (a)")
                with base:
                    base.executemany("INSERT INTO t VALUES (?)", [(k,) for k in range(100)])
                base.execute("BEGIN IMMEDIATE")
                other.execute("PRAGMA busy_timeout=1")
                try:
                    other.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    locked = str(error)
                time.sleep(0.1)  # held while the box is watched
                total = other.execute("SELECT sum(a) FROM t").fetchone()
                base.rollback()
        return locked, total""",
        "import sqlite3, time\nfrom contextlib import closing",
        ("database is locked", (4950,)),
    ),
    "a lock on its own file": (
        """
        with open("lock", "w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(0.1)
            fcntl.lockf(file, fcntl.LOCK_UN)
        box = mailbox.mbox("mail")
        box.lock()
        box.add("From: a\\n\\nb"), box.flush(), box.unlock()
        return len(box)""",
        "import fcntl, mailbox, time",
        1,
    ),
    "an event loop": (
        """
        async def serve(reader, writer):
            writer.write((await reader.readline()).upper())
            await writer.drain()
            writer.close()
        async def main():
            server = await asyncio.start_unix_server(serve, "line")
            async with server:
                reader, writer = await asyncio.open_unix_connection("line")
                writer.write(b"hello\\n")
                said = await reader.readline()
                writer.close()
                process = await asyncio.create_subprocess_exec("/bin/echo", "x", stdout=asyncio.subprocess.PIPE)
                echoed, _ = await process.communicate()
            numbers = await asyncio.gather(*(asyncio.sleep(0.01, k) for k in range(50)))
            number = await asyncio.to_thread(pow, 2, 10)
            try:
                await asyncio.wait_for(asyncio.sleep(60), 0.01)
            except TimeoutError:
                return said, echoed, sum(numbers), number
        return asyncio.run(main())""",
        "import asyncio",
        (b"HELLO\n", b"x\n", 1225, 1024),
    ),
    "selectors and timers": (
        """
        left, right = socket.socketpair()
        with selectors.DefaultSelector() as selector, select.epoll() as poll:
            selector.register(left, selectors.EVENT_READ)
            poll.register(left, select.EPOLLIN)
            right.send(b"x")
            ready = len(selector.select(20)), len(poll.poll(20))
        libc = ctypes.CDLL(None, use_errno=True)
        clock, number = libc.timerfd_create(1, 0), libc.eventfd(3, 0)
        rung = []
        signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        while not rung:
            time.sleep(0.005)
        return ready, clock >= 0, os.read(number, 8)[0], rung""",
        "import ctypes, os, select, selectors, signal, socket, time",
        ((1, 1), True, 3, [1]),
    ),
    "files": (
        """
        with tempfile.NamedTemporaryFile() as named, tempfile.TemporaryFile() as file:
            file.write(b"x" * 1000), named.write(b"y")
            file.seek(0)
            folder = tempfile.mkdtemp()
            with zipfile.ZipFile(f"{folder}/a.zip", "w") as archive:
                archive.writestr("b", "c")
            shutil.copytree(folder, "copy")
            with open("mapped", "w+b") as target:
                target.write(bytes(4096)), target.flush(), os.fsync(target.fileno())
                mapped = mmap.mmap(target.fileno(), 4096)
                mapped[:3] = b"abc"
                mapped.flush(), mapped.close(), os.sync()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            with shelve.open("shelf") as shelf:
                shelf["key"] = [1, 2]
            with shelve.open("shelf") as shelf:
                kept = shelf["key"]
            return len(file.read()), zipfile.ZipFile("copy/a.zip").read("b"), open("mapped", "rb").read(3), kept""",
        "import mmap, os, shelve, shutil, tempfile, zipfile",
        (1000, b"c", b"abc", [1, 2]),
    ),
    "clocks, limits and numbers": (
        """
        begin = time.monotonic()
        time.sleep(0.01)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        os.nice(1), os.sched_getaffinity(0)
        logging.getLogger("x").warning("told")
        digits = str(Decimal(2).sqrt())[:6]
        return time.monotonic() > begin, datetime.now(ZoneInfo("UTC")).tzname(), digits, len(secrets.token_hex(4))""",
        """
        import logging, os, resource, secrets, time
        from datetime import datetime
        from decimal import Decimal
        from zoneinfo import ZoneInfo""",
        (True, "UTC", "1.4142", 8),
    ),
}


@pytest.fixture(scope="module")
def boxes():
    with SandboxPool(ahead=1) as pool:
        yield pool


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_honest_program_runs(boxes, name):
    body, before, expected = PROGRAMS[name]
    (outcome,) = boxes.observe(f(body, before), [CallRequest("f")], LIMITS)
    assert (outcome.status, outcome.value) == ("value", expected), outcome.error


def test_numpy_runs():
    """With threads of its own, files and a mapped array."""
    source = f(
        """
        rng = numpy.random.default_rng(0)
        rows = rng.normal(size=(200, 200))
        numpy.save("rows.npy", rows)
        mapped = numpy.load("rows.npy", mmap_mode="r")
        residue = numpy.abs(numpy.linalg.solve(rows, mapped @ numpy.ones(200)) - 1).max()
        return bool(residue < 1e-6), int(numpy.fft.fft(numpy.ones(64))[0].real)""",
        "import numpy",
    )
    limits = SandboxLimits(wall_s=60.0, cpu_s=60, memory_mb=4096, total_mb=2048)
    with SandboxPool(packages=("numpy",), ahead=0) as boxes:
        (outcome,) = boxes.observe(source, [CallRequest("f")], limits)
    assert (outcome.status, outcome.value) == ("value", (True, 64)), outcome.error
