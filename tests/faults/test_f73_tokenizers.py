"""Fault 73: a tokenizer of a stranger that ends its process, asks for gigabytes or never ends.

It is loaded and used in a process that can be killed before it is loaded here; a failure is one typed sentence.
"""

from __future__ import annotations

import json

import pytest
from worker_functions import ask_for_memory, end_process, sleep_long

pytest.importorskip("transformers")

import evolvent as ev
from evolvent.errors import EvolventError, Incomplete
from evolvent.models import inspection
from evolvent.models.policy import load_policy
from evolvent.workers import SharedWorker


@pytest.fixture
def folder(tmp_path):
    ev.tiny_policy(["go", "left"], context=32).save(tmp_path / "model")
    return tmp_path / "model"


FAILURES = {
    "ends": (end_process, "or ended its process"),
    "memory": (ask_for_memory, "MemoryError"),
    "slow": (sleep_long, r"it took more than 0\.4 s"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_tokenizer_that_fails_in_its_trial_is_not_loaded_here(folder, monkeypatch, name):
    function, message = FAILURES[name]
    worker = SharedWorker(function, wall_s=0.4, memory_mb=256)
    monkeypatch.setattr(inspection, "_TOKENIZERS", worker)
    monkeypatch.setattr("evolvent.models.policy._load_tokenizer", lambda *_: pytest.fail("it was loaded"))
    try:
        with pytest.raises(Incomplete, match=rf"the tokenizer in .* cannot be loaded: got .*{message}"):
            load_policy(folder)
    finally:
        worker.close()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 7},
        {"model": {"type": "BPE"}},
        {"model": None},
        {"added_tokens": "none"},
        {"decoder": {"type": "Own"}},
    ],
)
def test_a_damaged_tokenizer_is_a_typed_error(folder, change):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(Incomplete, match=r"the tokenizer in .* cannot be loaded"):
        load_policy(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "nothing"])
def test_a_tokenizer_that_is_not_json_is_a_typed_error(folder, text):
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(EvolventError):
        load_policy(folder)


def test_a_tokenizer_is_tried_once_as_long_as_its_file_stays(folder, monkeypatch):
    load_policy(folder)
    worker = SharedWorker(end_process, wall_s=5.0, memory_mb=256)
    monkeypatch.setattr(inspection, "_TOKENIZERS", worker)
    load_policy(folder)
    assert worker._workers is None
    (folder / "tokenizer.json").touch()
    with pytest.raises(Incomplete):
        load_policy(folder)
    worker.close()
