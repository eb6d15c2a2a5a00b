"""Recorded tasks: the fixture of 50 pages, the official files, ranks, histories, scores, and files that are broken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from evolvent.errors import ConfigError, InvalidAction, SessionGone, UnsafeFile, VersionMismatch, WorldError
from evolvent.grade.web_actions import ScoringRules, WebAction, score_step
from evolvent.trajectory import Step, Task, Trajectory
from evolvent.worlds.base import SPLITS, Parsed
from evolvent.worlds.check import check_env
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes
from evolvent.worlds.web_replay.generated import generate_row, generate_rows, write_rows
from evolvent.worlds.web_replay.records import parse_task, read_ranks
from evolvent.worlds.web_replay.world import WebGrammar, WebReplayWorld

WORLD = WebReplayWorld()
TASKS = [task for split in SPLITS for task in WORLD.tasks(split, "seen")]


def page(*ids: int) -> str:
    return "<html>" + "".join(f'<a backend_node_id="{one}">link {one}</a>' for one in ids) + "</html>"


def action(
    uid: str, right: list[int], wrong: list[int], *, op: str = "CLICK", value: str = "", **more: Any
) -> dict[str, Any]:
    return {
        "action_uid": uid,
        "cleaned_html": page(*sorted([*right, *wrong])),
        "raw_html": "",
        "operation": {"op": op, "original_op": op, "value": value},
        "pos_candidates": [{"backend_node_id": str(one)} for one in right],
        "neg_candidates": [{"backend_node_id": str(one)} for one in wrong],
        **more,
    }


def row(name: str, *actions: Any, **more: Any) -> dict[str, Any]:
    return {
        "annotation_id": name,
        "website": "w",
        "domain": "d",
        "subdomain": "s",
        "confirmed_task": f"do {name}",
        "action_reprs": [],
        "actions": list(actions),
        **more,
    }


TWO = row("t", action("u1", [12, 15], [11, 13, 14]), action("u2", [23], [21, 22], op="TYPE", value="a [b] c"))
RANKS = {"t_u1": {"11": 0, "15": 1, "13": 2, "14": 3, "12": 4}, "t_u2": {"23": 0, "21": 1, "22": 2}}


def world_of(folder: Path, rows: list[Any], ranks: object = None, **options: Any) -> WebReplayWorld:
    (folder / "test_task_0.json").write_text(json.dumps(rows), encoding="utf-8")
    path = None
    if ranks is not None:
        path = folder / "ranks.json"
        path.write_text(json.dumps(ranks), encoding="utf-8")
    return WebReplayWorld(folder, path, **options)


def only(world: WebReplayWorld) -> Task:
    (task,) = world.tasks("test", "seen")
    return task


def played(world: WebReplayWorld, task: Task, actions: list[str]) -> tuple[list[str], list[float | None], Any]:
    env = world.make(task)
    observation, info = env.reset()
    seen, rewards = [str(observation)], []
    for text in actions:
        observation, reward, _, _, info = env.step(text)
        seen.append(str(observation))
        rewards.append(reward)
    return seen, rewards, world.score(rewards, info)


def test_the_fixture_has_fifty_pages() -> None:
    rows, ranks = generate_rows(50, 0)
    assert (
        sum(len(one["actions"]) for one in rows) == 50 == len(ranks) == sum(len(WORLD.targets(task)) for task in TASKS)
    )
    assert len(TASKS) == len(rows) == len({task.id for task in TASKS})
    assert all(WORLD.tasks(split, "seen") for split in SPLITS)
    targets = [target for task in TASKS for target in WORLD.targets(task)]
    assert not [target for target in targets if target.unscorable]
    assert {target.operation for target in targets} == {"CLICK", "TYPE", "SELECT"}
    # what happens in the data happens here: misses, exact successes that are impossible, two right elements, brackets
    assert 0 < sum(target.is_missed for target in targets) <= sum(target.is_hidden for target in targets) < 15
    assert any(len(target.positives) > 1 for target in targets)
    assert any("]" in target.value for target in targets)


def test_generated_rows_are_in_the_official_format() -> None:
    """The target is marked in the raw page by the action's uid, and every candidate is on both pages."""
    for number in range(10):
        one, ranks = generate_row(3, number)
        assert (one, ranks) == generate_row(3, number)
        for act in one["actions"]:  # type: ignore[union-attr]
            target = act["pos_candidates"][0]["backend_node_id"]
            (marked,) = re.findall(rf'<[^<>]*data_pw_testid_buckeye="{act["action_uid"]}"[^<>]*>', act["raw_html"])
            assert f'backend_node_id="{target}"' in marked
            ids = [one["backend_node_id"] for one in (*act["pos_candidates"], *act["neg_candidates"])]
            assert sorted(ranks[f"{one['annotation_id']}_{act['action_uid']}"].values()) == list(range(len(ids)))
            for html in (act["raw_html"], act["cleaned_html"]):
                found = re.findall(r'backend_node_id="(\d+)"', html)
                assert len(found) == len(set(found))
                assert set(ids) <= set(found)


def test_written_rows_are_read_as_they_were_made(tmp_path: Path) -> None:
    ranks = write_rows(tmp_path, pages=50, seed=0)
    world = WebReplayWorld(tmp_path, ranks)
    made = {WORLD.get_record(task).id: task for task in TASKS}
    read = [task for split in SPLITS for task in world.tasks(split, "seen")]
    assert len(read) == len(made)
    assert {task.split for task in read} == {"train", "test"}
    for task in read:
        other = made[world.get_record(task).id]
        assert world.get_record(task) == WORLD.get_record(other)
        assert world.targets(task) == WORLD.targets(other)
        assert world.make(task).reset()[0] == WORLD.make(other).reset()[0]
        assert (world.name, task.kind) == ("mind2web", world.get_record(task).website)


def test_a_task_by_hand(tmp_path: Path) -> None:
    """Teacher-forced: whatever is done, the next page is the recorded one, and history tells what the record did."""
    world = world_of(tmp_path, [TWO], RANKS, top_k=3)
    first = (
        "Page 1: <html> <a id=11> link 11 </a> <a> link 12 </a> <a id=13> link 13 </a> <a> link 14 </a> "
        "<a id=15> link 15 </a> </html>"
    )
    second = "<html> <a id=21> link 21 </a> <a id=22> link 22 </a> <a id=23> link 23 </a> </html>"
    past = first.replace("<a> link 12", "<a id=12> link 12")
    for texts, rewards in (
        (["CLICK [15]", "TYPE [23] [a [b] c]"], [1.0, 1.0]),
        (["CLICK [12]", "`TYPE [23] [c a [b]]`"], [1.0, 1.0]),
        (["CLICK [11]", "SELECT [23] [a [b] c]"], [0.0, 0.0]),
        (["click", "TYPE [23] [a b c]"], [0.0, 0.0]),
    ):
        seen, got, score = played(world, only(world), texts)
        assert got == rewards
        assert (score.success, score.raw, score.unit) == (sum(rewards) == 2, sum(rewards), sum(rewards) / 2)
        assert seen[0] == f"Task: do t\n{first}"
        assert seen[1].endswith(f"Task: do t\n{past}\nAction 1: `CLICK [12]`\nPage 2: {second}")
        assert seen[2].endswith("The task is over.")
        assert seen[1].startswith("The last action was none: expected CLICK") == (texts[0] == "click")


@pytest.mark.parametrize(
    ("history", "told"), [("targets", "<a id=12> link 12"), ("as_seen", "<a> link 12"), ("none", None)]
)
def test_histories(tmp_path: Path, history: Any, told: str | None) -> None:
    """The pages of the history always contain what is right, or are as they were seen, or are not told."""
    world = world_of(tmp_path, [TWO], RANKS, top_k=3, history=history)
    seen, _, _ = played(world, only(world), ["CLICK [11]"])
    assert ("Page 1" in seen[1]) == (told is not None) == ("Action 1: `CLICK [12]`" in seen[1])
    assert told is None or told in seen[1]
    assert "<a> link 12" in seen[0]
    assert "Page 2" in seen[1]


def test_values_may_hold_back_quotes(tmp_path: Path) -> None:
    steps = [action(f"u{at}", [12], [11], op="TYPE", value=value) for at, value in enumerate(("a`b", "x `y` z", "`q`"))]
    world = world_of(tmp_path, [row("t", *steps)], rules=ScoringRules(step_success="exact"))
    _, rewards, score = played(world, only(world), list(world.expert(only(world))))
    assert rewards == [1.0, 1.0, 1.0] and score.success is True


def test_exact_success_may_be_impossible(tmp_path: Path) -> None:
    """The first right element, 12, is ranked behind the first three, the second is not; of all five both are."""
    for top_k, impossible in ((3, True), (5, False)):
        world = world_of(tmp_path, [TWO], RANKS, top_k=top_k, rules=ScoringRules("exact"))
        target = world.targets(only(world))[0]
        assert (target.is_missed, target.is_hidden) == (False, impossible)
        score = score_step(WebAction("CLICK", "12"), target, world.rules)
        assert (score.success, score.impossible) == (float(not impossible), impossible)
    world = world_of(tmp_path, [TWO], RANKS, top_k=1)
    assert world.targets(only(world))[0].is_missed
    assert played(world, only(world), ["CLICK [12]", "TYPE [23] [a [b] c]"])[1] == [0.0, 1.0]
    skipping = world_of(tmp_path, [TWO], RANKS, top_k=1, rules=ScoringRules(miss="skip"))
    score = played(skipping, only(skipping), ["CLICK [12]", "TYPE [23] [a [b] c]"])[2]
    assert (score.success, score.raw, score.unit) == (False, 1.0, 1.0)


def test_only_what_is_on_the_page_is_shown(tmp_path: Path) -> None:
    """A right element that is ranked first and is not on the page is missed, if no other is shown."""
    found = row("t", action("u1", [12, 99], [11]))
    found["actions"][0]["cleaned_html"] = page(11, 12)
    for first, missed in (("99", True), ("12", False)):
        ranks = {"t_u1": {one: int(one != first) * 3 for one in ("11", "12", "99")}}
        world = world_of(tmp_path, [found], ranks, top_k=1)
        (target,) = world.targets(only(world))
        assert (target.shown_ids, target.is_missed, target.unscorable) == (
            {"12"} - ({"12"} if missed else set()),
            missed,
            "",
        )


def parquet_file(path: Path, ranks: dict[str, dict[str, int]]) -> Path:
    rows = [(step, one, rank) for step, of in ranks.items() for one, rank in of.items()]
    table = pyarrow.table(
        dict(zip(("sample_id", "backend_node_id", "rank"), map(list, zip(*rows, strict=True)), strict=True))
    )
    parquet.write_table(table, path)
    return path


def test_ranks_come_as_json_or_parquet(tmp_path: Path) -> None:
    plain, nested = tmp_path / "ranks.json", tmp_path / "scores.json"
    plain.write_text(json.dumps(RANKS), encoding="utf-8")
    nested.write_text(json.dumps({"ranks": RANKS, "scores": {}}), encoding="utf-8")
    for path in (plain, nested, parquet_file(tmp_path / "ranks.parquet", RANKS)):
        assert read_ranks(path, max_rank=99).by_step == RANKS
        assert read_ranks(path, max_rank=1).by_step == {"t_u1": {"11": 0}, "t_u2": {"23": 0}}


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"t_u1": {"1": 0.5}}', '{"t_u1": {"1": true}}', '{"t_u1": {"1": -1}}', '{"t_u1": {}}', '{"t_u1": 3}'],
)
def test_other_files_are_no_ranks(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ranks.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read as ranks"):
        read_ranks(path, max_rank=5)


def test_pickled_ranks_are_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "scores_all_data.pkl"
    path.write_bytes(b"\x80\x04cposix\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(UnsafeFile, match="JSON or Parquet"):
        world_of(tmp_path, [TWO])
        WebReplayWorld(tmp_path, path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_ranks(tmp_path / "none.parquet", max_rank=5)


def test_without_ranks_every_candidate_is_shown(tmp_path: Path) -> None:
    """And ranks in the rows themselves are used."""
    world = world_of(tmp_path, [TWO], top_k=1)
    assert world.make(only(world)).reset()[0].count("id=") == 5  # type: ignore[union-attr]
    own = json.loads(json.dumps(TWO))
    for rank, one in enumerate([*own["actions"][0]["neg_candidates"], *own["actions"][0]["pos_candidates"]]):
        one["rank"] = rank
    world = world_of(tmp_path, [own], top_k=4)
    assert world.targets(only(world))[0].shown_ids == {"11", "12", "13", "14"}


def broken(part: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(TWO))
    part(found["actions"][0])
    return found


@pytest.mark.parametrize(
    "rows",
    [
        broken(lambda act: act.update(cleaned_html="")),
        broken(lambda act: act.pop("cleaned_html")),
        broken(lambda act: act.update(cleaned_html="<div>" * 600)),
        broken(lambda act: act.update(cleaned_html=page(1, 2))),
        broken(lambda act: act.update(action_uid="unranked")),
        broken(lambda act: act.pop("operation")),
        broken(lambda act: act.update(operation={"op": "HOVER", "value": ""})),
        broken(lambda act: act.clear()),
    ],
)
def test_what_cannot_be_scored_is_counted(tmp_path: Path, rows: dict[str, Any]) -> None:
    """Beside the averages, never dropped: the other step counts, the task's success cannot be told."""
    world = world_of(tmp_path, [rows], RANKS)
    task = only(world)
    seen, rewards, score = played(world, task, ["CLICK [12]", "TYPE [23] [a [b] c]"])
    assert rewards == [None, 1.0]
    assert (score.success, score.raw) == (None, None)
    assert len(seen) == 3
    steps = tuple(Step("", text) for text in ("CLICK [12]", "TYPE [23] [a [b] c]"))
    found = world.evaluate([Trajectory("a", task, steps)])
    assert (found.unscorable, found.unscorable_tasks, found.scored, found.steps) == (1, 1, 1, 2)
    assert (found.micro.success, found.task_success) == (1.0, None)


def test_rows_that_are_no_tasks_are_left_out_and_told(tmp_path: Path) -> None:
    rows = [TWO, 3, {}, row("none"), row("t", action("u", [1], [])), row("", action("u", [1], [])), row("u", "x")]
    world = world_of(tmp_path, rows)
    assert [world.get_record(task).id for task in world.tasks("test", "seen")] == ["t", "u"]
    assert [problem.where for problem in world.invalid] == [f"test_task_0.json, row {at}" for at in (1, 2, 3, 4, 5)]
    (tmp_path / "test_task_0.json").write_text(json.dumps(rows[1:4]), encoding="utf-8")
    with pytest.raises(ConfigError, match="row 0"):
        WebReplayWorld(tmp_path)
    for text in ("{", "{}", "[" * 10_000):
        (tmp_path / "test_task_0.json").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"test_task_0\.json"):
            WebReplayWorld(tmp_path)
    with pytest.raises(ConfigError, match="no recorded tasks"):
        WebReplayWorld(tmp_path / "nowhere")


def test_splits_are_the_official_ones(tmp_path: Path) -> None:
    for at, name in enumerate(("train", "test_task", "test_website", "test_domain", "dev")):
        (tmp_path / name).mkdir()
        rows = [row(f"{name}{n}", action("u", [1], [2])) for n in range(at + 1)]
        (tmp_path / name / f"{name}_0.json").write_text(json.dumps(rows), encoding="utf-8")
    world = WebReplayWorld(tmp_path)
    assert world.tiers == ("seen", "website", "domain")
    counts = {(split, tier): len(world.tasks(split, tier)) for split in SPLITS for tier in world.tiers}
    assert {at: n for at, n in counts.items() if n} == {
        ("train", "seen"): 1,
        ("test", "seen"): 2,
        ("test", "website"): 3,
        ("test", "domain"): 4,
        ("dev", "seen"): 5,
    }
    assert len(WebReplayWorld(tmp_path, sizes=Sizes(train=0, dev=2, test=1)).tasks("dev", "seen")) == 2
    with pytest.raises(ConfigError, match="tier"):
        world.tasks("test", "combo")


def test_a_task_of_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path, [TWO], RANKS)
    task = only(world)
    other = world_of(tmp_path, [row("t", action("u1", [12], [11]))])
    with pytest.raises(VersionMismatch, match="expected"):
        other.make(task)
    with pytest.raises(VersionMismatch, match="changed"):
        world.make(task)
    again = world_of(tmp_path, [TWO], {"t_u1": {"12": 0}, "t_u2": {"23": 0}})
    with pytest.raises(VersionMismatch, match="other ranks"):
        again.make(task)
    with pytest.raises(ConfigError):
        WORLD.make(task)
    for spec in ({}, {"seed": 0, "number": 999, "steps": 3}, {"seed": 1, "number": 0, "steps": 3}, {"number": True}):
        with pytest.raises(ConfigError, match="generated task out of range"):
            WORLD.make(Task("web_replay", "1", spec))


def test_experts_environments_and_words() -> None:
    """Recorded actions succeed wherever the page shows what is right; all words of the fixture are known."""
    known = set(WORLD.vocabulary() or ())
    for task in TASKS:
        targets = WORLD.targets(task)
        plan = WORLD.explain(task)
        assert [step.action for step in plan] == list(WORLD.expert(task))
        assert all(step.thought for step in plan)
        seen, rewards, score = played(WORLD, task, [step.action for step in plan])
        assert rewards == [float(not target.is_missed) for target in targets]
        assert score.success == (not any(target.is_missed for target in targets))
        for text in (*seen, *(f"{step.thought} {step.action}" for step in plan)):
            assert known.issuperset(words_of(text))
    for task in TASKS[:3]:
        plan = [*WORLD.expert(task), "nothing"]
        assert (
            check_env(
                lambda task=task: WORLD.make(task), choose=lambda rng, _, plan=plan: rng.choice(plan), forkable=True
            )
            == []
        )
    env = WORLD.make(TASKS[0])
    with pytest.raises(SessionGone):
        env.step("CLICK [1]")
    other = WORLD.make(TASKS[1])
    other.reset()
    with pytest.raises(ConfigError, match="snapshot"):
        env.restore(other.snapshot())


def test_evaluation_of_trajectories() -> None:
    """An episode that broke off has the steps that it did not reach as wrong ones; other rules need no new episodes."""
    whole = [Trajectory(task.id, task, tuple(Step("", text) for text in WORLD.expert(task))) for task in TASKS]
    found = WORLD.evaluate(whole)
    targets = [target for task in TASKS for target in WORLD.targets(task)]
    missed = sum(target.is_missed for target in targets)
    assert (found.steps, found.missed, found.scored) == (50, missed, 50)
    assert found.micro.success == pytest.approx(1 - missed / 50)
    skipped = WORLD.evaluate(whole, rules=ScoringRules(miss="skip"))
    assert (skipped.micro.success, skipped.macro.success, skipped.scored) == (1.0, 1.0, 50 - missed)
    assert skipped.task_success == found.task_success
    exact = WORLD.evaluate(whole, rules=ScoringRules("exact"))
    assert exact.impossible == sum(target.is_hidden for target in targets) >= missed
    short = [Trajectory(one.id, one.task, one.steps[:1]) for one in whole]
    assert WORLD.evaluate(short).micro.success == pytest.approx(
        sum(not WORLD.targets(task)[0].is_missed for task in TASKS) / 50
    )


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(max_size=40) | st.sampled_from(["`", "``", "CLICK [", "TYPE [1] [" + "]" * 500]), max_size=6)
)
def test_any_text_is_a_step(texts: list[str]) -> None:
    env = WORLD.make(TASKS[0])
    env.reset()
    for at, text in enumerate(texts[: len(WORLD.targets(TASKS[0]))]):
        _, reward, ended, truncated, info = env.step(text)
        assert reward in (0.0, 1.0)
        assert json.loads(json.dumps(info))["scores"][-1]["success"] == reward
        assert (ended, truncated, len(info["scores"])) == (at + 1 == len(WORLD.targets(TASKS[0])), False, at + 1)


@pytest.mark.parametrize("scores", [3, [3], [{}], [{"element": 1, "what": 2}]])
def test_scores_of_others_are_refused(scores: object) -> None:
    with pytest.raises(WorldError, match=r"the scores of the steps are missing \("):
        WORLD.score([1.0], {"scores": scores})


def test_the_grammar() -> None:
    grammar = WebGrammar()
    for parsed in (Parsed("CLICK [5]"), Parsed("TYPE [5] [a]", "the field is empty .")):
        assert grammar.parse(grammar.render(parsed)) == parsed
    for text in ("CLICK [5]", "", "``", "`CLICK [5]"):
        with pytest.raises(InvalidAction):
            grammar.parse(text)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError) as error:
        WebReplayWorld(ranks="ranks.json", top_k=0, history="all", pages=0)  # type: ignore[arg-type]
    assert len(error.value.problems) == 4


def test_a_row_keeps_its_hash_whatever_its_order() -> None:
    turned = dict(reversed(list(TWO.items())))
    assert parse_task(turned) == parse_task(TWO)


def test_candidates_are_ranked_by_their_text_where_no_ranks_are(tmp_path):
    """Of three links the two whose words stand in the instruction come first; ties keep the order of the page."""
    links = {7: "contact", 8: "red shoes", 9: "blue shoes", 10: "help"}
    html = "<html>" + "".join(f'<a backend_node_id="{id}">{text}</a>' for id, text in links.items()) + "</html>"
    step = action("u1", [9], [7, 8, 10]) | {"cleaned_html": html}
    (tmp_path / "test_task").mkdir()
    rows = [row("t1", step, confirmed_task="order the blue shoes")]
    (tmp_path / "test_task" / "test_task_0.json").write_text(json.dumps(rows))
    shown = {}
    for k in (1, 2, 3):
        world = WebReplayWorld(tmp_path, top_k=k, rank_by="text")
        (task,) = world.tasks("test", "seen")
        (target,) = world.targets(task)
        shown[k] = set(target.shown_ids)
        assert task.spec["ranks"] == "bm25-1" and world.make(task).reset()[0].count("id=") == k
    assert shown == {1: {"9"}, 2: {"9", "8"}, 3: {"9", "8", "7"}}
    assert WebReplayWorld(tmp_path).tasks("test", "seen")[0].id != task.id
    with pytest.raises(ConfigError, match="ranks by text are for files without ranks"):
        WebReplayWorld(rank_by="text")
