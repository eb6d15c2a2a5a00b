"""The scripts of the documentation: each runs as it stands, in an empty directory, and shows what it promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evolvent.models.policy import load_policy
from evolvent.store.store import Store
from tests.faults.launched import Launched

ROOT = Path(__file__).parents[2]
PAGES = {"own_model": "models.md", "own_world": "worlds.md", "own_method": "extending.md"}


def run(name: str, folder: Path, *words: str) -> list[str]:
    """The lines that an example prints, run in this folder; from a process that has torch in memory."""
    with Launched(1, [ROOT / "examples" / f"{name}.py", *words], cwd=folder) as process:
        assert process.wait(seconds=300) == [0], process.said()
        return (folder / ".out-0").read_text(encoding="utf-8").splitlines()


def rates(line: str) -> dict[str, int]:
    """The percentages of `tier 12%, tier 34%`."""
    return {tier: int(rate) for tier, rate in re.findall(r"(\w+) +(\d+)%", line)}


def test_own_world(tmp_path):
    lines = run("own_world", tmp_path)
    assert len(lines) >= 5 and all(line.endswith(") True") for line in lines)
    for line in lines:
        found = re.fullmatch(r"\{'number': (\d+)\} \('32', .*'(\d+)'\) True", line)
        assert found and found[1] == found[2], "the last guess is the number"
    assert {path.name for path in tmp_path.iterdir()} == {".out-0", ".err-0"}, "a world needs no files but what it says"


def test_own_model(tmp_path):
    lines = run("own_model", tmp_path)
    assert [line.split()[:2] for line in lines] == [["lookup", tier] for tier in ("seen", "evo", "combo", "longer")]
    assert rates(lines[0])["seen"] >= 40, "60 times what an untrained model answers"
    saved = load_policy(tmp_path / "runs" / "own-model" / "model")
    assert saved.version == 1


def test_own_method(tmp_path):
    lines = run("own_method", tmp_path)
    assert [line.partition(":")[0] for line in lines] == ["round 0", "round 1", "round 2"]
    shown = [rates(line) for line in lines]
    assert all(set(one) == {"seen", "evo", "combo", "longer"} for one in shown)
    assert shown[0]["seen"] >= 20 and shown[2]["seen"] > shown[0]["seen"] - 10
    folder = tmp_path / "runs" / "own-method"
    assert (folder / "report.html").stat().st_size > 20_000
    stages = [row.id.partition("/")[0] for row in Store.open(folder / "trajectories").trajectories()]
    assert sum("-collect-" in stage for stage in stages) == 2 * 4 * 100
    again = run("own_method", tmp_path)
    assert again == lines, "finished stages are read, not done again"


@pytest.mark.parametrize(("name", "page"), PAGES.items())
def test_a_page_shows_the_file(name, page):
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:python|py)?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert source in blocks, f"docs/{page} holds another text than examples/{name}.py"
    assert len(source.splitlines()) <= 30


def test_grpo_prompts(tmp_path):
    run("grpo_prompts", tmp_path)
    told = (tmp_path / ".err-0").read_text(encoding="utf-8").splitlines()
    assert told[0] == "prompts: 20 train, 2 dev, 2 test rows; rewards share_on_topic x 1"
    assert [line.split(":")[0] for line in told[1:13]] == [f"iteration {number}/12" for number in range(1, 13)]
    before, after = re.findall(r"mean return ([\d.]+) before, ([\d.]+) after", told[13])[0]
    assert float(after) > float(before) + 0.3
    assert told[14].startswith("It is learning")
    assert load_policy(tmp_path / "runs" / "grpo-prompts" / "model").version > 0


def test_the_gallery_lists_every_script_with_its_length():
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (?:\[|`)([\w/]+\.py)\S* \|.*\| (\d+) \|$", page, re.MULTILINE))
    scripts = [*(ROOT / "examples").glob("*.py"), *(ROOT / "examples" / "agents").glob("*.py")]
    lengths = {path.relative_to(ROOT / "examples").as_posix(): path.read_text("utf-8").count("\n") for path in scripts}
    assert {name: int(length) for name, length in rows.items()} == lengths and max(lengths.values()) <= 60


def read_returns(lines: list[str], kind: str) -> list[float]:
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(kind)]


def test_a_team_is_trained_in_both_ways(tmp_path):
    lines = run("team_sequence", tmp_path, "1024")
    assert lines[0].startswith("mat      512 decisions: mean return 0.") and len(lines) == 2
    assert lines[1].startswith("mappo    512 decisions: mean return 0.")


@pytest.mark.long
def test_a_team_that_decides_in_sequence_shares_the_actions_out(tmp_path):
    lines = run("team_sequence", tmp_path)
    assert read_returns(lines, "mat ")[-1] > 0.8 and max(read_returns(lines, "mappo")) < 0.55  # chance: .42


@pytest.mark.long
def test_a_return_that_is_asked_for_is_earned(tmp_path):
    lines = run("offline_decisions", tmp_path)
    earned = dict(zip((100, 300, 500), read_returns(lines, "asked"), strict=True))
    assert all(abs(mean - asked) < 100 for asked, mean in earned.items()), earned


@pytest.mark.long
def test_a_study_of_one_seed_gives_no_verdict(tmp_path):
    lines = run("controlled_study", tmp_path, "1")
    assert [line for line in lines if line.endswith("played")] == ["base 0 played", "shown 0 played", "kept 0 played"]
    assert any(line.startswith("No verdict: 1 complete seeds") for line in lines)
    assert not [line for line in run("controlled_study", tmp_path, "1") if line.endswith(" begins")], "kept and read"
