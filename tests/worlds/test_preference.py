"""The world `preference`: its language, the true reward worked by hand, writers with and without faults, and pairs."""

from __future__ import annotations

from math import exp
from random import Random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, SessionGone, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit
from evolvent.worlds.base import SPLITS
from evolvent.worlds.check import check_env
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes
from evolvent.worlds.preference.language import NOUNS, OPPOSITE, TOPIC_OF, WORDS, parse_sentence, parse_sentences
from evolvent.worlds.preference.quality import WEIGHTS, compute_quality, compute_true_reward, parse_prompt
from evolvent.worlds.preference.world import SUCCESS, Faults, Preference

WORLD = Preference(sizes=Sizes(train=60, dev=20, test=40))
PROMPT = "the boat is old . these bright gulls rest ."
# 7 + 7 + 6 = 20 words, each sentence about what the one before named, back to the boat at the end
GOOD = "the bright gulls see the net . the net follows the old boat . the old boat waits ."


def parts(text: str, prompt: str = PROMPT, length: int | None = None) -> dict[str, float]:
    words = text.split()
    return compute_quality(words, prompt, length=length or len(words))


class TestLanguage:
    @pytest.mark.parametrize(
        ("text", "heads", "verb", "claims"),
        [
            ("the old boat rests", ("boat",), "rest", [("boat", "old")]),
            ("the boats are old", ("boats",), "be", [("boats", "old")]),
            ("one cow and many goats are dirty", ("cow", "goats"), "be", [("cow", "dirty"), ("goats", "dirty")]),
            ("this net near the full boats falls slowly", ("net",), "fall", [("boats", "full")]),
            ("these waves are under the gull", ("waves",), "be", []),
            ("many pupils need the new book", ("pupils",), "need", [("book", "new")]),
        ],
    )
    def test_sentences(self, text, heads, verb, claims):
        found = parse_sentence(text.split())
        assert found is not None and found.has_agreement
        assert (found.subject_nouns, found.verb, list(found.iterate_claims())) == (heads, verb, claims)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "the",
            "boat rests",
            "the boat",
            "the boat is",
            "the boat old",
            "the boat rests rests",
            "the boat sees",
            "the boat sees the",
            "the old new boat rests",
            "the boat is old today",
            "the boat and rests",
            "boat the rests",
            "the boat is near",
            "the boat near rests",
            "the boat sees the net today",
            "the boat is is",
        ],
    )
    def test_no_sentences(self, text):
        assert parse_sentence(text.split()) is None

    @pytest.mark.parametrize(
        "text",
        [
            "the boat rest",
            "the boats rests",
            "these boat rests",
            "one boats rest",
            "the boat near the gulls rest",
            "the boat and the gull rests",
            "the boat sees these net",
            "the boats is old",
        ],
    )
    def test_sentences_whose_numbers_do_not_agree_are_read_and_say_so(self, text):
        found = parse_sentence(text.split())
        assert found is not None and not found.has_agreement

    def test_words(self):
        assert len(WORDS) == 107 and all(OPPOSITE[OPPOSITE[word]] == word for word in OPPOSITE)
        assert len(TOPIC_OF) == 2 * len(NOUNS) == 48

    def test_an_unfinished_sentence_is_none(self):
        found = list(parse_sentences([*["the", "boat", "rests", "."], "the", "gull"]))
        assert [(size, one is None) for size, one in found] == [(4, False), (2, True)]


class TestQuality:
    def test_a_good_text_has_all_marks(self):
        assert parts(GOOD) == pytest.approx(dict.fromkeys(("form", "variety", *WEIGHTS, "reward"), 1.0))
        assert sum(WEIGHTS.values()) == pytest.approx(1.0)

    @pytest.mark.parametrize(
        ("text", "part", "value"),
        [
            ("the bright gulls sees the net . the net follows the old boat . the old boat waits .", "agreement", 2 / 3),
            ("the bright gulls see the cow . the cow follows the old boat . the old boat waits .", "topic", 3 / 5),
            ("the bright gulls see the net . the net follows the boat . the boat waits .", "coverage", 3 / 4),
            ("the gull sees the net . the net follows the old boat . the old boat waits .", "coverage", 2 / 4),
            ("the dark gulls see the net . the net follows the new boat . the old boat waits .", "consistency", 0.0),
            ("the bright gulls see the net . the net follows the wave . the old boat waits .", "thread", 2 / 3),
            ("the bright gulls see the old boat . the old boat waits . the old boat waits .", "variety", 2 / 3),
            ("the bright gulls see the net . the bright gulls find the boat . the old boat waits .", "variety", 2 / 3),
            ("the bright gulls see the net . the old boat waits . the net follows the old boat .", "closing", 0.0),
            ("the bright gulls see the net . the net follows the old boat . the old boat waits", "closing", 0.0),
        ],
    )
    def test_each_fault_costs_its_part(self, text, part, value):
        assert parts(text)[part] == pytest.approx(value)

    def test_worked_by_hand(self):
        """Two of three sentences whole, 11 of 17 words; boats named, gulls not; no link after the broken sentence."""
        found = parts("the boats sees the gulls . gulls the see . this new boat and the cow rest .")
        assert found == pytest.approx(
            {
                "form": 14 / 18,
                "variety": 1.0,
                "agreement": 1 / 2,
                "topic": 3 / 4,
                "coverage": 1 / 4,
                "consistency": 0.0,
                "thread": 1 / 3,
                "closing": 1.0,
                "reward": 14 / 18 * (0.3 / 4 + 0.2 / 2 + 0.15 / 3 + 0.1 * 3 / 4 + 0.1),
            }
        )

    def test_length_counts(self):
        words = GOOD.split()
        assert parts(GOOD, length=2 * len(words))["form"] == 0.5
        assert parts(GOOD, length=2 * len(words))["closing"] == 0.0
        assert compute_quality([*words, "cow"], PROMPT, length=len(words)) == parts(GOOD)

    @pytest.mark.parametrize("text", ["", ".", ". . . .", "boat " * 64, "the " * 64, "is . are ."])
    def test_texts_without_a_sentence_are_worth_nothing(self, text):
        assert set(parts(text, length=64).values()) == {0.0}

    def test_one_sentence_again_and_again_is_worth_little(self):
        assert parts("the old boat waits . " * 16)["reward"] < 0.1
        assert parts("the old boat sees the bright gulls . " * 9)["reward"] < 0.2

    def test_no_prompt(self):
        with pytest.raises(ConfigError, match="the prompt does not consist of sentences of this language"):
            parse_prompt("once upon a time .")
        with pytest.raises(ConfigError, match="the prompt does not consist of sentences of this language"):
            compute_quality(["the"], "the boat is old . the")

    @settings(max_examples=60, deadline=None)
    @given(words=st.lists(st.sampled_from(WORDS), max_size=80), seed=st.integers(0, 10**6))
    def test_bounds(self, words, seed):
        """Any words, and good text with some of them strewn in."""
        task = WORLD.tasks("test", "seen")[seed % 40]
        text = WORLD.continuation(task, seed=seed).split()
        for place, word in enumerate(words[:5]):
            text[(seed + 13 * place) % len(text)] = word
        for said in (words, text):
            found = WORLD.quality(said, task)
            assert all(0.0 <= value <= 1.0 for value in found.values())
            assert (
                found["reward"]
                == compute_true_reward(said, WORLD.prompt(task))
                <= found["form"] * found["variety"] + 1e-12
            )


class TestWriting:
    @pytest.mark.parametrize("length", [32, 47, 64, 100, 256])
    def test_the_expert_is_flawless_at_every_length(self, length):
        world = Preference(length=length, sizes=Sizes(train=5, dev=5, test=40))
        for tier in world.tiers:
            for task in world.tasks("test", tier):
                (said,) = world.expert(task)
                assert len(said.split()) == length
                assert world.quality(said.split(), task)["reward"] == pytest.approx(1.0), said

    def test_the_expert_is_the_same_every_time_and_seeds_give_others(self):
        task = WORLD.tasks("test", "seen")[0]
        assert WORLD.expert(task) == WORLD.expert(task) == [WORLD.continuation(task)]
        assert len({WORLD.continuation(task, seed=seed) for seed in range(20)}) == 20

    @pytest.mark.parametrize(
        ("fault", "part"),
        [
            ("agreement", "agreement"),
            ("topic", "topic"),
            ("truth", "consistency"),
            ("repeat", "variety"),
            ("forget", "coverage"),
            ("form", "form"),
        ],
    )
    def test_each_fault_lowers_its_part_and_the_reward(self, fault, part):
        tasks = WORLD.tasks("test", "seen")
        found = [WORLD.quality(WORLD.continuation(task, faults=Faults(**{fault: 0.6})).split(), task) for task in tasks]
        assert mean(one[part] for one in found) < 0.85
        assert mean(one["reward"] for one in found) < SUCCESS

    def test_random_words_are_worth_nothing(self):
        rng, task = Random(0), WORLD.tasks("test", "seen")[0]
        assert mean(WORLD.quality(rng.choices(WORDS, k=64), task)["reward"] for _ in range(200)) < 0.01

    def test_rates_are_probabilities(self):
        with pytest.raises(ConfigError) as caught:
            Faults(topic=1.5, form=-1)
        assert [problem.where for problem in caught.value.problems] == ["topic", "form"]


class TestPairs:
    def test_labels_follow_bradley_and_terry(self):
        """The mean over pairs of the chance that the better one is chosen, against the share in which it was."""
        found = WORLD.pairs("train", 800, 3)
        gaps = [
            compute_true_reward(p.chosen.split(), p.prompt) - compute_true_reward(p.rejected.split(), p.prompt)
            for p in found
        ]
        expected = mean(1 / (1 + exp(-abs(gap) / 0.1)) for gap in gaps)
        share = mean(gap > 0 for gap in gaps if gap)
        assert abs(share - expected) < 0.05 and 0.7 < share < 0.97
        rewards = sorted(compute_true_reward(text.split(), p.prompt) for p in found for text in (p.chosen, p.rejected))
        assert rewards[80] < 0.25 and rewards[-80] > 0.8  # a mixture of qualities

    def test_exact_labels_at_a_small_temperature_and_even_ones_at_a_large_one(self):
        for temperature, low, high in ((1e-6, 1.0, 1.0), (1e6, 0.4, 0.6)):
            found = WORLD.pairs("train", 300, 0, temperature=temperature)
            won = [
                compute_true_reward(p.chosen.split(), p.prompt) >= compute_true_reward(p.rejected.split(), p.prompt)
                for p in found
            ]
            assert low <= mean(won) <= high

    def test_a_pair_depends_on_its_number_and_the_seed_alone(self):
        assert WORLD.pairs("train", 3, 0) == WORLD.pairs("train", 9, 0)[:3]
        assert WORLD.pairs("train", 9, 0) != WORLD.pairs("train", 9, 1)
        train = {task.id for task in WORLD.tasks("train", "seen")}
        for pair in WORLD.pairs("train", 20, 0):
            assert pair.task.id in train and pair.prompt == WORLD.prompt(pair.task)
            assert len(pair.chosen.split()) == len(pair.rejected.split()) == 64

    def test_mistakes_are_told_at_once(self):
        with pytest.raises(ConfigError) as caught:
            WORLD.pairs("train", -1, 0, tier="longer", temperature=0.0)
        assert [problem.where for problem in caught.value.problems] == ["count", "temperature", "panel"]


class TestWorld:
    def test_an_episode(self):
        task = WORLD.tasks("dev", "evo")[0]
        env = WORLD.make(task)
        text, info = env.reset()
        assert text == WORLD.prompt(task) and not info
        moment = env.snapshot()
        (said,) = WORLD.expert(task)
        observation, reward, terminated, truncated, info = env.step(said)
        assert (reward, terminated, truncated) == (pytest.approx(1.0), True, False)
        assert info["quality"]["reward"] == reward and "invalid" not in info
        score = WORLD.score([reward], info)
        assert (score.raw, score.unit, score.success) == (reward, reward, True)
        assert WORLD.score([None], info).success is None
        assert WORLD.score([SUCCESS - 0.01], info).success is False and WORLD.score([SUCCESS], info).success is True
        with pytest.raises(SessionGone):
            env.step(said)
        env.restore(moment)
        _, reward, _, _, info = env.step("nothing of this kind " * 10**5)
        assert reward == 0.0 and info["invalid"] is True
        assert set(words_of(f"{observation} {text} {said}")) <= set(WORLD.vocabulary())

    def test_promises_of_an_environment(self):
        task = WORLD.tasks("dev", "longer")[0]
        said = [*WORLD.expert(task), "", "the boat rests .", "\x00"]
        assert check_env(lambda: WORLD.make(task), choose=lambda rng, info: rng.choice(said)) == []
        with pytest.raises(ConfigError, match="snapshot"):
            WORLD.make(task).restore(WORLD.make(WORLD.tasks("dev", "seen")[0]).snapshot())

    def test_other_tasks_are_refused(self):
        task = WORLD.tasks("dev", "seen")[0]
        with pytest.raises(ConfigError) as caught:
            WORLD.make(Task("preference", "1", {"chain": ["one is"], "seed": -1, "length": 32}))
        assert [problem.where for problem in caught.value.problems] == ["chain", "seed", "length"]
        with pytest.raises(VersionMismatch):
            WORLD.make(Task("preference", "0", task.spec))
        with pytest.raises(ConfigError, match="32 to 256"):
            Preference(length=31)

    def test_the_panels_are_sound(self):
        """Also: `longer` prompts name one entity more, and prompts of the held-out tiers are in no other panel."""
        world = Preference(sizes=Sizes(train=300, dev=20, test=200))
        found = audit(world)
        assert found.problems == ()
        assert all(tier.expert == 1.0 and (tier.replay or 0.0) <= 0.02 for tier in found.tiers.values())
        entities = {
            tier: {len(parse_prompt(world.prompt(task)).entities) for task in world.tasks("test", tier)}
            for tier in world.tiers
        }
        assert entities == {"seen": {2, 3}, "evo": {2, 3}, "combo": {3}, "longer": {4}}
        keys = [world.key(task) for tier in world.tiers for split in SPLITS for task in world.tasks(split, tier)]
        assert len(keys) == len(set(keys))
