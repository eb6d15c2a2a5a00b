"""The first hour: twelve things that a newcomer wants, each a script of a few lines, run in an empty folder.

    evolvent models get smollm2                      first, once
    python -m benchmarks.first_hour [--json] [--save]
    python -m benchmarks.first_hour --only 1 3       some of them
    python -m benchmarks.first_hour --python verifiers=PATH inspect_ai=PATH      the Pythons that have these peers
    python -m benchmarks.first_hour --quick          without the pretrained model and the peers; supports no claim

The scripts are `ours/NN_*`, the same tasks with other libraries `peers/NN_*` (TRL, Stable-Baselines3, verifiers,
inspect_ai), where they can do them. verifiers measures a model behind an endpoint, so that ours serves it; inspect_ai
has no worlds, so that it asks the questions of task 1. Lines of code are those that are neither blank nor a comment,
as the formatter leaves them. A task is done where its script ends with 0 and prints what its first line says; that a
policy gets better is other benchmarks' work. A peer that is not installed is left out, with the reason.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.reporting import RESULTS, about, command_line, finish, show
from evolvent.models.catalog import models_folder

RESULT = RESULTS / "first_hour.json"
ROOT = Path(__file__).parent
TIMEOUT_S = 600
_NEEDS_MODEL = (4, 5, 6, 7, 8, 9, 10)
_SERVED = {  # script -> variable, more options of the server
    "07_evaluate_a_server": ("URL", ()),
    "08_record_my_agent": ("RECORDING_URL", ("--record", "runs/agent")),
    "02_verifiers": ("URL", ()),
    "07_inspect_ai": ("URL", ()),
}


@dataclass(frozen=True)
class Script:
    """A script, its number, and what it prints where it worked."""

    path: Path
    number: int
    expected: re.Pattern[str]

    @classmethod
    def read(cls, path: Path) -> Script:
        """Reads the expected output from the first line, after `shows:`."""
        first_line = path.read_text(encoding="utf-8").partition("\n")[0]
        return cls(path, int(path.name[:2]), re.compile(first_line.partition("shows: ")[2]))

    def count_lines(self) -> int:
        """Counts the lines that are neither blank nor a comment."""
        lines = map(str.strip, self.path.read_text(encoding="utf-8").splitlines())
        return sum(bool(line) and not line.startswith("#") for line in lines)


def read_scripts(folder: Path) -> list[Script]:
    """Returns the scripts of a folder by their numbers."""
    return [Script.read(path) for path in sorted(folder.glob("[0-9][0-9]_*"))]


def write_files(folder: Path) -> None:
    """Writes the files that a user would have: questions, conversations, preferences, trajectories and a reward."""
    words = ("red", "blue", "green", "one", "two", "three", "four", "five", "six", "seven")
    turns = [{"role": "user", "content": "Say hello."}, {"role": "assistant", "content": "Hello!"}]
    pair = {"prompt": "Say hello.", "chosen": "Hello!", "rejected": "No."}
    episode = [{"from": "human", "value": "You see a door."}, {"from": "gpt", "value": "open door", "loss": True}]
    rows: Mapping[str, Sequence[object]] = {
        "questions.jsonl": [{"prompt": f"say {word}", "answer": word} for word in words],
        "chats.jsonl": [{"messages": turns}] * 8,
        "pairs.jsonl": [pair] * 8,
    }
    for name, file_rows in rows.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in file_rows), encoding="utf-8")
    episodes = [{"item_id": f"textcraft_{number}", "conversations": episode} for number in range(4)]
    (folder / "agenttraj.json").write_text(json.dumps(episodes), encoding="utf-8")
    reward = "def exact(completion, answer):\n    return float(answer in completion)\n"
    (folder / "my_rewards.py").write_text(reward, encoding="utf-8")


@contextmanager
def serve_model(folder: Path, env: Mapping[str, str], options: Sequence[str]) -> Iterator[str]:
    """Serves the pretrained model while it is used; yields the address of its endpoint."""
    command = [sys.executable, "-m", "evolvent", "serve", "--policy", "smollm2", "--port", "0", *options]
    log = folder / "server.txt"
    with log.open("w", encoding="utf-8") as output:
        server = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 120
            while not (match := re.search(r"http://[\w.]+:\d+", log.read_text(encoding="utf-8"))):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server did not start: {log.read_text(encoding='utf-8')[-300:]}")
                time.sleep(0.2)
            yield f"{match[0]}/v1"
        finally:
            server.terminate()
            server.wait(60)


def find_version(python: str, package: str) -> str | None:
    """Returns the version of a package in this Python; None where it is not installed."""
    program = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True)
    return None if done.returncode else done.stdout.strip()


def run_script(script: Script, python: str) -> dict[str, Any]:
    """Runs a script in an empty folder with the user's files; returns lines, seconds, and why it failed ("": done)."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(python).parent}:{os.environ['PATH']}"}
    shell = ["bash", "-e"] if script.path.suffix == ".sh" else [python]
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        write_files(folder)
        if script.path.parent.name == "peers" and (models_folder() / "smollm2").is_dir():
            (folder / "plain").symlink_to(models_folder() / "smollm2")
        if script.path.stem in _SERVED:
            variable, options = _SERVED[script.path.stem]
            env[variable] = stack.enter_context(serve_model(folder, env, options))
        started = time.monotonic()
        try:
            done = subprocess.run(
                [*shell, str(script.path)], cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_S
            )
            output = done.stdout + done.stderr
            is_done = not done.returncode and script.expected.search(output)
            reason = "" if is_done else f"exit code {done.returncode}: {output[-300:]}"
        except subprocess.TimeoutExpired:
            reason = f"not done after {TIMEOUT_S} s"
    return {"lines": script.count_lines(), "seconds": round(time.monotonic() - started, 1), "problem": reason}


def summarize(ours: Mapping[str, Mapping[str, Any]], peers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the keys of the benchmark; lines are compared where both sides did the task."""
    pairs = [
        (ours[name]["lines"], row["lines"])
        for peer, row in peers.items()
        for name in ours
        if name[:2] == peer[:2] and not row["problem"] and not ours[name]["problem"]
    ]
    return {
        "tasks_done": sum(not row["problem"] for row in ours.values()),
        "median_lines": statistics.median(row["lines"] for row in ours.values()),
        "over_peer_lines": round(sum(own for own, _ in pairs) / sum(peer for _, peer in pairs), 2) if pairs else None,
        "seconds": round(sum(row["seconds"] for row in ours.values()), 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("first_hour", __doc__, quick="no pretrained model and no peers", save=RESULT)
    parser.add_argument("--only", nargs="+", type=int, metavar="N", help="the numbers of some tasks")
    parser.add_argument("--python", nargs="+", default=[], metavar="NAME=PATH", help="the Python of a peer")
    options = parser.parse_args(arguments)
    pythons = dict(pair.split("=", 1) for pair in options.python)
    found: dict[str, dict[str, dict[str, Any]]] = {"ours": {}, "peers": {}}
    for side, rows in found.items():
        for script in [] if options.quick and side == "peers" else read_scripts(ROOT / side):
            if script.number not in (options.only or [script.number]) or (
                options.quick and script.number in _NEEDS_MODEL
            ):
                continue
            package = script.path.stem[3:]
            python = pythons.get(package, sys.executable)
            version = find_version(python, package) if side == "peers" else ""
            if version is None:
                rows[script.path.stem] = {"lines": script.count_lines(), "seconds": 0.0, "problem": "not installed"}
            else:
                rows[script.path.stem] = run_script(script, python) | ({"version": version} if version else {})
            print(f"{side:6} {script.path.stem:28} {rows[script.path.stem]}", flush=True)
    packages = about("torch", "transformers", threads=1)
    figures = {"benchmark": "first_hour", **summarize(found["ours"], found["peers"]), **found, **packages}
    show(figures, without=("ours", "peers", "versions", "machine"))
    finish({**figures, "quick": options.quick}, options)


if __name__ == "__main__":
    main()
