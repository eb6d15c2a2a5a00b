"""`evolvent train` from its first word to its last: stopped, killed, resumed; watched, talked to; under torchrun."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from evolvent.cli.main import main
from evolvent.cli.train import job
from evolvent.models.policy import load_policy
from evolvent.models.snapshots import newest_snapshot
from evolvent.scale import training
from tests.faults import sums
from tests.faults.launched import Launched

UPDATES = 30


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return sums.write(tmp_path_factory.mktemp("training"))


def words(data: Path, run: object, *more: object) -> list[str]:
    told = [
        "train",
        "sft",
        data / "messages.jsonl",
        "--policy",
        data / "policy",
        "--to",
        run,
        "--keep.every",
        7,
        "--train.batch_tokens",
        128,
        "--train.warmup_steps",
        5,
        "--train.max_steps",
        UPDATES,
        *more,
    ]
    return [str(word) for word in told]


@pytest.fixture(scope="module")
def whole(data):
    """A training that nobody interrupted, with all its checkpoints, and snapshots."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_POLL_S", 0.0)
        assert main(words(data, data / "whole", "--keep.snapshots", "true", "--keep.last", 10)) == 0
    return data / "whole"


@pytest.fixture
def stopped(whole, tmp_path):
    """The same, as if it had been killed after update 20: its newest checkpoint is that of update 14."""
    run = Path(shutil.copytree(whole, tmp_path / "stopped"))
    gone = [f"checkpoints/update-{update:09d}" for update in (7, 21, 28, 30)]
    for name in (*gone, "model", "snapshots"):
        shutil.rmtree(run / name)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["update-000000014"]
    log = run / "metrics.jsonl"
    log.write_text("".join(log.read_text(encoding="utf-8").splitlines(keepends=True)[:20]), encoding="utf-8")
    return run


def told(capsys, *line: object) -> tuple[int, str, str]:
    code = main([str(word) for word in line])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def state(run: Path) -> str:
    return str(json.loads((run / "run.json").read_text(encoding="utf-8"))["state"])


# ---------------------------------------------------------------------- stopped and resumed


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code", "left"),
    [(signal.SIGTERM, 143, "interrupted"), (signal.SIGINT, 130, "interrupted"), (signal.SIGKILL, -9, "running")],
    ids=["terminated", "interrupted", "killed"],
)
def test_it_goes_on_with_the_same_losses(data, whole, tmp_path, capsys, number, code, left):
    with Launched(1, words(data, "run"), cwd=tmp_path, before="tests.faults.broken_ranks:waiting") as process:
        process.until(tmp_path / "waits", 1)
        process.signal(number)
        (tmp_path / "go").touch()
        assert process.wait() == [code]
        said = process.said()
    run = tmp_path / "run"
    assert "Traceback" not in said and state(run) == left
    taken = len(sums.logged(run))
    if number != signal.SIGKILL:
        assert "go on with: evolvent train sft --resume run" in said
        assert (run / "checkpoints" / f"update-{taken:09d}" / "COMPLETE").is_file(), "the state was saved"
    done, shown, error = told(capsys, "train", "--resume", run, "--threads", 1, "--keep.every", 100)
    assert (done, error, state(run)) == (0, "", "finished")
    first = int(shown.partition("goes on after update ")[2].split()[0])
    assert first == taken == 17 if number != signal.SIGKILL else first in (7, 14) and taken == 16
    assert sums.apart(run, whole) == 0.0, "equal bit for bit"
    one, other = (load_policy(folder / "model").model.state_dict() for folder in (run, whole))
    assert all(weight.equal(other[name]) for name, weight in one.items())


def test_after_the_last_step_there_is_nothing_left_to_do(whole, tmp_path, capsys):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    before = {path: path.read_bytes() for path in [*(run / "model").iterdir(), run / "metrics.jsonl"]}
    code, shown, error = told(capsys, "train", "sft", "--resume", run)
    assert (code, error) == (0, "")
    assert "all 30 updates were taken before: nothing is left to do" in shown and "tokens/s" not in shown
    assert {path: path.read_bytes() for path in before} == before


def test_a_resumed_run_keeps_its_settings_but_for_where_it_runs(data, whole, stopped, capsys):
    code, _, error = told(capsys, "train", "--resume", stopped, "--train.lr", 1, "--keep.every=3", "--seed=4")
    assert code == 2 and "got --train.lr 1 --seed=4 (leave them out" in error and "keep.every" not in error
    assert "only parallel.*, keep.*, device, threads, train.offload may change" in error
    code, _, error = told(capsys, "train", "dpo", "--resume", stopped)
    assert code == 2 and f"use: evolvent train sft --resume {stopped}" in error
    code, shown, error = told(capsys, "train", "--resume", stopped, "--parallel.recompute", "true", "--keep.every=3")
    assert (code, error) == (0, "") and "goes on after update 14" in shown
    assert sums.apart(stopped, whole) < 2e-6
    assert "every = 7" in (stopped / "config.toml").read_text(encoding="utf-8")
    assert json.loads((stopped / "run.json").read_text(encoding="utf-8"))["config"]["keep"]["every"] == 3


def test_it_goes_on_without_its_data(stopped, whole, capsys):
    """The tokens are in the run: a resumed run learns what it began with."""
    config = stopped / "config.toml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("messages.jsonl", "gone.jsonl"), encoding="utf-8")
    assert told(capsys, "train", "--resume", stopped)[0] == 0
    assert sums.apart(stopped, whole) == 0.0


def spoiled(run: Path, kind: str) -> None:
    newest = run / "checkpoints" / "update-000000014"
    config = (run / "config.toml").read_text(encoding="utf-8")
    if kind == "flipped":
        raw = bytearray((newest / "model-00000.safetensors").read_bytes())
        raw[-5] ^= 1
        (newest / "model-00000.safetensors").write_bytes(raw)
    elif kind == "lost state":
        (newest / "optimizer-00000.safetensors").unlink()
    elif kind == "tokens":
        (run / "tokens" / "ids.bin").write_bytes((run / "tokens" / "ids.bin").read_bytes()[:-4] + b"abcd")
    else:
        before, after = {
            "settings": ("lr = 0.004", "lr = 0.5"),
            "optimizer": ('"adamw"', '"lion"'),
            "seed": ("seed = 0", "seed = 1"),
            "model": ("policy = ", 'policy = "OTHER" # '),
        }[kind]
        assert before in config
        (run / "config.toml").write_text(config.replace(before, after, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        ("flipped", 1, "got changed tensors ['model.norm.weight'], expected sha256 "),
        ("lost state", 1, "optimizer-00000.safetensors is missing"),
        ("tokens", 1, "ids.bin has changed since it was written"),
        ("settings", 2, "made with another config: got lr = 0.5, expected lr = 0.004"),
        ("optimizer", 2, "made with another optimizer: got name = lion, expected name = adamw"),
        ("seed", 2, "made with another seed"),
        ("model", 1, "shape of tensor 'model.embed_tokens.weight' in the checkpoint's model differs"),
    ],
)
def test_a_run_that_cannot_go_on_says_why_and_stays(data, stopped, capsys, tmp_path, kind, code, said):
    from evolvent.models.policy import tiny_policy

    spoiled(stopped, kind)
    if kind == "model":
        tiny_policy(sums.WORDS, size="s", context=32).save(tmp_path / "other")
        text = (stopped / "config.toml").read_text(encoding="utf-8")
        (stopped / "config.toml").write_text(text.replace("OTHER", str(tmp_path / "other")), encoding="utf-8")
    found, _, error = told(capsys, "train", "--resume", stopped)
    assert found == code and said in error and error.count("\n") == 1, error
    assert [path.name for path in (stopped / "checkpoints").iterdir()] == ["update-000000014"]
    assert not (stopped / "model").exists()


def test_a_full_disk_leaves_the_checkpoints_before(data, whole, tmp_path, capsys):
    with Launched(1, words(data, "run", "--train.max_steps", 2000), cwd=tmp_path) as process:
        process.until(tmp_path / "run" / "metrics.jsonl", 15)
        late = time.monotonic() + 60
        while not list((tmp_path / "run" / "checkpoints").glob("update-*/COMPLETE")) and time.monotonic() < late:
            time.sleep(0.01)  # the writer is a thread of its own
        resource.prlimit(process.processes[0].pid or 0, resource.RLIMIT_FSIZE, (100_000, 100_000))
        assert process.wait() == [1]
        errors = process.errors()[0]
    assert errors.count("\n") == 1 and "error: no space left for " in errors and "the run resumes" in errors
    run = tmp_path / "run"
    assert state(run) == "failed" and list((run / "checkpoints").glob("update-*/COMPLETE"))
    config = (run / "config.toml").read_text(encoding="utf-8")
    assert f"max_steps = {2000}" in config and "goes on after update " in resumed(run, tmp_path)


def resumed(run: Path, cwd: Path) -> str:
    """What a resumed run says until it has taken an update more; it is stopped then."""
    taken = (run / "metrics.jsonl").read_bytes().count(b"\n")
    with Launched(1, ["train", "--resume", run], cwd=cwd) as process:
        process.until(run / "metrics.jsonl", taken + 1)
        process.signal(signal.SIGTERM)
        assert process.wait() == [143]
        return process.said()


def test_ctrl_c_while_data_are_read_leaves_no_run(data, tmp_path):
    slow = "tests.faults.broken_ranks:slow_to_read"
    with Launched(1, words(data, "new/run"), cwd=tmp_path, before=slow) as process:
        process.until(tmp_path / ".out-0", 1)
        process.signal(signal.SIGINT)
        assert process.wait() == [130] and process.errors() == ["interrupted\n"]
    assert not (tmp_path / "new").exists()


# ---------------------------------------------------------------------- while it runs


def test_updates_that_are_not_finite_end_it(data, tmp_path, capsys):
    more = ("--train.lr", 1e30, "--train.max_grad_norm", "none", "--train.max_nonfinite_steps", 3)
    code, _, error = told(capsys, *words(data, tmp_path / "run", *more))
    assert code == 1 and "error: 3 consecutive updates were not finite" in error
    assert (
        "trajectories messages.jsonl:" in error and "ower --train.lr" in error and state(tmp_path / "run") == "failed"
    )


def test_without_a_terminal_a_line_comes_now_and_then(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(job, "_LINE_INTERVAL_S", 0.0)
    code, shown, _ = told(capsys, *words(data, tmp_path / "run", "--train.max_steps", 3))
    assert code == 0 and "update 1, loss " in shown and "update 3, loss " in shown


def test_a_report_that_cannot_be_drawn_ends_no_training(data, tmp_path, capsys, monkeypatch):
    from evolvent.cli.setup import run_setup

    monkeypatch.setattr(run_setup, "report", lambda run, to: {}["no such figure"])
    code, shown, error = told(capsys, *words(data, tmp_path / "run", "--train.max_steps", 2))
    assert code == 0 and "model " in shown and "no report was written: a fault in drawing it: KeyError" in error


def test_snapshots_are_there_to_watch_and_to_talk_to(data, whole, tmp_path, capsys):
    newest = newest_snapshot(whole)
    assert newest is not None and newest.step == UPDATES and newest.serial >= 2
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    texts = sums.lines(tmp_path / "texts.jsonl", [{"text": "3 plus 4 7"}] * 3)
    code, shown, _ = told(capsys, "watch", run, "--once", "--nice", 0, "--perplexity.data", texts)
    assert code == 0 and "step 30  perplexity" in shown and "1 evaluated" in shown
    code, shown, _ = told(capsys, "chat", run, "--once", "3 plus 4", "--temperature", 0)
    assert code == 0 and shown.strip()


def test_runs_show(whole, capsys):
    code, shown, _ = told(capsys, "runs", "show", whole)
    assert code == 0 and "train sft" in shown and "finished" in shown and "no episodes" in shown


# ---------------------------------------------------------------------- adapters elsewhere


def asked(process: Launched, out: Path) -> str:
    """What a served policy answers."""
    process.until(out, 1)
    url = re.findall(r"http://\S+/v1", out.read_text(encoding="utf-8"))[0]
    body = {"model": "run", "messages": [{"role": "user", "content": "3 plus 4"}], "max_tokens": 3, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        found: str = json.loads(reply.read())["choices"][0]["message"]["content"]
    return found


@pytest.mark.parametrize("kind", ["lora", "prompt"])
def test_an_adapter_is_served_and_published(data, whole, tmp_path, capsys, kind):
    more = ("--policy", whole, "--adapter.kind", kind, "--adapter.tokens", 4, "--train.max_steps", 3)
    assert told(capsys, *words(data, tmp_path / "run", *more))[0] == 0
    (tmp_path / "serve").mkdir()
    with Launched(1, ["serve", "--policy", tmp_path / "run", "--port", 0], cwd=tmp_path / "serve") as process:
        assert asked(process, tmp_path / "serve" / ".out-0").strip()
        process.signal(signal.SIGTERM)
        assert process.wait() == [143]
    code, shown, error = told(capsys, "publish", tmp_path / "run", "--to", tmp_path / "out")
    if kind == "prompt":
        assert code == 2 and "cannot merge its 4 virtual tokens into weights" in error
        assert not (tmp_path / "out").exists()
        return
    assert code == 0 and "its lora merged" in shown
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"] and load_policy(tmp_path / "out").version == 2
    for path in (tmp_path / "out").iterdir():
        raw = path.read_bytes()
        assert not any(str(place).encode() in raw for place in (tmp_path, data, whole)), path.name
    assert "| `lora`, merged into the weights |" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run", "serve"], "nothing lies beside it"


# ---------------------------------------------------------------------- torchrun


@pytest.mark.long
def test_torchrun(data, whole, tmp_path):
    """As users start it: one rank speaks, the losses are those of one process; a killed rank ends it, told once."""
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "evolvent"]
    how: dict[str, Any] = {
        "cwd": tmp_path,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "env": {**os.environ, "OMP_NUM_THREADS": "1"},
    }
    with subprocess.Popen([*program, *words(data, "run", "--parallel.shard", 2)], **how) as process:
        shown, error = process.communicate(timeout=200)
    assert process.returncode == 0 and shown.count("model run/model") == 1 and "Warning" not in error, error
    assert sums.apart(tmp_path / "run", whole) < 2e-6
    log = tmp_path / "other" / "metrics.jsonl"
    endless = words(data, "other", "--parallel.shard", 2, "--train.max_steps", 100_000)
    with subprocess.Popen([*program, *endless], **how) as process:
        while not log.exists() or log.read_bytes().count(b"\n") < 5:
            assert process.poll() is None
            time.sleep(0.1)
        listed = subprocess.run(
            ["ps", "--ppid", str(process.pid), "-o", "pid="], capture_output=True, text=True, check=True
        )
        os.kill(int(listed.stdout.split()[-1]), signal.SIGKILL)
        shown, error = process.communicate(timeout=200)
    told_once = [line for line in error.splitlines() if line.startswith("error: ")]
    assert process.returncode == 1 and "SIGKILL" in error, error
    if re.search(r"exitcode *: 143", error):  # torchrun ended the other rank before that one had noticed
        assert not told_once, error
    else:
        assert len(told_once) == 1 and "died, or was silent for too long" in told_once[0], error
