"""Logs: JSON lines with run and episode, kept apart for episodes that are played at once, in threads too."""

from __future__ import annotations

import io
import json
import logging
from datetime import datetime

import pytest

import evolvent as ev
from evolvent.agents.plain import Script
from evolvent.logs import FORMAT_VARIABLE, configure, hide_secrets, log_run
from evolvent.rollout.episode import collect
from evolvent.trajectory import Start

log = logging.getLogger("evolvent.test")


class Talking(ev.TextWorld):
    """Says in the log what it is told, with the number of its task."""

    name, horizon, instructions = "talking", 5, "say something"

    def __init__(self, blocking: bool) -> None:
        self.run_in_thread = blocking

    def specs(self):
        return [{"number": n} for n in range(40)]

    def play(self, spec):
        yield f"task {spec['number']}"
        for _ in range(3):
            log.warning("number %d", spec["number"])
            yield f"task {spec['number']}", 0.0
        return 1.0


@pytest.fixture
def lines():
    """Where all logs go, as JSON lines; the root logger is as before afterwards."""
    root, out = logging.getLogger(), io.StringIO()
    before, level = root.handlers[:], root.level
    configure({FORMAT_VARIABLE: "json", "A_KEY": "planted-secret"}, stream=out)
    yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    root.handlers[:] = before
    root.setLevel(level)


def test_a_secret_that_begins_another_leaves_nothing_of_it():
    secrets = [f"planted-secret{'x' * n}" for n in range(8)]
    assert hide_secrets(f"of {' '.join(secrets)}.", frozenset(secrets)) == f"of {' '.join(['<redacted>'] * 8)}."


@pytest.mark.parametrize("blocking", [False, True])
def test_every_line_names_its_run_and_episode(lines, blocking):
    world = Talking(blocking)
    starts = [Start(task) for task in world.tasks("train", "seen")][:12]
    numbers = {f"{start.task.id}/0": start.task.spec["number"] for start in starts}
    with log_run("run-7"):
        played = list(
            collect({"talking": world}, starts, Script(lambda world, task: ["on"] * 3), engine=None, slots=12)
        )
        log.warning("all played")
    log.warning("the run is over")
    assert {one.id for one in played} == set(numbers)
    *told, played_, over = lines()
    assert len(told) >= 12 and {row["run"] for row in told} == {"run-7"}
    assert all(row["message"] == f"number {numbers[row['episode']]}" for row in told), "no line has another's episode"
    assert {row["episode"] for row in told} == set(numbers)
    assert played_["run"] == "run-7" and "episode" not in played_
    assert not {"episode", "run"} & set(over)


def test_a_line_is_one_whatever_it_holds(lines):
    root = logging.getLogger()  # a lone surrogate in what pytest keeps of logs cannot travel between its processes
    root.handlers[:] = [one for one in root.handlers if not type(one).__module__.startswith("_pytest")]
    try:
        raise ValueError("bad\nnews with planted-secret")
    except ValueError as error:
        log.error("it failed:\n%s\x1b[31m \u2028 \ud800", error, exc_info=error)
    log.info("levels from info on are shown")
    log.debug("others are not")
    first, second = lines()
    assert datetime.fromisoformat(first["time"]).utcoffset().total_seconds() == 0
    assert (first["level"], first["logger"], second["level"]) == ("error", "evolvent.test", "info")
    assert first["message"].startswith("it failed:\nbad\nnews with <redacted>") and first["process"] > 0
    assert "Traceback" in first["error"] and "planted" not in json.dumps(first)


def test_plain_lines_are_the_message_alone(capsys):
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        for _ in range(2):  # a second call replaces the first
            configure({"A_KEY": "planted-secret"})
        log.warning("so it is: %s", "planted-secret")
        log.info("not shown")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert capsys.readouterr().err == "so it is: <redacted>\n"


def test_the_command_writes_json_lines(command, tmp_path):
    done = command("serve", "lookup", "--log-json", "--host", "0.0.0.0", cwd=tmp_path)
    assert done.returncode == 2 and "token" in done.stderr, "errors stay sentences"
    assert "--log-json" in command("--help").stdout
