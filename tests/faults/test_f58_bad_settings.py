"""Fault 58: unknown or misspelt key, wrong type, contradiction, TOML syntax: one error that holds all of them."""

from __future__ import annotations

import pytest

from evolvent.cli.main import main


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys, *words: str) -> list[str]:
    """The lines of the complaint; the command must leave nothing behind."""
    assert main(list(words)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    return shown.err.splitlines()


def test_all_of_them_at_once(capsys, here):
    (here / "job.toml").write_text('sede = 1\n[train]\nlr = "fast"\n', encoding="utf-8")
    lines = told(
        capsys,
        "evolve",
        "job.toml",
        "--preset",
        "papr",
        "--method.iteratoins",
        "2",
        "--train.layout",
        "pakced",
        "--slots",
        "0",
        "--train.batch_tokens",
        "1.5",
    )
    assert lines == [
        "error: 7 problems",
        "  --preset: unknown preset 'papr' (did you mean 'paper'?)",
        "  job.toml: unknown key 'sede' (did you mean 'seed'?)",
        "  --method.iteratoins: unknown key 'method.iteratoins' (did you mean 'method.iterations'?)",
        "  train.lr: got 'fast', expected float > 0 (from job.toml)",
        "  train.layout: got 'pakced', expected 'auto' or 'bucketed' or 'packed' or 'shared' (did you mean 'packed'?)",
        "  slots: got '0', expected int >= 1",
        "  train.batch_tokens: got '1.5', expected int >= 1",
    ]
    assert [path.name for path in here.iterdir()] == ["job.toml"]


def test_toml_syntax_beside_the_rest(capsys, here):
    (here / "job.toml").write_text("seed = 1\nslots = = 2\n", encoding="utf-8")
    lines = told(capsys, "collect", "job.toml", "--agnet", "random")
    assert lines[0] == "error: 2 problems"
    assert "job.toml: not valid TOML" in lines[1] and "line 2" in lines[1]
    assert "unknown key 'agnet' (did you mean 'agent'?)" in lines[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["evolve", "--worlds", "lokup,crafting,jupiter"],
            ["unknown world 'lokup' (did you mean 'lookup'?)", "unknown world 'jupiter' (known: "],
        ),
        (["evolve", "--panel.split", "tset"], ["got 'tset', expected", "did you mean 'test'?"]),
        (["collect", "--tiers", "sen,evo"], ["unknown tier 'sen' (did you mean 'seen'?)"]),
        (["collect", "--split", "train", "--tiers", "combo"], ["the panels train/combo are empty"]),
        (["eval", "xs", "--panel.limit", "1"], ["got 1 task(s), expected at least 2"]),
        (["eval", "xs", "--panel.split", "train"], ["lookup/combo/train: got 0 task(s)"]),
        (["eval", "no-such-model"], ["unknown policy 'no-such-model'"]),
        (["eval"], ["policy: is required"]),
        (
            ["evolve", "--demonstrations", "1300"],
            ["got 1300 for world 'crafting', which has 1200 tasks (set"],
        ),
        (["evolve", "--explore", "5000", "--demonstrations", "1200"], ["got 5000 for world"]),
        (["evolve", "--resume", "nowhere"], ["nowhere is not a run"]),
        (["train", "nowhere"], ["nowhere does not exist"]),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_names_and_panels(capsys, here, words, said):
    lines = told(capsys, *words)
    assert all(any(part in line for line in lines) for part in said), lines
    assert list(here.iterdir()) == [], "found before anything is made"
