"""Discrete events: a clock, shared processor cores, servers with a queue, letters; and processes that are generators.

    clock = Clock()
    cores = Cores(clock, 2)

    def worker():
        yield cores.work(0.5)       # half a second of a core, longer in seconds where cores are short
        yield clock.sleep(0.1)

    clock.spawn(worker())
    clock.run()                     # clock.now is the time at which nothing was left to happen

A process yields requests and is sent their answers. Equal times happen in the order in which they were asked for, so a
simulation is a function of its inputs; whatever is random is drawn by the processes, from generators that they are
handed.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from evolvent.errors import ConfigError

__all__ = ["Clock", "Cores", "Letters", "Process", "Request", "Servers", "speed"]

Resume = Callable[[Any], None]
Request = Callable[[Resume], None]  # called once, with what is to be called with the answer
Process = Generator[Request, Any, None]
_EPSILON = 1e-12


class Clock:
    """Simulated seconds, and what happens when.

    Attributes:
        now: seconds since the beginning. events: how many have happened.
    """

    def __init__(self) -> None:
        self.now, self.events, self._asked = 0.0, 0, 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        """Call it at that time; earlier than now is now."""
        heapq.heappush(self._heap, (max(time_s, self.now), self._asked, call))
        self._asked += 1

    def run(self) -> float:
        """Let everything happen; the time of the last event."""
        while self._heap:
            self.now, _, call = heapq.heappop(self._heap)
            self.events += 1
            call()
        return self.now

    def sleep(self, seconds: float) -> Request:
        """Answered (None) after so many seconds."""
        return lambda resume: self.at(self.now + seconds, lambda: resume(None))

    def spawn(self, process: Process, done: Callable[[], None] | None = None) -> None:
        """Start a process now; `done` is called when it has ended."""

        def go(answer: Any) -> None:
            try:
                request = process.send(answer)
            except StopIteration:
                if done is not None:
                    done()
                return
            request(go)

        self.at(self.now, lambda: go(None))


def speed(threads: float, cores: float, slowed: float) -> float:
    """What a busy core gets done beside others, over what it does alone: the loss grows with the share that is busy."""
    return 1 - slowed * min(1.0, max(0.0, threads - 1) / (cores - 1)) if cores > 1 else 1.0


class Cores:
    """Processor sharing: `count` cores, divided equally among the threads that have work, at most one core each.

    Args:
        rivals: threads of others that always have work; a share is min(1, count / (threads + rivals)).
        slowed: what a core loses while the others are busy too (caches, two threads of one core), 0 to 1.
    Raises:
        ConfigError: no cores, or fewer than no rivals.
    """

    def __init__(self, clock: Clock, count: float, rivals: float = 0.0, slowed: float = 0.0) -> None:
        if count <= 0 or rivals < 0 or not 0 <= slowed < 1:
            raise ConfigError(
                "cores that nobody can work on",
                value=(count, rivals, slowed),
                expected="above 0, 0 or more, from 0 to below 1",
            )
        self._clock, self._count, self._rivals, self._slowed = clock, count, rivals, slowed
        self._served, self._since, self._plan, self._asked = 0.0, 0.0, 0, 0  # `_served`: core-seconds of each thread
        self._working: list[tuple[float, int, Resume]] = []
        self.done_s = 0.0  # of work, as long as it takes alone

    def work(self, seconds: float) -> Request:
        """Answered (None) when a thread has had so many core-seconds."""

        def ask(resume: Resume) -> None:
            self._advance()
            heapq.heappush(self._working, (self._served + seconds, self._asked, resume))
            self._asked += 1
            self._schedule()

        return ask

    def _rate(self) -> float:
        """What a thread gets done in a second."""
        if not self._working:
            return 0.0
        threads = len(self._working) + self._rivals
        return min(1.0, self._count / threads) * speed(threads, self._count, self._slowed)

    def _advance(self) -> None:
        passed = (self._clock.now - self._since) * self._rate()
        self._served, self._since = self._served + passed, self._clock.now
        self.done_s += passed * len(self._working)

    def _schedule(self) -> None:
        self._plan += 1
        if self._working:
            plan, left = self._plan, self._working[0][0] - self._served
            self._clock.at(self._clock.now + max(0.0, left) / self._rate(), lambda: self._end(plan))

    def _end(self, plan: int) -> None:
        if plan != self._plan:  # somebody came or went since this was foreseen
            return
        self._advance()
        ended = []
        until = self._working[0][0] + _EPSILON
        while self._working and self._working[0][0] <= until:
            ended.append(heapq.heappop(self._working)[2])
        self._schedule()
        for resume in ended:
            resume(None)


class Servers:
    """`count` servers and one queue, first come first served.

    Attributes:
        busy_s: server-seconds so far. waited_s: seconds that jobs have waited. served: jobs that were begun.

    Raises:
        ConfigError: less than one server.
    """

    def __init__(self, clock: Clock, count: int) -> None:
        if count < 1:
            raise ConfigError("a queue without a server", value=count, expected="1 or more")
        self._clock, self._free = clock, count
        self._queue: deque[tuple[float, float, Resume]] = deque()
        self.busy_s, self.waited_s, self.served = 0.0, 0.0, 0

    def serve(self, seconds: float) -> Request:
        """Answered (None) when a job of so many seconds has been served."""

        def ask(resume: Resume) -> None:
            self._queue.append((self._clock.now, seconds, resume))
            self._begin()

        return ask

    def _begin(self) -> None:
        while self._free and self._queue:
            came, seconds, resume = self._queue.popleft()
            self._free -= 1
            self.busy_s += seconds
            self.waited_s += self._clock.now - came
            self.served += 1
            self._clock.at(self._clock.now + seconds, lambda resume=resume: self._end(resume))  # type: ignore[misc]

    def _end(self, resume: Resume) -> None:
        self._free += 1
        self._begin()
        resume(None)


class Letters:
    """What processes send one another, in order; whoever takes waits for the next one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: deque[Any] = deque()
        self._takers: deque[Resume] = deque()

    @property
    def waiting(self) -> int:
        """How many letters nobody has taken yet."""
        return len(self._kept)

    def put(self, letter: Any) -> None:
        """Send one."""
        if self._takers:
            taker = self._takers.popleft()
            self._clock.at(self._clock.now, lambda: taker(letter))
        else:
            self._kept.append(letter)

    def take(self) -> Request:
        """Answered with the oldest letter."""

        def ask(resume: Resume) -> None:
            if self._kept:
                letter = self._kept.popleft()
                self._clock.at(self._clock.now, lambda: resume(letter))
            else:
                self._takers.append(resume)

        return ask
