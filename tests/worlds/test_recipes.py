"""Books, plans, canonical keys, the folder reader, shapes and fresh books."""

from __future__ import annotations

import json
from collections import Counter, deque
from itertools import islice, permutations
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError
from evolvent.worlds.recipes import Book, Ingredient, Recipe, canonical_key, read_folder, read_recipe, workshop_book
from evolvent.worlds.shapes import LEVELS, NAMES, Level, Shape, Slot, draw_book, draw_tasks, kinds_of, shapes_of


def book(*lines: str, tags: dict[str, list[str]] | None = None) -> Book:
    recipes = [read_recipe(line) for line in lines]
    assert all(recipes)
    return Book([recipe for recipe in recipes if recipe], tags)


def shortest(known: Book, goal: str, most: int) -> int:
    """The length of a shortest plan by breadth-first search; `most` bounds how many of an item are held."""
    start: frozenset[tuple[str, int]] = frozenset()
    seen, queue = {start}, deque([(start, 0)])
    while queue:
        state, steps = queue.popleft()
        held = dict(state)
        if held.get(goal, 0) > 0:
            return steps
        following = [{**held, item: held.get(item, 0) + n} for item in known.raw for n in range(1, most + 1)]
        for recipe in known.recipes:
            if all(held.get(slot.name, 0) >= slot.count for slot in recipe.inputs):
                after = Counter(held)
                after.subtract({slot.name: slot.count for slot in recipe.inputs})
                after[recipe.output] += recipe.count
                following.append({item: n for item, n in after.items() if n})
        for after in following:
            key = frozenset(after.items())
            if max(after.values()) <= most and key not in seen:
                seen.add(key)
                queue.append((key, steps + 1))
    raise AssertionError("no plan")


def test_read_recipe_with_and_without_space_before_commas() -> None:
    expected = Recipe(2, "oak board", (Ingredient(1, "a"), Ingredient(3, "b c")))
    assert read_recipe("craft 2 oak board using 1 a, 3 b c") == expected
    assert read_recipe("  craft 2 oak  board using 1 a , 3 b c ") == expected
    assert str(expected) == "craft 2 oak board using 1 a, 3 b c"
    assert read_recipe("craft x using 1 a") == Recipe(1, "x", (Ingredient(1, "a"),))
    for text in (
        "craft 1 x",
        "craft 1 x using a",
        "craft 1 x using 1 a,",
        "craft 1 x using 1 a,, 1 b",
        "get 1 a",
        "",
        "craft 1 x using -1 a",
        "craft 1 x using 12345 a",
        "craft 1 x using ² a",
    ):
        assert read_recipe(text) is None, text


def test_plan_by_hand() -> None:
    """3 chairs' worth by hand: 2 sticks need one craft of 4; planks 2 + 3 = 5 need two crafts of 4 from 2 logs."""
    known = book(
        "craft 1 chair using 3 plank, 2 stick",
        "craft 4 stick using 2 plank",
        "craft 4 plank using 1 log",
        "craft 1 raft using 9 log",
    )
    assert known.plan("chair") == (
        "get 2 log",
        "craft 4 plank using 1 log",
        "craft 4 plank using 1 log",
        "craft 4 stick using 2 plank",
        "craft 1 chair using 3 plank, 2 stick",
    )
    assert known.depth == {"log": 0, "plank": 1, "stick": 2, "chair": 3, "raft": 1}
    assert known.raw == ("log",)
    assert [recipe.output for recipe in known.required_recipes("chair")] == ["plank", "stick", "chair"]


def test_plan_goes_recipe_by_recipe_and_gets_a_shared_item_once() -> None:
    known = book("craft 1 x using 1 a, 2 y", "craft 2 y using 3 a, 1 z", "craft 1 z using 2 c, 1 a")
    assert known.plan("x") == (
        "get 2 c",
        "get 5 a",
        "craft 1 z using 2 c, 1 a",
        "craft 2 y using 3 a, 1 z",
        "craft 1 x using 1 a, 2 y",
    )


def test_tags_are_satisfied_by_any_member_and_the_cheapest_is_planned() -> None:
    known = book(
        "craft 1 box using 4 board",
        "craft 1 ash board using 2 ash log",
        "craft 1 elm board using 1 elm slab",
        "craft 1 elm slab using 1 elm log",
        tags={"board": ["elm board", "ash board"]},
    )
    assert known.plan("box")[-1] == "craft 1 box using 4 ash board"
    assert known.depth["box"] == 2
    assert known.raw == ("ash log", "elm log")
    assert known.match(Recipe(1, "box", (Ingredient(4, "elm board"),))) == known.recipes[0]
    for wrong in (Ingredient(4, "board"), Ingredient(3, "elm board"), Ingredient(4, "elm slab")):
        assert known.match(Recipe(1, "box", (wrong,))) is None
    assert [recipe.inputs[0].name for recipe in known.variants(known.recipes[0])] == ["ash board", "elm board"]


def test_match_needs_every_slot_once_in_any_order() -> None:
    known = book("craft 1 x using 2 t, 2 a, 1 b", tags={"t": ["a", "c"]})
    two_a, one_b, two_c = Ingredient(2, "a"), Ingredient(1, "b"), Ingredient(2, "c")
    for slots in permutations((two_a, one_b, two_c)):
        assert known.match(Recipe(1, "x", slots)) is not None
    assert known.match(Recipe(1, "x", (two_a, one_b, two_a))) is not None
    assert known.match(Recipe(1, "x", (two_c, one_b, two_c))) is None
    assert known.match(Recipe(1, "x", (two_a, one_b))) is None
    assert known.match(Recipe(2, "x", (two_a, one_b, two_c))) is None


def test_circles_have_no_depth_and_no_plan() -> None:
    known = book("craft 9 nugget using 1 bar", "craft 1 bar using 9 nugget", "craft 1 cup using 1 clay")
    assert known.depth == {"clay": 0, "cup": 1}
    with pytest.raises(ConfigError, match="bar"):
        known.plan("bar")
    with pytest.raises(ConfigError, match="did you mean 'cup'"):
        known.plan("cupp")


def test_bad_books_report_every_mistake() -> None:
    with pytest.raises(ConfigError) as caught:
        Book(
            [Recipe(0, "x", (Ingredient(1, "a"),)), Recipe(1, "y", ()), Recipe(1, "z", (Ingredient(0, "a"),))],
            {"t": []},
        )
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize("level", [1, 2, 3])
def test_plans_are_shortest(level: int) -> None:
    """Against breadth-first search, on trees small enough for it."""
    rng, checked = Random(7), 0
    for shape in (*shapes_of(LEVELS[level], 1), *shapes_of(LEVELS[level], 2), *shapes_of(LEVELS[level], 3)[:6]):
        if shape.crafts() + shape.raws > 6 or checked >= 25:
            continue
        recipes, goal = draw_book(shape, LEVELS[level], rng)
        known = Book(recipes)
        small = Book(known.required_recipes(goal))
        most = max(int(action.split()[1]) for action in known.plan(goal))
        assert len(known.plan(goal)) == shortest(small, goal, most), str(shape)
        checked += 1
    assert checked >= 20


# canonical keys


def renamed(recipes: list[Recipe], goal: str, rng: Random) -> tuple[list[Recipe], str]:
    items = sorted({recipe.output for recipe in recipes} | {slot.name for recipe in recipes for slot in recipe.inputs})
    to = dict(zip(items, rng.sample([f"n{i}" for i in range(40)], len(items)), strict=True))
    changed = [
        Recipe(
            r.count, to[r.output], tuple(rng.sample([Ingredient(s.count, to[s.name]) for s in r.inputs], len(r.inputs)))
        )
        for r in recipes
    ]
    return rng.sample(changed, len(changed)), to[goal]


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3]))
def test_key_ignores_names_and_order(seed: int, level: int) -> None:
    rng = Random(seed)
    shape = rng.choice(shapes_of(LEVELS[1], 2))
    recipes, goal = draw_book(shape, LEVELS[level], rng)
    assert canonical_key(recipes, goal) == canonical_key(*renamed(recipes, goal, rng))


def isomorphic(one: list[Recipe], goal: str, two: list[Recipe], other: str) -> bool:
    def items(recipes: list[Recipe]) -> list[str]:
        return sorted({r.output for r in recipes} | {slot.name for r in recipes for slot in r.inputs})

    def shape(recipes: list[Recipe], to: dict[str, str]) -> list[object]:
        return sorted((r.count, to[r.output], sorted((s.count, to[s.name]) for s in r.inputs)) for r in recipes)

    left, right = items(one), items(two)
    target = shape(two, {name: name for name in right})
    return len(left) == len(right) and any(
        to[goal] == other and shape(one, to) == target
        for to in (dict(zip(left, order, strict=True)) for order in permutations(right))
    )


def test_key_is_equal_exactly_for_isomorphic_books() -> None:
    """Brute force over all renamings, on 40 small books."""
    small = Level(depth=1, distractors=1, most=1)
    shapes = [*shapes_of(small, 1), *shapes_of(small, 2)] * 8
    books = [draw_book(shape, small, Random(n)) for n, shape in enumerate(shapes)]
    books = [(recipes, goal) for recipes, goal in books if len({s.name for r in recipes for s in r.inputs}) <= 4][:40]
    assert len(books) >= 30
    equal = 0
    for one, goal in books:
        for two, other in books:
            same = canonical_key(one, goal) == canonical_key(two, other)
            assert same == isomorphic(one, goal, two, other)
            equal += same
    assert equal > len(books)  # some pairs beside each book with itself


# shapes and levels


def test_shape_text_crafts_and_pairs_by_hand() -> None:
    deepest = Shape((Slot(1), Slot(1)))
    middle = Shape((Slot(2, deepest, 1), Slot(1)))
    root = Shape((Slot(1), Slot(2, middle, 2)))
    assert str(root) == "1+2(2/1(1+1)+1)"
    assert (root.raws, root.crafts()) == (4, 4)  # the deepest is made twice
    assert root.pairs() == {"1+2/2m>2/2m>1+2/1m", "1+2/1m>2/1m>1+1"}
    alone = Shape((Slot(1), Slot(3), Slot(3)), gives=2)
    assert str(alone) == "2=1+3+3"
    assert alone.pairs() == {"=2&1", "=2&3", "1&3", "3&3"}


def test_shapes_of_the_default_level_are_counted_by_hand() -> None:
    """Of raw items: 2 + 3. A made slot has 2 counts, alone or beside one of 2 raw slots: a factor of 6 a depth."""
    assert [len(shapes_of(Level(), depth)) for depth in (1, 2, 3)] == [5, 30, 180]


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_tiers_share_no_kind_and_combo_is_made_of_seen_pairs(level: int) -> None:
    kinds = kinds_of(LEVELS[level])
    texts = [str(shape) for shapes in kinds.values() for shape in shapes]
    assert len(texts) == len(set(texts))
    pairs = {pair for shape in kinds["seen"] for pair in shape.pairs()}
    for shape in kinds["combo"]:
        assert len(shape.pairs()) > 1
        assert shape.pairs() <= pairs
    assert set(kinds) == {"seen", "evo", "combo", "longer"}
    assert all(30 <= len(shapes) <= 60 for shapes in kinds.values())
    assert {shape.depth for shape in kinds["longer"]} == {LEVELS[level].depth + 1}
    assert {shape.depth for shape in kinds["evo"]} == set(range(1, LEVELS[level].depth + 1))


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_fresh_books_have_the_shape_and_distractors_that_share(level: int) -> None:
    rng = Random(3)
    for tier, shapes in kinds_of(LEVELS[level]).items():
        for shape in shapes[:10]:
            recipes, goal = draw_book(shape, LEVELS[level], rng)
            known = Book(recipes)
            needed = known.required_recipes(goal)
            tree = {slot.name for recipe in needed for slot in recipe.inputs}
            others = set(recipes) - set(needed)
            assert known.items <= set(NAMES[: LEVELS[level].names])
            assert len(others) == LEVELS[level].distractors
            assert all(tree & {slot.name for slot in recipe.inputs} for recipe in others)
            assert len({recipe.output for recipe in recipes}) == len(recipes)
            assert sum(len(recipe.inputs) for recipe in needed) - len(needed) + 1 == shape.raws
            assert known.depth[goal] == shape.depth <= LEVELS[level].depth + (tier == "longer")
            assert sum(action.startswith("craft") for action in known.plan(goal)) == shape.crafts()


def test_goal_word_and_line_order_carry_no_information() -> None:
    """Over many draws of one shape, every name is the goal about as often, and its line stands anywhere."""
    shape, rng = shapes_of(LEVELS[2], 2)[0], Random(0)
    goals, places = Counter[str](), Counter[int]()
    for _ in range(3000):
        recipes, goal = draw_book(shape, LEVELS[2], rng)
        goals[goal] += 1
        places[[recipe.output for recipe in recipes].index(goal)] += 1
    assert set(goals) == set(NAMES[:24])
    assert max(goals.values()) < 185  # 125 expected, standard deviation 11
    assert len(places) == 4
    assert min(places.values()) > 600  # 750 expected, standard deviation 24


def test_unshuffled_recipes_stand_before_their_use() -> None:
    level, rng = Level(depth=3, shuffled=False), Random(5)
    for shape in shapes_of(level, 3)[:50]:
        recipes, goal = draw_book(shape, level, rng)
        lines = [recipe.output for recipe in recipes]
        needed = [recipe.output for recipe in Book(recipes).required_recipes(goal)]
        assert [output for output in lines if output in needed] == needed


def test_depths_take_turns() -> None:
    shapes = kinds_of(LEVELS[1])["evo"]
    depths = {str(shape): shape.depth for shape in shapes}
    drawn = [candidate.kind for candidate in islice(draw_tasks(LEVELS[1], "evo", shapes, version="1"), 240)]
    assert [depths[kind] for kind in drawn[:6]] in ([1, 2] * 3, [2, 1] * 3)
    assert set(drawn) == set(depths)


def test_bad_level_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Level(depth=0, slots=0)
    assert len(caught.value.problems) == 2
    with pytest.raises(ConfigError, match="too large"):
        Level(distractors=40)


# books from files


def test_own_book() -> None:
    own = workshop_book()
    assert len(own.items) >= 300
    assert {own.depth[item] for item in own.of} == {1, 2, 3, 4, 5}
    assert own.depth.keys() == own.items  # everything can be made or got
    assert all("{" not in item for item in own.items)
    assert max(int(action.split()[1]) for item in own.of for action in own.plan(item) if action[0] == "g") <= 64


def write(folder: Path, name: str, **content: object) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{name}.json").write_text(json.dumps(content))


def shaped(output: str, pattern: list[str], count: int | None = None, **key: object) -> dict[str, object]:
    result = {"item": f"minecraft:{output}"} | ({"count": count} if count else {})
    return {"type": "minecraft:crafting_shaped", "pattern": pattern, "key": key, "result": result}


def tiny_folder(folder: Path, *, backwards: bool = False) -> Path:
    """Planks of two woods (a tag), sticks of any planks, a circle of bars and nuggets, and kinds that are left out."""
    tag, shapeless = {"tag": "minecraft:planks"}, "minecraft:crafting_shapeless"
    logs = {wood: [{"item": f"minecraft:{wood}_log"}, {"item": "minecraft:other"}] for wood in ("oak", "fir")}
    rows: list[tuple[str, dict[str, object]]] = [
        ("stick", shaped("stick", ["#", "#"], 4, **{"#": tag})),
        ("sword", shaped("sword", list("XX#"), X={"item": "minecraft:bar"}, **{"#": {"item": "minecraft:stick"}})),
        ("bar_from_nugget", shaped("bar", ["###"] * 3, **{"#": {"item": "minecraft:nugget"}})),
        (
            "nugget",
            {"type": shapeless, "ingredients": [{"item": "minecraft:bar"}], "result": {"item": "minecraft:nugget"}},
        ),
        (
            "bar_from_block",
            {
                "type": shapeless,
                "ingredients": [{"item": "minecraft:bar_block"}],
                "result": {"item": "minecraft:bar", "count": 9},
            },
        ),
        (
            "torch",
            {
                "type": shapeless,
                "ingredients": [{"item": "minecraft:stick"}, {"tag": "minecraft:coals"}],
                "result": "minecraft:torch",
            },
        ),
        ("roast", {"type": "minecraft:smelting", "ingredient": {"item": "minecraft:fish"}, "result": "minecraft:ash"}),
    ]
    for wood, log in logs.items():
        result = {"item": f"minecraft:{wood}_planks", "count": 4}
        rows.append((f"{wood}_planks", {"type": shapeless, "group": "planks", "ingredients": [log], "result": result}))
    for name, content in reversed(rows) if backwards else rows:
        write(folder, name, **content)
    return folder


def test_folder_by_hand(tmp_path: Path) -> None:
    known = read_folder(tiny_folder(tmp_path))
    assert sorted(map(str, known.recipes)) == [
        "craft 1 bar using 9 nugget",
        "craft 1 sword using 2 bar, 1 stick",
        "craft 1 torch using 1 stick, 1 coals",
        "craft 4 fir planks using 1 fir log",
        "craft 4 oak planks using 1 oak log",
        "craft 4 stick using 2 planks",
    ]
    assert known.tags == {"planks": ("fir planks", "oak planks")}
    assert known.raw == ("coals", "fir log", "nugget", "oak log")  # a tag of which nothing is made is an item
    assert known.depth["sword"] == 3
    assert known.plan("sword") == (
        "get 18 nugget",
        "craft 1 bar using 9 nugget",
        "craft 1 bar using 9 nugget",
        "get 1 fir log",
        "craft 4 fir planks using 1 fir log",
        "craft 4 stick using 2 fir planks",
        "craft 1 sword using 2 bar, 1 stick",
    )


def test_folder_order_does_not_matter(tmp_path: Path) -> None:
    one = read_folder(tiny_folder(tmp_path / "one"))
    two = read_folder(tiny_folder(tmp_path / "two" / "recipes", backwards=True).parent)
    assert one.recipes == two.recipes
    assert one.digest == two.digest


def test_bad_folders_name_every_bad_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="recipe folder not found"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no recipe in this folder"):
        read_folder(tmp_path)
    tiny_folder(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    write(tmp_path, "empty", type="minecraft:crafting_shaped")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(ConfigError) as caught:
        read_folder(tmp_path)
    assert [problem.where for problem in caught.value.problems] == ["broken.json", "empty.json", "list.json"]
