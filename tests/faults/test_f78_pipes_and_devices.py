"""Fault 78: a model folder holds a pipe or a device in place of a file, which would be waited for without end.

It is refused before it is opened; links to ordinary files are files.
"""

from __future__ import annotations

import os
import time

import pytest

pytest.importorskip("transformers")

import evolvent as ev
from evolvent.cli.train.planning import read_model_config
from evolvent.errors import EvolventError, Incomplete, UnsafeFile
from evolvent.models.policy import load_policy
from evolvent.serve.openai.reload import load_replacement


@pytest.fixture
def folder(tmp_path):
    ev.tiny_policy(["go", "left"], context=32).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "evolvent.json", "model.safetensors", "adapter_config.json"]
)
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    started = time.monotonic()
    for load in (load_policy, lambda path: read_model_config(str(path))):
        with pytest.raises(UnsafeFile, match=rf"{name} is not an ordinary file"):
            load(folder)
    with pytest.raises(EvolventError):
        load_replacement(folder.parent, "model", ev.tiny_policy(["go", "left"], context=32))
    assert time.monotonic() - started < 60


def test_a_link_to_a_device_and_one_that_leads_nowhere_are_refused(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")
    with pytest.raises(UnsafeFile):
        load_policy(folder)
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(folder / "absent.json")
    with pytest.raises(Incomplete, match="cannot be read"):
        load_policy(folder)


def test_a_link_to_a_file_is_a_file(folder):
    """The Hugging Face cache consists of such links."""
    (folder / "config.json").rename(folder.parent / "blob")
    (folder / "config.json").symlink_to(folder.parent / "blob")
    assert load_policy(folder).context == 32


def test_a_pipe_with_the_name_of_a_gguf_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "m.gguf")
    for path in (tmp_path, tmp_path / "m.gguf"):
        with pytest.raises(EvolventError):
            load_policy(path)
