"""Progress: what a line says, how the time left is reckoned, and that a terminal is restored."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from evolvent.cli.terminal.console import make_console
from evolvent.cli.terminal.progress import PlannedStage, Progress, ProgressBackend, format_duration
from evolvent.run import RunStage


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def begun(verb: str) -> tuple[str, str, None]:
    return verb, f"evolve round 1 {verb}", None


def stage(verb: str, *, log=lambda values: None) -> RunStage:
    return RunStage(f"{verb}-1", verb, "evolve", 1, Path("x"), 0, None, log)


PLAN = (PlannedStage("fit", 1000), PlannedStage("evaluate", 50), PlannedStage("collect", 200), PlannedStage("fit", 500))


def test_lines_and_the_time_left():
    clock, stream = Clock(), io.StringIO()
    progress = Progress(make_console(stream, {"COLUMNS": "40"}), PLAN, clock)
    with progress:
        progress.begin(*begun("fit"))
        assert progress.estimate_time_left() is None
        for _ in range(4):
            clock.now += 2.5
            progress.update({"tokens": 250, "loss": 1.25})
        assert progress.estimate_time_left() is None, "no episode has been timed yet"
        progress.end()
        progress.begin(*begun("evaluate"))
        clock.now += 5
        progress.update({"episodes": 25, "success": 0.5, "env_steps": 100})
        # 10 s for 1000 tokens, 5 s for 25 episodes: 500 tokens, 200 + 25 episodes to come
        assert progress.estimate_time_left() == pytest.approx(5 + 225 * 0.2)
        clock.now += 5
        progress.update({"episodes": 50, "success": 0.6, "env_steps": 200})
        progress.end()
    assert stream.getvalue().splitlines() == [
        "[1/4] evolve round 1 fit, 1,000/1,000 tokens, loss 1.250, 100 tokens/s, 0:10",
        "[2/4] evolve round 1 evaluate, 50/50 episodes, success 60.0%, 20 env steps/s, 0:10, about 0:45 left",
    ]


def test_stages_in_the_ledger_are_passed_over():
    progress = Progress(make_console(io.StringIO(), {}), PLAN, Clock())
    progress.begin("collect", "exploring", 200)
    progress.update({"episodes": 100, "success": 0.0})
    progress.end()
    assert "[3/4]" in progress.console.file.getvalue()


def test_lines_are_numbered_in_their_order_where_stages_are_nested():
    """The last iteration of a practice measures before it ends, so its line is the third."""
    plan = (PlannedStage("evaluate", 2), PlannedStage("practise", 4), PlannedStage("evaluate", 2))
    progress = Progress(make_console(io.StringIO(), {}), plan, Clock())
    progress.begin("evaluate", "base evaluate", None)
    progress.end()
    progress.begin("practise", "grpo practise", None)
    progress.begin("evaluate", "grpo evaluate", None)
    progress.end()
    progress.update({"kind": "practise", "step": 4})
    positions = [line.partition(",")[0] for line in progress.console.file.getvalue().splitlines()]
    assert positions == ["[1/3] base evaluate", "[2/3] grpo evaluate", "[3/3] grpo practise"]


def test_an_unknown_size_gives_no_time_left():
    clock = Clock()
    progress = Progress(make_console(io.StringIO(), {}), (PlannedStage("fit", None),), clock)
    progress.begin(*begun("fit"))
    clock.now += 1
    progress.update({"tokens": 10})
    assert progress.estimate_time_left() is None


def test_a_terminal_is_restored_after_an_interrupt():
    stream = Terminal()
    progress = Progress(make_console(stream, {"TERM": "xterm", "COLUMNS": "60"}), PLAN, Clock())
    with pytest.raises(KeyboardInterrupt), progress:
        progress.begin(*begun("fit"))
        raise KeyboardInterrupt
    text = stream.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is hidden once and shown again"
    assert "evolve round 1 fit" in text


def test_the_verbs_are_watched_and_unchanged():
    logged = []

    def collect(policy, starts, told, **options):
        told.log({"episodes": 2, "success": 1.0, "env_steps": 9})
        yield from starts

    verbs = SimpleNamespace(
        collect=collect,
        fit=lambda policy, data, told, **options: (policy, options),
        evaluate=lambda policy, told, **options: ([], []),
        usage=lambda: {"generated": 3},
    )
    stream = io.StringIO()
    watched = ProgressBackend(verbs, Progress(make_console(stream, {}), (), Clock()))
    assert list(watched.collect("p", ["a", "b"], stage("collect", log=logged.append), temperature=1.0)) == ["a", "b"]
    given = {"objective": None, "weight": None, "tokens": 5, "lr_scale": 1.0}
    assert watched.fit("p", [], stage("fit"), objective=None, tokens=5) == ("p", given)
    assert watched.evaluate("p", stage("evaluate")) == ([], [])
    assert watched.usage() == {"generated": 3}
    assert logged == [{"episodes": 2, "success": 1.0, "env_steps": 9}]
    assert [line.split(",")[0] for line in stream.getvalue().splitlines()] == [
        "evolve round 1 collect",
        "evolve round 1 fit",
        "evolve round 1 evaluate",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3661, "1:01:01")])
def test_minutes(seconds, text):
    assert format_duration(seconds) == text
