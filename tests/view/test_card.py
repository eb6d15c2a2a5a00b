"""The model card: its front matter as the Hub reads it, its figures those of the run, and nothing made up."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import yaml
from fabricated import write_run
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from evolvent.view.card import build_card, list_missing, strip_folders
from evolvent.view.data import ReportData, RunInfo, read_run
from evolvent.view.published import License, PolicyFacts, PublishedPolicy, build_lines

WEIGHTS = PolicyFacts("LlamaForCausalLM", 170_368, 159, 256, "float32", "words", {"layers": 3, "hidden units": 64})
EVIL = "<script>x</script>|[a](javascript:b)\n# h\n---\n`c` \u202e\x1b[2J ![p](https://evil.example/p.png) \"q\" 'r' \\"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return read_run(write_run(tmp_path_factory.mktemp("runs") / "run", rounds=2, tasks=40))


def published(data: ReportData, *, number: int = 2, license: License | None = None) -> PublishedPolicy:
    fits = [row for row in data.stages if row.verb == "fit" and row.arm == "evolve" and row.round == number]
    return PublishedPolicy("evolve-crafting-lookup", data, WEIGHTS, "model", fits[0] if fits else None, True, license)


def front(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


def tables(text: str) -> list[list[list[str]]]:
    """The cells of every table, as a CommonMark parser reads them."""
    found: list[list[list[str]]] = []
    tokens = MarkdownIt("commonmark").enable("table").parse(text.split("\n---\n", 1)[1])
    for at, token in enumerate(tokens):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type in ("td_open", "th_open"):
            found[-1][-1].append("".join(child.content for child in tokens[at + 1].children))
    return found


def test_the_front_matter_is_what_the_hub_reads(data):
    text = build_card(published(data, license=License("MIT", "mit")))
    found = front(text)
    assert (found["library_name"], found["pipeline_tag"], found["license"]) == (
        "transformers",
        "text-generation",
        "mit",
    )
    assert found["tags"] == ["evolvent", "agent", "agentevol"]
    results = ModelCard(text).data.eval_results
    rows = {(row.world, row.tier): row for row in data.results if (row.arm, row.round) == ("evolve", 2)}
    assert len(results) == len(rows) == 8
    for one in results:
        row = rows[one.dataset_name, one.dataset_config]
        assert (one.dataset_split, one.metric_type) == ("test", "success_rate")
        assert one.metric_value == round(100 * row.mean, 1)


def test_the_figures_are_those_of_the_run(data):
    text = build_card(published(data))
    model, tokens, settings, results = tables(text)
    assert ["parameters", "170,368"] in model and ["vocabulary", "159 tokens"] in model
    learned = sum(row.counts["trained"] for row in data.stages if row.arm != "control" and row.verb == "fit")
    assert ["learning", "3", f"{learned:,.0f}", "0", "2,700,000"] in tokens
    assert ["train.lr", "0.004"] in settings
    assert results[0] == [
        "world",
        "tier",
        "split",
        "tasks",
        "success",
        "95 % interval",
        "before exploring",
        "control",
        "difference, 95 %",
        "random",
        "blind replay",
        "expert",
    ]
    rows = {(row.world, row.tier, row.arm, row.round): row for row in data.results}
    for cells in results[1:]:
        row = rows[cells[0], cells[1], "evolve", 2]
        control, base = rows[cells[0], cells[1], "control", 2], rows[cells[0], cells[1], "base", 0]
        assert cells[3:5] == ["40", f"{100 * row.mean:.1f} %"]
        assert cells[5] == f"{100 * row.low:.1f} % to {100 * row.high:.1f} %"
        assert cells[6:8] == [f"{100 * base.mean:.1f} %", f"{100 * control.mean:.1f} %"]
        assert cells[8].startswith(f"{100 * (row.mean - control.mean):+.1f} (") and cells[-1] == "100.0 %"
    assert "One run on one seed (seed `0`): an exploration, not a proof" in text
    assert re.search(r"Over `evo`, `combo`: [+-]\d+\.\d points against the control", text)
    assert "Nothing is missing." in text


def test_it_is_the_same_every_time(data):
    assert build_card(published(data)) == build_card(published(data))


def test_the_code_is_python(data):
    text = build_card(published(data))
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for block in blocks:
        compile(block, "card", "exec")
    assert 'worlds(["crafting", "lookup"])' in blocks[1]
    assert json.loads(re.search(r'"content": (".*")}', blocks[0])[1]) == data.examples[0].steps[0].observation
    lines_card = build_card(replace(published(data), weights=replace(WEIGHTS, dialect="lines")))
    assert "\\nAction:" in lines_card and "apply_chat_template" not in lines_card
    assert "`<unk>`" in text and "`<unk>`" not in lines_card


def test_an_empty_run_says_what_is_missing():
    bare = ReportData(notes=("stages.jsonl has 2 unreadable lines, passed over",))
    text = build_card(PublishedPolicy("r", bare, WEIGHTS, "model", None, True))
    assert "model-index" not in front(text) and front(text)["license"] == "other"
    gone = text.partition("## What the run does not say")[2]
    for words in ("2 unreadable lines", "No end of the run", "settings", "ledger", "no evaluation of this policy"):
        assert words in gone
    assert "has not been evaluated" in text and "No license is stated" in text and "Worlds: not recorded" in text
    assert "what this policy cost is not known" in text


def test_a_panel_with_errors_is_withheld(data):
    spoiled = tuple(
        replace(row, mean=None, low=None, high=None, errors=3) if row.tier == "evo" else row for row in data.results
    )
    text = build_card(published(replace(data, results=spoiled)))
    assert len(front(text)["model-index"][0]["results"]) == 6
    (table,) = [table for table in tables(text) if table[0][0] == "world"]
    assert [cells[4] for cells in table if cells[1] == "evo"] == ["withheld: 3 episodes with errors"] * 2
    assert "points against the control" not in text, "a mean over the rest would be another number"


def test_columns_without_figures_are_left_out(data):
    alone = replace(data, floors={}, results=tuple(row for row in data.results if row.arm == "evolve"))
    (table,) = [table for table in tables(build_card(published(alone))) if table[0][0] == "world"]
    assert table[0] == ["world", "tier", "split", "tasks", "success", "95 % interval"]
    said = list_missing(published(alone), build_lines(published(alone)))
    assert [one.split()[0] for one in said] == ["What", "There"]


def test_a_control_that_is_the_same_policy_is_called_that(data):
    shared = {row.round: row.stage for row in data.results if row.arm == "evolve"}
    same = tuple(replace(row, stage=shared[row.round]) if row.arm == "control" else row for row in data.results)
    assert "The control is this very policy" in build_card(published(replace(data, results=same)))


def test_everything_in_a_run_may_be_hostile(data):
    rows = tuple(replace(row, world=EVIL, tier=EVIL, split=EVIL) for row in data.results)
    info = RunInfo(
        EVIL,
        EVIL,
        EVIL,
        EVIL,
        EVIL,
        (EVIL, "--to=/srv/ana/x"),
        ("evolve", EVIL),
        {EVIL: EVIL},
        {EVIL: [EVIL], "policy": EVIL, "worlds": [EVIL], "data": EVIL},
    )
    stages = tuple(replace(row, name=row.name if row.verb == "evaluate" else EVIL) for row in data.stages)
    shown = replace(data.examples[0].steps[0], observation=EVIL)
    hostile = replace(
        data,
        info=info,
        results=rows,
        stages=stages,
        notes=(EVIL,),
        floors={(EVIL, EVIL): {EVIL: 0.5}},
        examples=(replace(data.examples[0], steps=(shown,)),),
    )
    weights = replace(WEIGHTS, architecture=EVIL, dtype=EVIL, dialect=EVIL, shape={EVIL: 1})
    text = build_card(
        replace(published(hostile), name=EVIL, source=EVIL, license=License(EVIL, EVIL, EVIL), weights=weights)
    )
    found = front(text)
    assert set(found) == {
        "library_name",
        "pipeline_tag",
        "license",
        "license_name",
        "license_link",
        "tags",
        "model-index",
    }
    tokens = MarkdownIt("commonmark").enable("table").parse(text.split("\n---\n", 1)[1])
    kinds = {one.type for token in tokens for one in (token, *(token.children or ()))}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "em_open", "hr", "code_block"}
    assert [t.content for t in tokens if t.type == "inline" and t.level == 1 and "script" in t.content][:1]
    assert sum(token.type == "heading_open" for token in tokens) == 9
    assert not set(text) & {"\u202e", "\x1b"} and "/srv/ana" not in text
    fences = [token.content for token in tokens if token.type == "fence"]
    assert len(fences) == 2 and "script" not in "".join(fences)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/ana/my models/llama", "llama"),
        ("~/x/y", "y"),
        ("--to=/srv/runs/a", "--to=a"),
        ("textcraft:/data/recipes", "textcraft:recipes"),
        ("C:\\Users\\ana\\m", "m"),
        ("runs/evolve-1", "runs/evolve-1"),
        ("https://hub.example/m", "https://hub.example/m"),
        ("0.95, 0.9", "0.95, 0.9"),
        ("/m", "m"),
        ("crafting:1", "crafting:1"),
    ],
)
def test_folders_of_a_machine_are_left_out(text, shown):
    assert strip_folders(text) == shown


def test_a_model_that_it_began_as_is_named_without_its_folder(data):
    info = replace(data.info, config={**data.info.config, "policy": "/srv/ana/models/qwen"})
    text = build_card(published(replace(data, info=info)))
    assert "It began as `qwen`: the limits and the license of that model hold here too." in text
    assert "/srv/ana" not in text
