"""The page of a world: exact for a tiny world, current for committed ones, and plain text from hostile worlds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt

from evolvent.cli.main import main
from evolvent.view.world_page import build_world_page
from evolvent.worlds.base import Parsed, ReAct, TextWorld
from evolvent.worlds.profile import profile_world

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "fixtures" / "world_page.md"
HOSTILE_TEXTS = (
    "```\n# heading\n```` text\n",
    "a | b | c",
    "\x1b[2J\u202egnp.exe",
    "<script>alert(1)</script>",
    "[click](javascript:alert(1)) ![x](https://evil.example/p.png)",
    '`"); import os',
)


class Doubling(TextWorld):
    """Asks for the double of a number; the expert explains itself."""

    name = "doubling"
    instructions = "Answer with the double of the number."
    grammar = ReAct()
    horizon = 2

    def specs(self):
        return [{"number": number} for number in range(1, 31)]

    def play(self, spec):
        answer = yield f"number : {spec['number']}"
        if answer != str(2 * spec["number"]):
            answer = yield "wrong , try again"
        return 1.0 if answer == str(2 * spec["number"]) else 0.0

    def expert(self, task):
        return [str(2 * task.spec["number"])]

    def explain(self, task):
        return [Parsed(str(2 * task.spec["number"]), "twice the number")]

    def vocabulary(self):
        return ["number", ":", "wrong", ",", "try", "again"]


class NoExpert(TextWorld):
    """A world without expert, vocabulary, instructions and listed actions; its steps give no reward."""

    name = "bare"

    def specs(self):
        return [{"number": number} for number in range(30)]

    def play(self, spec):
        yield "go on"
        return None


class UnscoredEnv:
    """Two steps without a reward, over arrays; any of two actions is admissible."""

    def reset(self, *, seed=None, options=None):
        self.num_steps = 0
        return np.zeros(2, np.float32), {"admissible": ("left", "right")}

    def step(self, action):
        self.num_steps += 1
        return np.ones(2, np.float32), None, self.num_steps == 2, False, {"admissible": ("left", "right")}

    def close(self):
        pass


class Unscored(NoExpert):
    name = "unscored"

    def make(self, task):
        return UnscoredEnv()


def build(world, **texts):
    return build_world_page(profile_world(world, limit=3), **{"load_name": world.name} | texts)


def test_page_of_a_tiny_world_is_exact():
    """After a wanted change: write `build(...)` to tests/fixtures/world_page.md and read the difference."""
    page = build(Doubling(), description="double a number; a tiny world", options="doubling:2")
    assert page == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["crafting", "lookup", "maze"])
def test_committed_page_is_current(name, tmp_path, capsys):
    """After a change of a world: `make docs-worlds`."""
    target = tmp_path / "page.md"
    assert main(["worlds", "page", name, "--to", str(target)]) == 0
    assert "wrote" in capsys.readouterr().out
    assert target.read_text(encoding="utf-8") == (ROOT / "docs" / "worlds" / f"{name}.md").read_text(encoding="utf-8")


def test_every_committed_page_is_linked_from_the_guide():
    guide = (ROOT / "docs" / "worlds.md").read_text(encoding="utf-8")
    pages = sorted((ROOT / "docs" / "worlds").glob("*.md"))
    assert len(pages) > 25
    assert [page.name for page in pages if f"](worlds/{page.name})" not in guide] == []


def test_page_is_printed_without_a_target(capsys):
    assert main(["worlds", "page", "maze:double_t", "--limit", "1"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("# maze:double\\_t\n\nFind the way") and "Success on the first 1 `dev` tasks" in page


def test_page_of_an_unknown_world_is_refused(capsys):
    assert main(["worlds", "page", "crating"]) == 2
    assert "did you mean 'crafting'" in capsys.readouterr().err


def test_world_without_expert_vocabulary_and_actions_says_so():
    page = build(NoExpert())
    assert "| vocabulary | open |" in page
    assert "There is no example: the world has neither an expert nor a list of actions." in page
    assert "The world has no expert, hence no blind replay. The world lists no admissible actions" in page
    assert "The world gives no instructions" in page
    assert "## Example episode" not in page
    num_played = min(3, len(NoExpert().tasks("dev", "seen")))
    assert f"| seen kinds | {num_played} | - | - | - |" in page


def test_world_without_rewards_is_played_at_random_and_not_scored():
    page = build(Unscored())
    assert "The example below earns the rewards none, none. A step without a reward leaves" in page
    assert "A random agent plays" in page and "reward       none" in page
    assert "float32 array of shape (2,): [0.0, 0.0]" in page


def test_world_without_tasks_has_a_page():
    world = NoExpert()
    world.specs = list
    page = build(world)
    assert "The world has no task" in page and "world.tasks(" not in page


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=range(len(HOSTILE_TEXTS)))
def test_hostile_texts_stay_text(text):
    class Hostile(Doubling):
        """Bad grammar."""

        name = version = instructions = text
        tiers = (text,)

        def specs(self):
            return [{"number": number, "text": text} for number in range(30)]

        def play(self, spec):
            yield text
            return 1.0

        def expert(self, task):
            return [text.replace("\n", " ").strip()]

        def explain(self, task):
            return None

    page = build(Hostile(), load_name=text, description=text, options=text)
    harmless = build(Doubling(), description="x", options="x")
    assert not any(character in page for character in ("\x1b", "\u202e"))
    tokens = list(iterate_tokens(page))
    assert {token.type for token in tokens} & {"html_block", "html_inline", "link_open", "image"} == set()
    assert count_headings(tokens) == count_headings(iterate_tokens(harmless)) == {"h1": 1, "h2": 9}
    tables = [token for token in tokens if token.type == "td_open"]
    assert len(tables) == sum(token.type == "td_open" for token in iterate_tokens(harmless))


def iterate_tokens(page):
    for token in MarkdownIt("commonmark").enable("table").parse(page):
        yield token
        yield from token.children or ()


def count_headings(tokens):
    tags = [token.tag for token in tokens if token.type == "heading_open"]
    return {tag: tags.count(tag) for tag in sorted(set(tags))}


def test_long_observations_and_episodes_are_shortened_with_a_mark():
    class Long(Doubling):
        name = "long"
        horizon = 60

        def play(self, spec):
            for _ in range(50):
                yield "word " * 1000
            return 1.0

        def expert(self, task):
            return ["go"] * 50

        def explain(self, task):
            return None

    page = build(Long())
    assert page.count("[... 3,000 characters are not shown ...]\n") == 2, "twice the first observation, of 2,000"
    assert page.count("[... 4,500 characters are not shown ...]\n") == 40
    assert "[10 more steps are not shown]" in page
    assert len(page) < 40_000
