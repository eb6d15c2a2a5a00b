"""Fault 61: an extra that is not installed is named with its install line; a broken plug-in only when it is used."""

from __future__ import annotations

import pytest

WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "safetensors", "tokenizers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


@pytest.fixture
def bare(command, tmp_path):
    """The command where the training extra is not installed."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WITHOUT_TORCH, encoding="utf-8")
    return lambda *words: command(*words, cwd=tmp_path, PYTHONPATH=str(site), COLUMNS="200")


def test_the_core_works_without_torch(bare, tmp_path):
    done = bare("worlds", "list")
    assert done.returncode == 0 and "lookup" in done.stdout
    done = bare("doctor")
    assert done.returncode == 0
    assert "without torch, transformers, safetensors; run: pip install 'evolvent[train]'" in done.stdout
    done = bare("collect", "--agent", "random", "--worlds", "lookup", "--limit", "4", "--to", "run")
    assert done.returncode == 0 and "4 episodes" in done.stdout, done.stderr
    done = bare("runs", "list", ".")
    assert done.returncode == 0 and "collect" in done.stdout
    assert bare("runs", "export", "run", "--to", "out.jsonl").returncode == 0
    assert bare("view", "run").returncode == 0


@pytest.mark.parametrize(
    ("words", "feature"),
    [
        (["evolve"], "evolvent evolve"),
        (["eval", "xs"], "evolvent eval"),
        (["train", "run"], "evolvent train"),
        (["collect", "--agent", "policy"], "evolvent collect --agent policy"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_extra_is_named(bare, tmp_path, words, feature):
    done = bare(*words)
    assert done.returncode == 1
    assert done.stderr == f"error: {feature} needs an extra. Run: pip install 'evolvent[train]'\n"
    assert not (tmp_path / "runs").exists()


def test_a_plug_in_that_raises(command, tmp_path):
    info = tmp_path / "bad_world-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-world\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[evolvent.worlds]\nbad = bad_world:World\n", encoding="utf-8")
    (tmp_path / "bad_world.py").write_text("raise RuntimeError('no licence')\n", encoding="utf-8")
    listed = command("worlds", "list", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert listed.returncode == 0 and "bad-world" in listed.stdout and listed.stderr == ""
    used = command("worlds", "show", "bad", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert used.returncode == 1
    assert "'bad' cannot be loaded (entry bad_world:World): RuntimeError: no licence" in used.stderr
