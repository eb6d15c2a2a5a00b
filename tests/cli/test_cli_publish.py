"""`evolvent publish`: real small runs become folders that transformers loads, whole or not at all, with a true card."""

from __future__ import annotations

import errno
import json
import re
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import evolvent as ev
from evolvent.cli.main import main
from evolvent.cli.publish.command import parse_license
from evolvent.cli.publish.folders import atomic_folder
from evolvent.errors import NoSpace, StoreUnavailable
from evolvent.scale.local_backend import EvaluationPanel
from tests.faults.launched import Launched

NO_NETWORK = """
import socket
def refuse(*words):
    raise AssertionError(f"the network was asked for: {words}")
socket.socket.connect = socket.getaddrinfo = refuse
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of `local_run`: cloned and measured, then one round more; no `run.json`."""
    folder = tmp_path_factory.mktemp("published runs") / "small run"
    world = ev.Lookup()
    tasks = world.tasks("train", "seen")
    learner = ev.TrainConfig(lr=5e-3, batch_tokens=256)
    with ev.local_run(folder, [world], seed=0, train=learner, panel=EvaluationPanel(limit=3)) as run:
        policy = run.fit(
            ev.make_policy([world]), ev.collect_demonstrations([world], tasks[:4]), ev.weighted_nll, tokens=300
        )
        run.evaluate(policy, 0)
        for number in run.rounds(1):
            policy = run.fit(policy, ev.collect_demonstrations([world], tasks[4:6]), ev.weighted_nll, tokens=100)
            run.evaluate(policy, number)
        policy.save(folder / "model")
    return folder


@pytest.fixture(scope="module")
def out(made):
    """The run's result, published."""
    folder = made.parent / "out"
    assert main(["publish", str(made), "--to", str(folder), "--license", "apache-2.0"]) == 0
    return folder


@pytest.fixture
def copied(made, tmp_path):
    """The run, to be damaged."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def told(capsys, *words: object) -> tuple[int, str, str]:
    code = main(["publish", *map(str, words)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def card(folder: Path) -> tuple[dict, str]:
    _, front, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(front), text


def note(folder: Path) -> dict:
    return json.loads((folder / "evolvent.json").read_text(encoding="utf-8"))["published"]


@contextmanager
def full_disk(most: int):
    """No file of this process may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# ---------------------------------------------------------------- what is written


def test_transformers_loads_the_very_policy(made, out):
    model = AutoModelForCausalLM.from_pretrained(out, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(out, local_files_only=True)
    policy, again = ev.load_policy(made / "model"), ev.load_policy(out)
    text = ev.Lookup().make(ev.Lookup().tasks("test", "seen")[0]).reset()[0]
    ids = policy.dialect.open("", text)
    turns = [{"role": "user", "content": text}]
    assert tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"] == ids
    with torch.no_grad():
        logits = [one(torch.tensor([ids])).logits for one in (model.eval(), policy.model, again.model)]
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[2], logits[1])
    assert (again.version, again.dialect.name) == (policy.version, "words") == (2, "words")


def test_the_code_of_the_card_runs_without_a_network(out, tmp_path):
    """Both blocks, as they stand but for the folder: one action is written, and whole episodes are played."""
    blocks = re.findall(r"^```python\n(.*?)^```$", card(out)[1], re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    script = tmp_path / "card.py"
    script.write_text(NO_NETWORK + "\n".join(blocks).replace("path/to/this/folder", str(out)), encoding="utf-8")
    with Launched(1, [script], cwd=tmp_path) as program:
        assert program.wait() == [0], program.said()
    lines = (tmp_path / ".out-0").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 4 and all(line.startswith("lookup (") for line in lines[1:])


def test_the_card_holds_the_figures_of_the_run(made, out):
    front, text = card(out)
    rows = [json.loads(line) for line in (made / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    own = {row["tier"]: row for row in rows if row["round"] == 1}
    results = front["model-index"][0]["results"]
    assert [one["dataset"] for one in results] == [
        {"name": "lookup", "type": "lookup", "config": tier, "split": "test"} for tier in own
    ]
    assert [one["metrics"][0]["value"] for one in results] == [round(100 * row["mean"], 1) for row in own.values()]
    assert (
        front["license"] == "apache-2.0" and "SPDX-License-Identifier: Apache-2.0\n" in content(out)["LICENSE"].decode()
    )
    assert "arm `evolve`, round 1" in text and "Learned in `base-0-fit-" in text and "Worlds: `lookup`." in text
    for gone in ("settings of the run are not recorded", "no control of its round"):
        assert gone in text
    assert "No end of the run is recorded" not in text, "runs of Python record their end too"
    ledger = [json.loads(line) for line in (made / "stages.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = note(out)
    assert [(row["name"], row["key"]) for row in kept["stages"]] == [(row["name"], row["key"]) for row in ledger]
    assert kept["policy"]["key"] == ledger[2]["key"] and kept["policy"]["source"] == "model"
    assert set(kept["files"]) == set(content(out)) - {"evolvent.json"}


def test_published_twice_is_the_same_bytes(made, out, tmp_path, capsys):
    assert told(capsys, made, "--to", tmp_path / "a" / "b", "--license", "Apache-2.0")[0] == 0
    assert content(tmp_path / "a" / "b") == content(out)
    shutil.copytree(made, tmp_path / "small run")
    assert told(capsys, tmp_path / "small run", "--to", tmp_path / "c", "--license", "Apache-2.0")[0] == 0
    assert content(tmp_path / "c") == content(out), "wherever the run lies"


def test_another_round(made, tmp_path, capsys):
    code, shown, _ = told(capsys, made, "--to", tmp_path / "base", "--round", "0")
    assert code == 0 and "published stages/base-0-fit-" in shown and "(arm base, round 0)" in shown
    assert "warning: no license stated, so the card says `license: other`" in shown
    assert card(tmp_path / "base")[0]["license"] == "other" and not (tmp_path / "base" / "LICENSE").exists()
    assert ev.load_policy(tmp_path / "base").version == 1
    assert {row["round"] for row in note(tmp_path / "base")["results"]} == {0}
    assert "no control" not in card(tmp_path / "base")[1], "it is what a control is held against"


def test_a_run_whose_model_was_not_kept(copied, tmp_path, capsys, out):
    shutil.rmtree(copied / "model")
    code, shown, _ = told(capsys, copied, "--to", tmp_path / "o", "--arm", "evolve")
    assert code == 0 and "published stages/evolve-1-fit-" in shown
    assert content(tmp_path / "o")["model.safetensors"] == content(out)["model.safetensors"]


def test_a_run_of_train(tmp_path, capsys):
    small = ("--worlds", "lookup")
    assert main(["collect", *small, "--limit", "6", "--to", str(tmp_path / "shown")]) == 0
    words = ["train", str(tmp_path / "shown"), *small, "--train.tokens", "300", "--to", str(tmp_path / "taught")]
    assert main(words) == 0
    assert told(capsys, tmp_path / "taught", "--to", tmp_path / "o")[0] == 0
    front, text = card(tmp_path / "o")
    assert "model-index" not in front and "has not been evaluated in its run" in text
    assert "| `train.tokens` | `300` |" in text and "Learned from `shown` by the recipe `sft`." in text
    kept = note(tmp_path / "o")
    assert kept["run"]["settings"]["train"]["tokens"] == 300 and kept["run"]["state"] == "finished"
    assert "targets in " in text and set(kept["records"]) == {"run.json", "config.toml"}
    for name, raw in content(tmp_path / "o").items():
        assert str(tmp_path).encode() not in raw, f"{name} tells where the run lies"


def test_a_damaged_run_says_so(copied, tmp_path, capsys):
    lines = (copied / "results.jsonl").read_text(encoding="utf-8").splitlines()
    (copied / "results.jsonl").write_text("\n".join([lines[4], "{broken", *lines[5:6], '{"torn']), encoding="utf-8")
    (copied / "run.json").write_text('{"state": "running", "seed": NaN}', encoding="utf-8")
    code, shown, _ = told(capsys, copied, "--to", tmp_path / "o")
    assert code == 0 and "note: results.jsonl has 1 unreadable line" in shown
    text = card(tmp_path / "o")[1]
    assert "results.jsonl has 1 unreadable line, passed over." in text and "run.json is not readable as JSON." in text
    assert len(note(tmp_path / "o")["results"]) == 2


def test_only_files_of_a_policy_are_handed_on(copied, tmp_path, capsys):
    for name in ("optimizer.pt", "modeling.py", "secret.env", "README.md"):
        (copied / "model" / name).write_text("x", encoding="utf-8")
    (copied / "model" / "runs").mkdir()
    assert told(capsys, copied, "--to", tmp_path / "o")[0] == 0
    assert not {"optimizer.pt", "modeling.py", "secret.env", "runs"} & set(content(tmp_path / "o"))
    assert card(tmp_path / "o")[0]["library_name"] == "transformers"


# ---------------------------------------------------------------- where it is written


def test_replacing(made, out, copied, tmp_path, capsys):
    to = Path(shutil.copytree(out, tmp_path / "o"))
    first = content(to)
    code, _, error = told(capsys, made, "--to", to)
    assert code == 2 and "already holds the publication of this run (pass --force to replace it)" in error
    assert content(to) == first
    assert told(capsys, made, "--to", to, "--force")[0] == 0
    assert card(to)[0]["license"] == "other" and "LICENSE" not in content(to)
    (to / ".git").mkdir()
    code, _, error = told(capsys, made, "--to", to, "--force")
    assert code == 2 and "holds files that evolvent did not publish: .git (move them away)" in error
    (to / ".git").rmdir()
    (copied / "run.json").write_text(json.dumps({"method": "agentevol", "seed": 1}), encoding="utf-8")
    code, _, error = told(capsys, copied, "--to", to, "--force")
    assert code == 2 and "holds the publication of another run (choose another folder)" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o", "run"]


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_folder_of_others_is_left_alone(made, tmp_path, capsys, force):
    (tmp_path / "mine.txt").write_text("x", encoding="utf-8")
    (tmp_path / "evolvent.json").write_text('{"published": []}', encoding="utf-8")
    code, _, error = told(capsys, made, "--to", tmp_path, *force)
    assert (code, error.count("\n")) == (2, 1) and "is not empty and does not hold a publication" in error
    code, _, error = told(capsys, made, "--to", tmp_path / "mine.txt", *force)
    assert code == 2 and "is not a folder" in error
    assert told(capsys, made, "--to", made / "model")[0] == 2, "nor is the run's own"
    (tmp_path / "empty").mkdir()
    assert told(capsys, made, "--to", tmp_path / "empty")[0] == 0


def test_a_full_disk_leaves_nothing_behind(made, out, tmp_path, capsys):
    to = Path(shutil.copytree(out, tmp_path / "o"))
    first = content(to)
    with full_disk(100_000):
        code, _, error = told(capsys, made, "--to", tmp_path / "new")
        again, _, _ = told(capsys, made, "--to", to, "--force")
    assert (code, again, error.count("\n")) == (1, 1, 1) and "no space left for" in error
    assert [path.name for path in tmp_path.iterdir()] == ["o"] and content(to) == first


@pytest.mark.parametrize("place", ["/proc/evolvent/o", "FILE/o"])
def test_a_place_that_cannot_be_written(made, tmp_path, capsys, place):
    (tmp_path / "FILE").write_text("x", encoding="utf-8")
    code, _, error = told(capsys, made, "--to", place.replace("FILE", str(tmp_path / "FILE")))
    assert (code, error.count("\n")) == (1, 1) and "cannot use" in error and "Check that" in error


def test_a_folder_is_whole_or_not_there(tmp_path):
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "o") as folder:
        (folder / "half").write_text("x", encoding="utf-8")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(tmp_path / "o") as folder:
        (folder / "one").write_text("1", encoding="utf-8")
        assert not (tmp_path / "o").exists()
    with pytest.raises(NoSpace), atomic_folder(tmp_path / "o") as folder:
        (folder / "two").write_text("2", encoding="utf-8")
        raise OSError(28, "full")
    assert content(tmp_path / "o") == {"one": b"1"} and len(list(tmp_path.iterdir())) == 1


def test_the_old_folder_comes_back_where_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "one").write_text("1", encoding="utf-8")
    rename = Path.rename

    def busy(path: Path, to: Path) -> Path:
        if path.name.startswith(".o.new"):
            raise OSError(errno.EBUSY, "busy")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", busy)
    with pytest.raises(StoreUnavailable), atomic_folder(tmp_path / "o") as folder:
        (folder / "two").write_text("2", encoding="utf-8")
    assert content(tmp_path / "o") == {"one": b"1"} and len(list(tmp_path.iterdir())) == 1


# ---------------------------------------------------------------- what is refused


def test_everything_wrong_at_once(made, tmp_path, capsys):
    (tmp_path / "x").write_text("x", encoding="utf-8")
    code, shown, error = told(capsys, made, "--to", tmp_path, "--license", "Apache-20", "--arm", "evolv")
    assert (code, shown) == (2, "")
    assert error.splitlines() == [
        "error: 3 problems",
        "  --license: unknown license 'Apache-20' "
        "(did you mean 'Apache-2.0'?; write LicenseRef-NAME for a custom license)",
        f"  --to: {tmp_path} is not empty and does not hold a publication (choose another folder)",
        "  --arm: unknown arm 'evolv' (did you mean 'evolve'?)",
    ]
    code, _, error = told(capsys, tmp_path / "nowhere", "--to", tmp_path, "--license", "no")
    assert code == 2 and error.startswith("error: 3 problems") and "is not a run" in error
    code, _, error = told(capsys, made, "--too", tmp_path, "--rounds", "1")
    assert code == 2 and "did you mean '--to'?" in error and "did you mean '--round'?" in error


def test_policies_that_are_not_there(made, copied, tmp_path, capsys):
    code, _, error = told(capsys, made, "--to", tmp_path / "o", "--round", "7")
    assert (code, error.count("\n")) == (2, 1)
    assert "arm 'evolve' has no policy of round 7 (known: 0, 1)" in error
    shutil.rmtree(next((copied / "stages").glob("base-0-fit-*")) / "policy")
    code, _, error = told(capsys, copied, "--to", tmp_path / "o", "--round", "0")
    assert code == 2 and "no longer holds stages/base-0-fit-" in error
    shutil.rmtree(copied / "model")
    lines = (copied / "stages.jsonl").read_text(encoding="utf-8").splitlines()
    evil = json.dumps({**json.loads(lines[2]), "name": "../../../etc"})
    (copied / "stages.jsonl").write_text("\n".join([*lines[:2], evil, lines[3], ""]), encoding="utf-8")
    code, _, error = told(capsys, copied, "--to", tmp_path / "o")
    assert code == 2 and "no longer holds stages/../../../etc/policy" in error
    (copied / "stages.jsonl").write_text("", encoding="utf-8")
    code, _, error = told(capsys, copied, "--to", tmp_path / "o")
    assert code == 2 and "does not hold a policy: no training stage has finished" in error
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_links_and_broken_models_are_refused(copied, tmp_path, capsys):
    weights = copied / "model" / "model.safetensors"
    weights.rename(tmp_path / "elsewhere.safetensors")
    weights.symlink_to(tmp_path / "elsewhere.safetensors")
    code, _, error = told(capsys, copied, "--to", tmp_path / "o")
    assert code == 1 and "holds links, which cannot be published" in error
    weights.unlink()
    weights.write_bytes((tmp_path / "elsewhere.safetensors").read_bytes()[:5000])
    code, _, error = told(capsys, copied, "--to", tmp_path / "o")
    assert (code, error.count("\n")) == (1, 1) and "cannot be loaded" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere.safetensors", "run"]


@pytest.mark.parametrize(
    ("given", "spdx", "hub", "name"),
    [
        ("MIT", "MIT", "mit", ""),
        ("cc-by-4.0", "CC-BY-4.0", "cc-by-4.0", ""),
        ("GPL-3.0-only", "GPL-3.0-only", "gpl-3.0", ""),
        ("LicenseRef-Our-Terms.1", "LicenseRef-Our-Terms.1", "other", "our-terms.1"),
    ],
)
def test_licences(given, spdx, hub, name):
    found = parse_license(given, problems := [])
    assert found is not None and (found.spdx, found.hub, found.name, problems) == (spdx, hub, name, [])


@pytest.mark.parametrize("given", ["", "Apache 2", "other", "LicenseRef-", "LicenseRef-a b", "MIT\n", "gpl-3.0"])
def test_a_slip_is_no_licence(given):
    assert parse_license(given, problems := []) is None
    assert len(problems) == 1 and "LicenseRef-NAME" in problems[0].hint
