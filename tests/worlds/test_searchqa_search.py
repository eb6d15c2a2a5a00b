"""The search engine and the reading of actions and answers: golden scores, a brute-force oracle, hostile text."""

from __future__ import annotations

import math
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.errors import ConfigError, InvalidAction
from evolvent.worlds.base import Parsed
from evolvent.worlds.searchqa.answers import exact_match, normalize_answer
from evolvent.worlds.searchqa.bm25 import Index, split_words
from evolvent.worlds.searchqa.tags import Move, SearchGrammar, parse_move

SHORT, TAGS = SearchGrammar(), SearchGrammar(tags=True)
TEXTS = st.lists(st.text("abc ", max_size=12), min_size=1, max_size=12)
PIECES = st.lists(
    st.sampled_from(["<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>", "search", "answer", "x"])
    | st.text(" \n<>/ab", max_size=3),
    max_size=9,
).map("".join)


def slow_scores(texts: list[str], query: str, *, k1: float, b: float) -> list[float]:
    """BM25 as it is defined, text by text and word by word."""
    split = [re.findall(r"\w+", text.lower()) for text in texts]
    mean = sum(map(len, split)) / len(split)
    scores = []
    for own in split:
        parts = []
        for word in re.findall(r"\w+", query.lower()):
            held, times = sum(word in other for other in split), own.count(word)
            idf = math.log(1 + (len(split) - held + 0.5) / (held + 0.5))
            parts.append(idf * times / (times + k1 * (1 - b + b * len(own) / mean)) if times else 0.0)
        scores.append(math.fsum(parts))
    return scores


class TestIndex:
    """Three texts of 2, 3 and 4 words: the mean is 3, and k1 (1 - b + b |d| / 3) is .78, .9 and 1.02."""

    SMALL = ("anna boris", "anna anna carla", "boris carla carla diana")

    def test_scores_worked_by_hand(self) -> None:
        index = Index(self.SMALL)
        two, one = math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)  # idf of a word in two texts of three, and in one
        assert (two, one) == (pytest.approx(0.4700036), pytest.approx(0.9808293))
        expected = [two * 1 / 1.78, two * 2 / 2.9, one * 1 / 2.02]
        assert expected == pytest.approx([0.2640470, 0.3241404, 0.4855591], abs=1e-6)
        assert index.compute_scores("Anna, Diana!").tolist() == pytest.approx(expected)
        assert index.search("Anna, Diana!") == [2, 1, 0]
        assert index.compute_scores("carla carla").tolist() == pytest.approx([0.0, 2 * two / 1.9, 2 * two * 2 / 3.02])
        assert index.search("carla carla") == [2, 1]

    def test_k1_and_b_at_their_ends(self) -> None:
        two = math.log(1.6)
        assert Index(self.SMALL, k1=0.0).compute_scores("anna").tolist() == pytest.approx([two, two, 0.0])
        assert Index(self.SMALL, k1=1.0, b=0.0).compute_scores("anna").tolist() == pytest.approx(
            [two / 2, two * 2 / 3, 0.0]
        )
        assert Index(self.SMALL, k1=1.0, b=1.0).compute_scores("anna")[0] == pytest.approx(two / (1 + 2 / 3))

    def test_of_equal_ones_the_first(self) -> None:
        index = Index(["b", "a x", "a y", "a z", "a x"])
        assert index.search("a") == [1, 2, 3]
        assert index.search("a", max_results=10) == [1, 2, 3, 4]
        assert index.search("x a") == index.search("a x") == [1, 4, 2]

    def test_nothing_found(self) -> None:
        index = Index(["one two"])
        for query in ("", "?!", "three", "\x00"):
            assert index.search(query) == []

    def test_words_after_the_first_64_are_not_looked_for(self) -> None:
        index = Index(["here", "there"])
        assert index.search("no " * 63 + "here") == [0]
        assert index.search("no " * 64 + "here") == []

    @given(TEXTS, st.text("abcd ", max_size=10), st.sampled_from([(0.9, 0.4), (1.2, 0.75), (0.0, 1.0), (2.0, 0.0)]))
    def test_equals_the_definition(self, texts: list[str], query: str, settings: tuple[float, float]) -> None:
        if not any(map(split_words, texts)):
            with pytest.raises(ConfigError, match="no word"):
                Index(texts)
            return
        k1, b = settings
        index = Index(texts, k1=k1, b=b)
        slow = slow_scores(texts, query, k1=k1, b=b)
        assert index.compute_scores(query).tolist() == pytest.approx(slow)
        ranked = sorted((place for place, score in enumerate(slow) if score), key=lambda at: (-round(slow[at], 9), at))
        assert index.search(query) == ranked[:3]
        assert len(index) == len(texts)

    def test_settings_out_of_range_are_all_named(self) -> None:
        with pytest.raises(ConfigError) as caught:
            Index(["", "?"], k1=-1.0, b=1.5)
        assert [problem.where for problem in caught.value.problems] == ["texts", "k1", "b"]


class TestMoves:
    @pytest.mark.parametrize(
        ("text", "move"),
        [
            ("<search>teacher of anna</search>", Move("search", "teacher of anna")),
            ("<think></think>\n<search>\n boss  of anna </search><answer>x</answer>", Move("search", "boss of anna")),
            ("I know: <answer>Keldon</answer><search>y</search>", Move("answer", "Keldon")),
            ("<search>open <answer>keldon</answer>", Move("answer", "keldon")),
            ("<search>a <answer>b</answer></search>", Move("search", "a <answer>b</answer>")),
            ("search teacher of anna", Move("search", "teacher of anna")),
            ("  Answer  keldon\n", Move("answer", "keldon")),
            ("<think>it is clear</think> answer keldon", Move("answer", "keldon")),
            ("search what is <answer>x</answer>", Move("answer", "x")),
        ],
    )
    def test_the_first_pair_of_tags_wins_and_the_short_form_is_the_whole_text(self, text: str, move: Move) -> None:
        assert parse_move(text) == move

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "search",
            "answer  ",
            "<search></search>",
            "<search> \n</search> answer x",
            "I search anna",
            "searching anna",
            "<Search>anna</Search>",
            "<search>anna</answer>",
            "search <think>x</think>",
            "<answer>",
        ],
    )
    def test_what_is_no_move(self, text: str) -> None:
        assert parse_move(text) is None
        with pytest.raises(InvalidAction, match="search"):
            SHORT.parse(text)

    def test_thoughts_are_kept_and_written(self) -> None:
        text = "<think>the boss first</think>\n<search>boss of anna</search>"
        assert TAGS.parse(text) == Parsed("<search>boss of anna</search>", "the boss first")
        assert TAGS.render(TAGS.parse(text)) == text
        assert SHORT.parse(text) == Parsed("search boss of anna", "the boss first")
        assert SHORT.parse(SHORT.render(SHORT.parse(text))) == SHORT.parse(text)

    @given(PIECES | st.text(max_size=30), st.booleans())
    def test_what_is_read_is_written_so_that_it_is_read_again(self, text: str, tags: bool) -> None:
        grammar = SearchGrammar(tags)
        move = parse_move(text)
        if move is None:
            return
        parsed = grammar.parse(text)
        assert parse_move(parsed.action) == move
        assert grammar.parse(grammar.render(parsed)) == parsed
        assert grammar.parse(parsed.action) == Parsed(parsed.action)

    @given(PIECES)
    def test_the_first_pair_is_that_of_the_original_pattern(self, text: str) -> None:
        found = re.search(r"<(search|answer)>(.*?)</\1>", text, re.DOTALL)
        if found and found[2].strip():
            assert parse_move(text) == (found[1], " ".join(found[2].split()))

    def test_a_million_open_tags_are_read_in_linear_time(self) -> None:
        assert parse_move("<search>" * 1_000_000) is None
        assert parse_move("<search><answer>" * 500_000 + "</answer>") is not None


class TestAnswers:
    @pytest.mark.parametrize(
        ("given", "golden"),
        [
            ("The  Beatles", "beatles"),
            ("U.S.", "us"),
            ("an apple a day", "apple day"),
            ("Don't!", "dont"),
            ("KELDON.", "keldon"),
            ("Beyoncé", "beyoncé"),
        ],
    )
    def test_capitals_articles_marks_and_spaces_do_not_matter(self, given: str, golden: str) -> None:
        assert exact_match(given, ["other", golden])
        assert exact_match(golden, [given])

    @pytest.mark.parametrize(("given", "golden"), [("keldon city", "keldon"), ("", "keldon"), ("theatre", "atre")])
    def test_all_else_does(self, given: str, golden: str) -> None:
        assert not exact_match(given, [golden])

    @given(st.text(max_size=30))
    def test_normalising_twice_changes_nothing(self, text: str) -> None:
        assert normalize_answer(normalize_answer(text)) == normalize_answer(text)
        assert not Counter(normalize_answer(text).split()).keys() & {"a", "an", "the"}
