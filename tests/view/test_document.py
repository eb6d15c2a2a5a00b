"""The page: well-formed, self-contained, and showing the run's own figures."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fabricated import write_run

from evolvent.errors import ConfigError
from evolvent.view import page, read_run, report
from evolvent.view.data import ReportData, RunInfo, Token
from evolvent.view.document import _token_class as token_class
from evolvent.view.escape import clip, mark_hidden, show_hidden
from evolvent.view.sections import _COUNT_NAMES, _COUNT_NOTES, flatten_settings

VOID = {"meta", "br", "link", "img"}


class Outline(HTMLParser):
    """Checks that tags nest, and gathers what a page holds."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("href", "src", "srcset", "action", "data", "poster", "xlink:href"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            assert not name.startswith("on"), name
        if tag not in VOID and not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    found.close()
    assert found.open == []
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", rounds=2, tasks=40)


def test_the_page_is_well_formed_and_needs_nothing_else(run: Path) -> None:
    found = outline(page(read_run(run)))
    assert not {"script", "img", "link", "iframe", "object", "form"} & set(found.tags)
    assert found.links
    assert {link[1:] for link in found.links if link.startswith("#")} == set(found.ids)
    assert all(link.startswith("#") for link in found.links)


def test_the_content_policy_forbids_everything_but_its_own_style(run: Path) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page(read_run(run)))
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")
    assert "script" not in policy
    assert "http" not in policy


def test_every_evaluated_rate_is_on_the_page_as_text(run: Path) -> None:
    text = page(read_run(run))
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    table = text[text.index("Every evaluation as a table") : text.index("Policies that do not learn")]
    for row in rows:
        assert f"{100 * row['mean']:.1f} %<small>{100 * row['low']:.1f} to {100 * row['high']:.1f}</small>" in table
    assert table.count("<tr>") == len(rows) + 1


def test_seed_settings_versions_and_command_are_shown(run: Path) -> None:
    text = page(read_run(run))
    for shown in ("agentevol.temperature", "train.weight_decay", "2.13.0", "evolvent evolve --seed 0", "Exploration"):
        assert shown in text


def test_every_count_of_the_cost_is_explained_below_its_table(run: Path) -> None:
    from evolvent.engine.driver import _COUNTS

    assert {*_COUNT_NAMES, *_COUNTS, "fed"} <= set(_COUNT_NOTES)
    text = page(read_run(run))
    table = text[text.index('aria-label="Cost by arm and verb"') :]
    shown = [name for name in _COUNT_NAMES if f'<th scope="col">{name.replace("_", " ")}</th>' in table]
    assert shown and all(_COUNT_NOTES[name] in table for name in shown)


def test_secrets_in_the_settings_are_hidden() -> None:
    rows = dict(flatten_settings({"endpoint": {"api_key": "sk-12345", "max_tokens": 7, "token": None}}))
    assert "sk-12345" not in str(rows)
    assert rows["endpoint.max_tokens"] == "7"
    assert rows["endpoint.token"] == "(not set)"


def test_very_deep_settings_are_cut() -> None:
    nested: dict[str, object] = {"x": 1}
    for _ in range(5000):
        nested = {"x": nested}
    assert flatten_settings(nested) == [("x.x.x.x.x.x.x.x", "(1 nested values)")]


def test_errors_withhold_the_mean_and_are_listed(run: Path, tmp_path: Path) -> None:
    for file in run.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    rows[-1] |= {"errors": 3, "mean": None, "low": None, "high": None}
    rows[-1]["outcomes"][0][2] = None
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = page(read_run(tmp_path))
    assert "control round 2: 3 of 40 episodes ended in an error, so the mean is withheld." in text
    assert "withheld: episodes with errors" in text


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("running", "still going on"),
        ("failed", "ended by an error"),
        ("interrupted", "was interrupted"),
        ("finished", None),
    ],
)
def test_the_state_of_the_run_is_said(state: str, says: str | None) -> None:
    text = page(ReportData(info=RunInfo(state=state)))
    assert ('<p class="banner' in text) == (says is not None)
    assert says is None or says in text


def test_report_replaces_the_file_whole_and_follows_the_run(run: Path, tmp_path: Path) -> None:
    to = tmp_path / "report.html"
    report(run, to)
    first = to.read_text(encoding="utf-8")
    report(run, to)
    assert to.read_text(encoding="utf-8") == first  # the same run gives the same page
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(ConfigError):
        report(tmp_path / "nowhere", to)
    assert to.read_text(encoding="utf-8") == first


@pytest.mark.parametrize(
    ("logprob", "sampled", "name"),
    [
        (-0.01, True, "unsure-0"),
        (-0.2, True, "unsure-1"),
        (-0.5, True, "unsure-2"),
        (-1.5, True, "unsure-3"),
        (-9.0, True, "unsure-4"),
        (-9.0, False, "read"),
        (None, True, "read"),
    ],
)
def test_tokens_are_shaded_by_their_probability(logprob: float | None, sampled: bool, name: str) -> None:
    assert token_class(Token("x", sampled, logprob)) == name


def test_hidden_characters_become_visible() -> None:
    assert show_hidden("a\u202eb\u200bc\x1b[31m\ud800\ufeff\u3164") == (
        "a[U+202E]b[U+200B]c[U+001B][31m[U+D800][U+FEFF][U+3164]"
    )
    assert show_hidden("Zoë 名前 → ok\n\t") == "Zoë 名前 → ok\n\t"
    assert mark_hidden("<b>\u202e") == ('&lt;b&gt;<b class="hidden-mark" title="RIGHT-TO-LEFT OVERRIDE">U+202E</b>')


def test_long_texts_are_cut_and_say_so() -> None:
    assert clip("x" * 1005, 5) == "xxxxx [1,000 more characters are not shown]"
    assert clip("x" * 5, 5) == "xxxxx"
    assert len(mark_hidden("<" * 100_000)) < 20_000


def test_settings_are_folded(run: Path) -> None:
    text = page(read_run(run))
    summaries = re.findall(r'<details class="settings"><summary>(\w+) <span class="quiet">(\d+) lines?<', text)
    assert [name for name, _ in summaries] == ["Configuration", "Versions"] and int(summaries[0][1]) > 0
