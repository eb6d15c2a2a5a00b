"""Chains and their tiers, and how answers and names are read and put in."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise, product

import pytest

from evolvent.worlds.reasoning.chains import Chains
from evolvent.worlds.reasoning.naming import digest_question, insert_names
from evolvent.worlds.reasoning.question import (
    Question,
    format_demonstration,
    grade_choice,
    grade_question,
    split_rationale,
)

CHAINS = Chains("toy", ("a", "b", "c", "d", "e", "f"), 3)
ENDED = Chains("toy", ("a", "b", "c"), 4, min_length=1, ends=("x", "y", "z"))


class TestChains:
    def test_a_third_of_the_pairs_is_kept_back(self):
        pairs = list(product(CHAINS.parts, repeat=2))
        assert sum(CHAINS.is_demonstrated(*pair) for pair in pairs) == 24
        for part in CHAINS.parts:  # and every part keeps what can come before it and after it
            assert sum(CHAINS.is_demonstrated(part, other) for other in CHAINS.parts) == 4
            assert sum(CHAINS.is_demonstrated(other, part) for other in CHAINS.parts) == 4
        assert (
            CHAINS.is_demonstrated("a", "a"),
            CHAINS.is_demonstrated("a", "b"),
            CHAINS.is_demonstrated("b", "c"),
        ) == (False, True, False)

    @pytest.mark.parametrize("chains", [CHAINS, ENDED])
    def test_tiers_are_what_they_say(self, chains):
        drawn = {tier: set(islice(chains.draw(tier), 600)) for tier in chains.tiers}
        for tier, found in drawn.items():
            assert found
            for chain in found:
                plain = all(chains.is_demonstrated(*pair) for pair in pairwise(chain))
                assert chains.is_valid(chain) and chains.tier_of(chain) == tier
                assert plain is (tier != "evo")
                assert (len(chain) > chains.max_length) is (tier == "longer")
                assert chain[-1] in (chains.ends or chains.parts)
        assert not drawn["seen"] & drawn["combo"]
        assert min(map(len, drawn["combo"])) == 3
        shown = {pair for chain in drawn["seen"] for pair in pairwise(chain)}
        assert {pair for chain in drawn["combo"] | drawn["longer"] for pair in pairwise(chain)} <= shown

    def test_lengths_come_in_turn(self):
        lengths = Counter(len(chain) for chain in islice(ENDED.draw("seen"), 300))
        assert set(lengths) == {1, 2, 3, 4}
        assert list(islice(CHAINS.draw("evo"), 50)) == list(islice(CHAINS.draw("evo"), 50))

    def test_chains_of_two_have_no_combo(self):
        assert Chains("toy", ("a", "b", "c"), 2).tiers == ("seen", "evo", "longer")

    def test_what_is_no_chain(self):
        for wrong in ((), ("a",), ("a", "q"), ("a", 3), ("a",) * 5):
            assert not CHAINS.is_valid(wrong)
        assert ENDED.is_valid(("x",)) and not ENDED.is_valid(("x", "y")) and not ENDED.is_valid(("a", "b"))


QUESTION = Question("{who0} and {who1} met {who0} in {city0} ?", ("{who1} ; x",), "1")
POOLS = {"who": ("anna", "ben", "carla"), "city": ("arvik", "belmor")}


class TestNames:
    def test_every_role_gets_one_name(self):
        for seed in range(20):
            first, second, again, city = (insert_names(QUESTION, POOLS, seed).text.split()[at] for at in (0, 2, 4, 6))
            assert first == again != second
            assert {first, second} <= set(POOLS["who"]) and city in POOLS["city"]
            assert insert_names(QUESTION, POOLS, seed).rationale == (f"{second} ; x",)
        assert len({insert_names(QUESTION, POOLS, seed).text for seed in range(60)}) == 12

    def test_the_canonical_form_sees_everything_but_names(self):
        assert digest_question(QUESTION) != digest_question(Question(QUESTION.text, (), "2"))
        assert digest_question(QUESTION) != digest_question(Question(QUESTION.text + " ", (), "1"))
        assert digest_question(QUESTION) == digest_question(Question(QUESTION.text, ("y",), "1"))


class TestResponses:
    def test_a_demonstration_is_rationale_mark_answer(self):
        assert format_demonstration(Question("?", ("a = 1", "b = 2"), "2")) == "a = 1 ; b = 2 ### 2"
        assert format_demonstration(Question("?", (), "2")) is None
        assert format_demonstration(Question("?", (), "2", demonstration="return 2")) == "return 2"

    def test_spans_are_what_stands_between_separators(self):
        assert split_rationale("a = 1 ;  b  = 2;\nc ### 2") == ("a = 1", "b = 2", "c")
        assert split_rationale("a # # # 3") == ("a",)
        assert split_rationale("### 3") == () and split_rationale("") == ()
        assert split_rationale("a ; b") == ("a", "b")

    @pytest.mark.parametrize(
        ("said", "answer"),
        [
            ("### B", "B"),
            ("x ### b", "B"),
            ("### (B)", "B"),
            ("### B. arvik", "B"),
            ("### B ) a long one", "B"),
            ("### **B**", "B"),
            ("### bad", None),
            ("### A or B", None),
            ("B", None),
            ("###", None),
            ("### E", None),
        ],
    )
    def test_options(self, said, answer):
        found = grade_choice(said, "B", ("A", "B", "C", "D"))
        assert (found.extracted, found.correct) == (answer, answer == "B")

    def test_phrases_are_not_mixed_up(self):
        answers = ("yes", "it is not possible to tell", "no")
        for said, answer in (
            ("### No.", "no"),
            ("### not", None),
            ("### It is not possible to tell", answers[1]),
            ("### yes\nor no", "yes"),
            ("### yes and no", None),
            ("### no ### yes", "yes"),
        ):
            assert grade_choice(said, "no", answers).extracted == answer
        assert grade_question("### 1,000", Question("?", (), "1000")).correct is True
        assert grade_question("### no", Question("?", (), "no", answers)).correct is True
