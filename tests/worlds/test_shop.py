"""The shop: its catalogue and search, the published reward by hand, pages as WebShop writes them, and its expert."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, SessionGone, VersionMismatch
from evolvent.trajectory import Task, sample_rng
from evolvent.worlds.audit import audit
from evolvent.worlds.check import check_env
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes
from evolvent.worlds.shop.products import CATEGORIES, KINDS, OPTION_VALUES, Catalogue, Product, load_catalogue
from evolvent.worlds.shop.rewards import (
    Goal,
    compute_reward,
    compute_type_reward,
    normalize_color,
    token_set_ratio,
)
from evolvent.worlds.shop.world import Shop, list_kinds_by_tier

WORLD = Shop(sizes=Sizes(train=30, dev=20, test=20))
SPEC = {
    "kind": "rain jacket",
    "attributes": ["quick drying", "machine washable"],
    "options": {"color": "red"},
    "max_price": 60,
    "wording": 0,
}
INSTRUCTION = "Find me quick drying, machine washable rain jacket with color: red, and price lower than 60.00 dollars"
HEAD = f"Instruction: [SEP] {INSTRUCTION} [SEP] Back to Search [SEP] "


def task_of(**changes: object) -> Task:
    return Task("shop", "1", {**SPEC, **changes})


def play(*actions: str, task: Task | None = None) -> tuple[str, float, bool, bool, dict]:
    """The reply to the last action."""
    env = WORLD.make(task or task_of())
    env.reset()
    return [env.step(action) for action in actions][-1]


# ------------------------------------------------------------------------------------------------------- products


def test_the_catalogue_is_that_of_its_seed():
    first, again, other = Catalogue(0), Catalogue(0), Catalogue(1)
    assert first.products == again.products and first.products != other.products
    assert len(first.products) >= 5000 and len({product.path[0] for product in first.products}) == 8
    assert len(first.by_asin) == len(first.products)
    assert all(re.fullmatch(r"\d{10}", product.asin) for product in first.products)
    assert [product.number for product in first.products] == list(range(len(first.products)))
    assert Counter(product.kind.name for product in first.products) == dict.fromkeys(KINDS, 60)


def test_a_title_tells_the_kind():
    words = Counter(word for kind in KINDS for word in kind.split())
    assert [word for word, times in words.items() if times > 1] == []


def test_no_attribute_and_no_option_is_taken_for_another_one():
    for category in CATEGORIES:
        for first, second in combinations(category.attributes, 2):
            assert token_set_ratio(first, second) <= 85 and first not in second and second not in first
    for options in OPTION_VALUES.values():
        for key, values in options.items():
            assert [normalize_color(value) for value in values] == list(values)
            for first, second in combinations(values, 2):
                assert first != second and (key == "size" or token_set_ratio(first, second) <= 85)


def test_no_text_of_a_product_says_more_than_its_attributes():
    """The reward also looks into texts: there an attribute or an option must not occur by chance."""
    for product in load_catalogue().products[::7]:
        texts = (product.title.lower(), *product.features, product.description)
        for attribute in product.kind.attributes:
            assert any(attribute in text for text in texts) == (attribute in product.attributes)
        assert not any(value in text for values in product.options.values() for value in values for text in texts)


def test_most_products_of_a_kind_are_near_misses():
    """Somebody who buys any product of the kind with the best options seldom succeeds, and always can."""
    lacks: Counter[str] = Counter()
    shares = []
    for task in (task for tier in WORLD.tiers for task in WORLD.tasks("dev", tier)[:6]):
        goal = WORLD._parse_spec(task)[1]
        rewards = []
        for product in load_catalogue().by_kind[goal.query]:
            options = {key: value for key, value in goal.options.items() if value in product.options[key]}
            parts = compute_reward(product, goal, price=product.price / 100, options=options)
            rewards.append(parts.total)
            if parts.num_attributes + parts.num_options + parts.is_price_ok == len(goal.attributes) + len(goal.options):
                lacks["price"] += not parts.is_price_ok
                lacks["attribute"] += parts.num_attributes < len(goal.attributes)
                lacks["option"] += parts.num_options < len(goal.options)
        assert max(rewards) == 1.0
        shares.append(rewards.count(1.0) / len(rewards))
    assert sum(shares) / len(shares) < 0.1
    assert min(lacks.values()) > len(shares) / 2, lacks


QUERIES = (
    "quick drying rain jacket",
    "machine washable",
    "Velmora, free! free",
    "the and by",
    "coffee beans fair trade slow roasted easy care unheardof",
)


def test_the_search_ranks_as_bm25_by_hand():
    """The formula over all products, word by word, with k1 = 0.9, b = 0.4 and ties in the catalogue's order."""
    catalogue = load_catalogue()
    texts = [
        re.findall(r"\w+", " ".join((product.title, product.description, *product.features)).lower())
        for product in catalogue.products
    ]
    mean_length = sum(map(len, texts)) / len(texts)
    counts = [Counter(text) for text in texts]
    for query in QUERIES:
        scores = [0.0] * len(texts)
        for word in re.findall(r"\w+", query.lower()):
            holders = [place for place, words in enumerate(counts) if word in words]
            idf = math.log(1 + (len(texts) - len(holders) + 0.5) / (len(holders) + 0.5))
            for place in holders:
                norm = 0.9 * (1 - 0.4 + 0.4 * len(texts[place]) / mean_length)
                scores[place] += idf * counts[place][word] / (counts[place][word] + norm)
        ranked = sorted((-round(score, 9), place) for place, score in enumerate(scores) if score > 0)
        assert [product.number for product in catalogue.search(query)] == [place for _, place in ranked[:50]]
    assert catalogue.search("unheardof") == ()


# --------------------------------------------------------------------------------------------------------- reward


@dataclass(frozen=True)
class Bought:
    """A product by hand."""

    query: str = "shoes"
    path: tuple[str, ...] = ("Clothing", "Shoes", "Boots")
    nouns: tuple[str, ...] = ("leather", "boot")
    attributes: tuple[str, ...] = ("water proof", "non slip")
    title: str = "Sturdy Leather Boot"
    features: tuple[str, ...] = ("warm lining", "arch support")
    description: str = "a boot of full grain leather"


WANTED = Goal(
    "shoes",
    ("Clothing", "Shoes", "Boots"),
    ("leather", "boot"),
    ("water proof", "non slip"),
    {"color": "blue", "size": "9"},
    60.0,
)
RIGHT = {"color": "blue", "size": "9"}
FIVE_NOUNS = ("boot", "lace", "zip", "heel", "sole")  # shares 1 of 5 with `Bought`: 0.2 is not above 0.2
ELEVEN_NOUNS = (*"abcdefghij", "boot")  # shares 1 of 11: below 0.1


def goal(**changes: object) -> Goal:
    fields = {name: getattr(WANTED, name) for name in Goal.__dataclass_fields__}
    return Goal(**{**fields, **changes})


@pytest.mark.parametrize(
    ("wanted", "price", "options", "reward"),
    [
        (goal(), 60.0, RIGHT, 1.0),  # (2 + 2 + 1) / 5; a price at the limit is low enough
        (goal(), 60.01, RIGHT, 4 / 5),  # too dear
        (goal(attributes=("water proof", "vegan")), 20, RIGHT, 4 / 5),  # one attribute of two
        (goal(), 20, {"color": "blue"}, 4 / 5),  # no size chosen
        (goal(), 20, {}, 3 / 5),  # nothing chosen
        (goal(), 80, {"color": "red", "size": "10"}, 2 / 5),  # the attributes alone
        (goal(), 20, {"color": "dark blue", "size": "9"}, 1.0),  # colors by their basic color
        (goal(options={"color": "blue", "size": "9 wide"}), 20, RIGHT, 4 / 5),  # sizes must be equal
        (goal(options={"style": "cool powder snow"}), 20, {"style": "powder snow"}, 1.0),  # a part of its words
        (goal(attributes=("arch support", "full grain", "sturdy")), 20, RIGHT, 1.0),  # in features, description, title
        (goal(attributes=("waters proof",)), 20, RIGHT, 1.0),  # 2 * 11 / 23: 96 > 85
        (goal(options={"size": "9"}), 20, {"size": "9", "style": "leather", "color": "warm"}, 1.0),  # at most 1 of 1
        (goal(query="hats", path=("Clothing", "Hats"), nouns=FIVE_NOUNS), 20, RIGHT, 0.5),  # another type: half
        (goal(query="hats", path=("Clothing", "Hats"), nouns=FIVE_NOUNS), 80, {}, 0.5 * 2 / 5),
        (goal(nouns=ELEVEN_NOUNS), 20, RIGHT, 0.1),  # hardly the type, though the query is the same
        (goal(nouns=("hat",)), 20, RIGHT, 0.0),  # none of the nouns
    ],
)
def test_the_reward_by_hand(wanted, price, options, reward):
    assert compute_reward(Bought(), wanted, price=price, options=options).total == pytest.approx(reward, abs=1e-12)


def test_the_type_by_hand():
    """0.2 of the nouns is not enough by itself; the query or two categories in common are."""
    far = goal(query="hats", path=("Clothing", "Hats"), nouns=FIVE_NOUNS)
    assert compute_type_reward(Bought(), far) == 0.5
    assert compute_type_reward(Bought(), goal(nouns=FIVE_NOUNS, path=())) == 1.0
    assert compute_type_reward(Bought(), goal(nouns=FIVE_NOUNS, query="x", path=("Boots", "Clothing"))) == 1.0
    assert compute_type_reward(Bought(path=("Clothing", "Clothing")), far) == 0.5
    assert compute_type_reward(Bought(), goal(nouns=FIVE_NOUNS[:4], query="x", path=())) == 1.0  # 1 of 4
    assert compute_type_reward(Bought(), goal(nouns=(), query="x", path=())) == 0.5  # no nouns count as 0.2


@pytest.mark.parametrize(
    ("first", "second", "ratio"),
    [
        ("same words", "Words, same!", 100),
        ("powder snow", "cool powder snow", 100),  # all words of one
        ("essential oils", "essential oil", 96),  # 2 * 13 / 27
        ("pack of 2", "pack of 4", 89),  # (of pack 2, of pack 4): 2 * 8 / 18
        ("tea tree", "tea bag", 60),  # (tea, tea bag): 2 * 3 / 10 beats (tea bag, tea tree): 2 * 4 / 15
        ("abc", "xyz", 0),
        ("", "tea", 0),
        ("...", "...", 0),
    ],
)
def test_the_ratio_of_word_sets_by_hand(first, second, ratio):
    assert token_set_ratio(first, second) == token_set_ratio(second, first) == ratio


# ---------------------------------------------------------------------------------------------------------- pages


def test_pages_read_as_those_of_webshop():
    """Golden pages; the form is that of WebShop's text mode, as AgentGym's trajectories have it."""
    env = WORLD.make(task_of())
    observation, info = env.reset()
    assert observation == f"WebShop [SEP] Instruction: [SEP] {INSTRUCTION} [SEP] Search"
    assert info == {
        "admissible": (
            "search[quick drying machine washable rain jacket]",
            "search[rain jacket]",
            "search[quick drying]",
            "search[machine washable]",
        ),
        "instruction_text": f"Instruction: {INSTRUCTION}",
    }
    observation, reward, terminated, truncated, info = env.step("search[quick drying machine washable rain jacket]")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert observation.startswith(
        f"{HEAD}Page 1 (Total results: 50) [SEP] Next > [SEP] 0305082960 [SEP] Merrow Quick Drying Rain Jacket, "
        "Breeze [SEP] $27.29 [SEP] 0065929688 [SEP] Rowena Quick Drying Rain Jacket, Ridge [SEP] $37.49 [SEP] "
    )
    assert len(observation.removeprefix(HEAD).split(" [SEP] ")) == 2 + 3 * 10
    assert info["admissible"][:3] == ("click[Back to Search]", "click[Next >]", "click[0305082960]")
    observation, _, _, _, info = env.step("click[0305082960]")
    assert observation == (
        f"{HEAD}< Prev [SEP] size [SEP] large [SEP] x-large [SEP] xx-large [SEP] color [SEP] black [SEP] red [SEP] "
        "green [SEP] brown [SEP] pink [SEP] purple [SEP] Merrow Quick Drying Rain Jacket, Breeze [SEP] Price: $27.29 "
        "[SEP] Rating: 4.5 [SEP] Description [SEP] Features [SEP] Reviews [SEP] Attributes [SEP] Buy Now"
    )
    assert [action[6:-1] for action in info["admissible"]] == [
        *("Back to Search", "< Prev", "Description", "Features", "Reviews", "Attributes", "Buy Now"),
        *("large", "x-large", "xx-large", "black", "red", "green", "brown", "pink", "purple"),
    ]
    sub_pages = {
        "Description": "machine washable and quick drying , a rain jacket that Merrow is known for",
        "Reviews": '"as expected" [SEP] 4.0 [SEP] it came in time and does what it should [SEP] "my second one" [SEP] '
        "5.0 [SEP] bought it again after two years",
        "Attributes": "quick drying [SEP] machine washable [SEP] sun protective [SEP] double knitted [SEP] tag free "
        "[SEP] clothing [SEP] rain jacket [SEP] Clothing › Tops › Rain Jacket",
    }
    for name, text in sub_pages.items():
        observation, _, _, _, info = env.step(f"click[{name}]")
        assert observation == f"{HEAD}< Prev [SEP] {text}"
        assert info["admissible"] == ("click[Back to Search]", "click[< Prev]")
        env.step("click[< Prev]")
    env.step("click[red]")
    observation, reward, terminated, _, info = env.step("click[Buy Now]")
    assert observation == (
        "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk interface.) [SEP] "
        'Purchased [SEP] asin [SEP] 0305082960 [SEP] options [SEP] {"color": "red"} [SEP] attrs [SEP] None [SEP] '
        "category [SEP] None [SEP] query [SEP] None [SEP] product category [SEP] None [SEP] Target [SEP] asin [SEP] "
        "options [SEP] attrs [SEP] price upper [SEP] instuction text [SEP] category [SEP] product category [SEP] query "
        "[SEP] Goal [SEP] None [SEP] Reward [SEP] Your score (min 0.0, max 1.0) [SEP] 1.0 [SEP] Reward Details [SEP] "
        "None"
    )
    assert (reward, terminated, info["admissible"]) == (1.0, True, ())
    assert info["details"] == {"r_type": 1.0, "num_attributes": 2, "num_options": 1, "is_price_ok": True}
    with pytest.raises(SessionGone):
        env.step("click[Back to Search]")


def test_pages_of_results_are_turned():
    first, second = play("search[rain jacket]")[0], play("search[rain jacket]", "click[next >]")[0]
    assert "Page 2 (Total results: 50) [SEP] < Prev [SEP] Next > [SEP] " in second
    assert not set(re.findall(r"\d{10}", first)) & set(re.findall(r"\d{10}", second))
    assert play("search[rain jacket]", "click[Next >]", "click[< Prev]")[0] == first
    last = play("search[rain jacket]", *["click[Next >]"] * 4)
    assert "Page 5 (Total results: 50) [SEP] < Prev [SEP] " in last[0] and "click[Next >]" not in last[4]["admissible"]
    item = re.findall(r"\d{10}", second)[0]
    assert play("search[rain jacket]", "click[Next >]", f"click[{item}]", "click[< Prev]")[0] == second
    empty = play("search[zzz]")
    assert empty[0] == f"{HEAD}Page 1 (Total results: 0)" and empty[4]["admissible"] == ("click[Back to Search]",)


def test_chosen_options_last_as_long_as_the_product_is_open():
    opened = ("search[quick drying machine washable rain jacket]", "click[0305082960]")
    back = ("click[< Prev]", "click[0305082960]")
    assert play(*opened, "click[red]", "click[Features]", "click[< Prev]", "click[Buy Now]")[1] == 1.0
    assert play(*opened, "click[black]", "click[red]", "click[Buy Now]")[1] == 1.0, "the last choice counts"
    assert play(*opened, "click[red]", "click[black]", "click[Buy Now]")[1] == 0.75
    assert play(*opened, "click[red]", *back, "click[Buy Now]")[1] == 0.75, "forgotten on the page of results"
    assert play(*opened, "click[red]", "click[Back to Search]", *opened, "click[Buy Now]")[1] == 0.75
    assert play(*opened, "search[x]", *opened, "CLICK[RED]", " click[buy now]")[1] == 1.0, "any case; search anywhere"


@pytest.mark.parametrize(
    "action",
    ["click[0305082960]", "click[Search]", "click[< Prev]", "click[]", "search[]", "search[ ]", "buy", "", "click red"],
)
def test_what_is_not_possible_leaves_the_page(action):
    page = play("search[rain jacket]", "click[Back to Search]")
    again = play("search[rain jacket]", "click[Back to Search]", action)
    assert again[:4] == page[:4] and again[4] == {**page[4], "invalid": True}
    page = play("search[zzz]")
    assert play("search[zzz]", action)[:4] == page[:4]


# ---------------------------------------------------------------------------------------------------------- world


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), before=st.integers(0, 9), after=st.integers(1, 6))
def test_a_restored_episode_is_a_replayed_one(seed, before, after):
    """Also one that was left in the middle, in an Env that has never been reset."""
    rng = Random(seed)
    task = rng.choice(WORLD.tasks("dev", rng.choice(WORLD.tiers)))
    env, fork, replay = WORLD.make(task), WORLD.make(task), WORLD.make(task)
    _, info = env.reset()
    replay.reset()
    actions = []
    for _ in range(before):
        legal = [action for action in info["admissible"] if action != "click[Buy Now]"]
        actions.append(rng.choice([*legal, "click[nothing]"]))
        info = env.step(actions[-1])[4]
    snapshot = env.snapshot()
    for action in actions:
        replay.step(action)
    assert replay.snapshot() == snapshot
    fork.restore(snapshot)
    for _ in range(after):
        action = rng.choice(info["admissible"])
        reply = env.step(action)
        assert fork.step(action) == replay.step(action) == reply
        info = reply[4]
        if reply[2]:
            break
    env.restore(snapshot)
    assert env.snapshot() == snapshot


def test_environments_keep_the_contract():
    for tier in WORLD.tiers:
        assert check_env(lambda tier=tier: WORLD.make(WORLD.tasks("dev", tier)[0]), walks=3, forkable=True) == []


@pytest.mark.parametrize("tier", WORLD.tiers)
def test_the_expert_shops_by_what_is_listed(tier):
    """It wins within the horizon, by listed actions, and the vocabulary holds every word."""
    known = set(WORLD.vocabulary())
    for task in WORLD.tasks("dev", tier):
        env = WORLD.make(task)
        observation, info = env.reset()
        rewards = []
        plan = WORLD.expert(task)
        assert len(plan) <= WORLD.horizon == 15
        for action in plan:
            assert action in info["admissible"]
            assert known.issuperset(words_of(f"{observation} {' '.join(info['admissible'])}"))
            assert WORLD.grammar.parse(action).action == action
            observation, reward, terminated, _, info = env.step(action)
            rewards.append(reward)
        assert known.issuperset(words_of(observation))
        assert terminated and sum(rewards) == 1.0 and WORLD.score(rewards, info).success is True


def test_an_expert_short_of_steps_buys_the_best_it_can():
    for horizon in (5, 8):
        hasty = Shop(sizes=Sizes(train=0, dev=10, test=0), horizon=horizon)
        for task in hasty.tasks("dev", "longer"):
            env = hasty.make(task)
            env.reset()
            plan = hasty.expert(task)
            *_, (_, reward, terminated, _, _) = [env.step(action) for action in plan]
            assert terminated and len(plan) <= horizon and 0.0 <= reward <= 1.0


def test_kinds_are_dealt_to_tiers():
    kinds = list_kinds_by_tier()
    assert {tier: len(pairs) for tier, pairs in kinds.items()} == {"seen": 192, "evo": 192, "combo": 192, "longer": 288}
    seen, evo, combo = ({*kinds[tier]} for tier in ("seen", "evo", "combo"))
    assert not {name for name, _ in seen} & {name for name, _ in evo}
    assert not combo & (seen | evo)
    assert {form for _, form in combo} == {form for _, form in seen} == {form for _, form in evo}
    assert not {form for _, form in kinds["longer"]} & {form for _, form in seen | evo}


def test_chance_and_haste_do_not_pay():
    """Random clicks earn little; nor does the first product that a search finds, with the options asked for."""
    found = audit(WORLD, "test", limit=12)
    assert all("tasks" in problem.what or "kinds" in problem.what for problem in found.problems)
    rewards, hasty = [], []
    for task in (task for tier in WORLD.tiers for task in WORLD.tasks("test", tier)):
        env, rng = WORLD.make(task), sample_rng("clicks", task.id)
        _, info = env.reset()
        total = 0.0
        for draw in rng.random(WORLD.horizon):
            legal = info["admissible"]
            _, reward, terminated, _, info = env.step(legal[int(draw * len(legal))])
            total += reward
            if terminated:
                break
        rewards.append(total)
        _, info = env.reset()
        info = env.step(info["admissible"][0])[4]
        env.step(next(action for action in info["admissible"] if action[6].isdigit()))
        for value in task.spec["options"].values():
            env.step(f"click[{value}]")
        hasty.append(env.step("click[Buy Now]")[1])
    assert sum(rewards) / len(rewards) <= 0.2
    assert sum(reward == 1.0 for reward in hasty) / len(hasty) <= 0.5


def test_a_task_is_the_same_whatever_the_order_of_its_options():
    one = task_of(options={"size": "large", "color": "red"})
    two = task_of(options={"color": "red", "size": "large"})
    assert one.id == two.id and WORLD.make(one).reset() == WORLD.make(two).reset()
    assert WORLD.key(one) == WORLD.key(task_of(options={"size": "large", "color": "red"}, wording=3))


def test_every_wording_names_every_wish():
    for wording in range(4):
        text = WORLD.make(task_of(wording=wording, options={"size": "large", "color": "red"})).reset()[0]
        assert all(
            word in text for word in ("quick drying", "machine washable", "rain jacket", "size", "large", "color")
        )
        assert text.endswith(", and price lower than 60.00 dollars [SEP] Search") and "{" not in text


def test_wrong_specs_are_refused_with_all_their_problems():
    with pytest.raises(ConfigError, match="did you mean 'rain jacket'"):
        WORLD.make(task_of(kind="rain jackett"))
    with pytest.raises(ConfigError) as caught:
        WORLD.make(task_of(attributes=["gluten free"], options={"flavor": "x"}, max_price=0, wording=9))
    assert [problem.where for problem in caught.value.problems] == ["attributes", "options", "max_price", "wording"]
    for spec in (
        {"attributes": []},
        {"attributes": "quick drying"},
        {"attributes": [3]},
        {"attributes": ["quick drying"] * 2},
        {"options": ["red"]},
        {"options": {"color": "mauve"}},
        {"max_price": True},
        {"wording": "0"},
    ):
        with pytest.raises(ConfigError):
            WORLD.make(task_of(**spec))
    with pytest.raises(ConfigError):
        WORLD.make(Task("kitchen", "1", SPEC))
    with pytest.raises(VersionMismatch):
        WORLD.make(Task("shop", "0", SPEC))
    with pytest.raises(ConfigError) as caught:
        Shop(horizon=0, seed=-1)
    assert [problem.where for problem in caught.value.problems] == ["horizon", "seed"]


def test_another_seed_is_another_shop():
    other = Shop(sizes=Sizes(train=0, dev=2, test=0), seed=1)
    assert other.name == "shop-1"
    task = other.tasks("dev", "seen")[0]
    shown = {world.name: world.make(Task(world.name, "1", task.spec)) for world in (WORLD, other)}
    pages = {name: env.reset() and env.step("search[rain jacket]")[0] for name, env in shown.items()}
    assert pages["shop"] != pages["shop-1"]


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(max_size=30) | st.sampled_from(["search[jacket]", "click[", "click[Next >]"]), max_size=6)
)
def test_any_text_is_answered(texts):
    env = WORLD.make(task_of())
    env.reset()
    for text in (*texts, *(f"search[{text}]" for text in texts)):
        observation, reward, terminated, truncated, info = env.step(text)
        assert observation and (reward, terminated, truncated) == (0.0, False, False)
        assert info["admissible"]


def test_prices_read_as_dollars():
    cheap = load_catalogue().products[0]
    assert isinstance(cheap, Product) and re.fullmatch(r"\$\d+\.\d\d", cheap.price_tag)
    assert float(cheap.price_tag[1:]) == cheap.price / 100
