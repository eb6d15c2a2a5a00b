"""The household engine: transcripts worked out by hand, shortest plans against brute force, what every state keeps."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError
from evolvent.worlds.household.game import FAMILIES, Game, Goal, Layout, iterate_bits, names_of_ids
from evolvent.worlds.household.kinds import list_possible_goals
from evolvent.worlds.household.plans import explore, plan
from evolvent.worlds.household.rooms import draw_game
from evolvent.worlds.household.rules import Action, apply_action, is_possible, is_won, list_actions
from evolvent.worlds.household.text import DIALECTS, HELP, NOTHING, Speaker

ABLE = ("pickupable", "cleanable", "heatable", "coolable", "sliceable", "toggleable")


def layout(
    furniture: dict[str, tuple[str, bool]], things: dict[str, tuple[str, str, str]], *, start: str = "loc_bar_0"
) -> Layout:
    """furniture: id -> (place, openable); things: id -> (receptacle id, place, abilities by their first letters)."""
    found = Layout(start=start)
    for one, (place, openable) in furniture.items():
        found.receptacles[one] = "sinkbasin" if "basin" in one else one.split("_bar_")[0]
        found.place_of_receptacle[one] = place
        if openable:
            found.openable.add(one)
    for one, (receptacle, place, letters) in things.items():
        found.objects[one] = one.split("_bar_")[0]
        found.object_places.append((one, place))
        if receptacle:
            found.object_receptacles.append((one, receptacle))
        for name in ABLE:
            if name[0] in letters:
                found.properties.setdefault(name, set()).add(one)
    found.allowed_contents = {(kind, thing) for kind in found.receptacles.values() for thing in found.objects.values()}
    return found


def kitchen() -> Layout:
    """Five pieces of furniture; the ids are such that cabinet 2 comes before cabinet 1."""
    found = layout(
        {
            "cabinet_bar_1": ("loc_bar_1", True),
            "cabinet_bar_2": ("loc_bar_2", True),
            "countertop_bar_1": ("loc_bar_3", False),
            "sink_bar_1_bar_sinkbasin": ("loc_bar_4", False),
            "microwave_bar_1": ("loc_bar_5", True),
            "fridge_bar_1": ("loc_bar_6", True),
        },
        {
            "apple_bar_1": ("countertop_bar_1", "loc_bar_3", "pchs"),
            "apple_bar_2": ("cabinet_bar_1", "loc_bar_1", "pchs"),
            "mug_bar_1": ("cabinet_bar_1", "loc_bar_1", "pch"),
            "knife_bar_1": ("countertop_bar_1", "loc_bar_3", "pc"),
            "desklamp_bar_1": ("countertop_bar_1", "loc_bar_3", "t"),
        },
    )
    found.properties["coolable"] = {"apple_bar_1", "mug_bar_1"}
    found.properties["isreceptacleobject"] = {"mug_bar_1"}
    found.allowed_contents -= {("microwave", "knife"), ("sinkbasin", "desklamp")}
    return found


def play(game: Game, dialect: str, *actions: str) -> list[str]:
    """What is answered to each action; impossible ones change nothing."""
    speaker, state, said = Speaker(game, DIALECTS[dialect]), game.start, []
    for text in actions:
        action = speaker.parse_action(text)
        if action is None or not is_possible(game, state, action):
            said.append(NOTHING)
        else:
            state = apply_action(game, state, action)
            said.append(speaker.describe_result(state, action))
    return said


def test_names_are_numbered_from_the_highest_down():
    ids = ["mug_bar__plus_1", "mug_bar__minus_9", "sink_bar_3", "sink_bar_3_bar_sinkbasin", "mug_bar_0", "agent1"]
    assert names_of_ids(ids) == {
        "mug_bar_0": "mug 3",
        "mug_bar__minus_9": "mug 2",
        "mug_bar__plus_1": "mug 1",
        "sink_bar_3": "sink 1",
        "sink_bar_3_bar_sinkbasin": "sinkbasin 1",
        "agent1": "agent1",
    }


GOAL = Goal("cool", "apple", "cabinet")


def test_a_whole_episode_word_for_word():
    game = Game(kitchen(), GOAL, "put a cool apple in cabinet")
    speaker = Speaker(game, DIALECTS["0.4"])
    assert speaker.first_observation == (
        "You are in the middle of a room. Looking quickly around you, you see a cabinet 2, a cabinet 1, a countertop "
        "1, a fridge 1, a microwave 1, and a sinkbasin 1.\n\nYour task is to: put a cool apple in cabinet."
    )
    assert play(
        game,
        "0.4",
        "look",
        "go to cabinet 2",
        "look",
        "open cabinet 2",
        "go to cabinet 2",
        "close cabinet 2",
        "examine cabinet 2",
        "go to countertop 1",
        "take apple 2 from countertop 1",
        "inventory",
        "examine apple 2",
        "cool apple 2 with fridge 1",
        "go to fridge 1",
        "cool apple 2 with fridge 1",
        "examine apple 2",
        "go to cabinet 1",
        "move apple 2 to cabinet 1",
        "open cabinet 1",
        "put apple 2 in/on cabinet 1",
        "inventory",
    ) == [
        "You are in the middle of a room. Looking quickly around you, you see nothing.",
        "You arrive at cabinet 2. The cabinet 2 is closed.",
        "You are facing the cabinet 2. Next to it, you see nothing.",
        "You open the cabinet 2. The cabinet 2 is open. In it, you see a apple 1, and a mug 1.",
        NOTHING,
        "You close the cabinet 2.",
        "The cabinet 2 is closed.",
        "You arrive at countertop 1. On the countertop 1, you see a apple 2, a desklamp 1, and a knife 1.",
        "You pick up the apple 2 from the countertop 1.",
        "You are carrying: a apple 2.",
        "There's nothing special about apple 2.",
        NOTHING,
        "You arrive at fridge 1. The fridge 1 is closed.",
        "You cool the apple 2 using the fridge 1.",
        "This is a cold apple 2.",
        "You arrive at cabinet 1. The cabinet 1 is closed.",
        NOTHING,
        "You open the cabinet 1. The cabinet 1 is open. In it, you see nothing.",
        "You move the apple 2 to the cabinet 1.",
        "You are not carrying anything.",
    ]


def test_the_older_dialect():
    """Arrivals name places, numbered like everything: seven of them, the last id first."""
    game = Game(kitchen(), GOAL, "put a cool apple in cabinet")
    assert play(
        game,
        "0.3",
        "go to countertop 1",
        "take knife 1 from countertop 1",
        "go to sinkbasin 1",
        "move knife 1 to sinkbasin 1",
        "put knife 1 in cabinet 1",
        "help",
    ) == [
        "You arrive at loc 4. On the countertop 1, you see a apple 2, a desklamp 1, and a knife 1.",
        "You pick up the knife 1 from the countertop 1.",
        "You arrive at loc 3. On the sinkbasin 1, you see nothing.",
        "You put the knife 1 in/on the sinkbasin 1.",
        NOTHING,
        NOTHING,
    ]
    state = apply_action(game, game.start, Action("go", game.number["countertop 1"]))
    state = apply_action(game, state, Action("take", game.object_number["knife 1"], game.number["countertop 1"]))
    assert Speaker(game, DIALECTS["0.3"]).list_actions(state) == (
        "examine countertop 1",
        "examine knife 1",
        "go to cabinet 1",
        "go to cabinet 2",
        "go to fridge 1",
        "go to microwave 1",
        "go to sinkbasin 1",
        "inventory",
        "look",
        "put knife 1 in/on countertop 1",
        "slice apple 2 with knife 1",
        "use desklamp 1",
    )
    assert "help" in Speaker(game, DIALECTS["0.4"]).list_actions(state)
    assert play(game, "0.4", "help") == [HELP]


def test_how_a_held_object_looks():
    """Each state of it, in the order of ALFWorld's conditions; heat and cold take turns, cleaning stays."""
    game = Game(kitchen(), GOAL, "x")
    said = play(
        game,
        "0.4",
        "go to countertop 1",
        "use desklamp 1",
        "use desklamp 1",
        "take knife 1 from countertop 1",
        "slice apple 2 with knife 1",
        "move knife 1 to countertop 1",
        "take apple 2 from countertop 1",
        "examine apple 2",
        "go to microwave 1",
        "heat apple 2 with microwave 1",
        "examine apple 2",
        "go to sinkbasin 1",
        "clean apple 2 with sinkbasin 1",
        "examine apple 2",
        "go to fridge 1",
        "cool apple 2 with fridge 1",
        "examine apple 2",
        "examine knife 1",
    )
    assert [text for text in said if text.startswith(("You turn", "You sliced", "This", NOTHING))] == [
        "You turn on the desklamp 1.",
        "You turn on the desklamp 1.",
        "You sliced the apple 2 with the knife 1.",
        "This is a sliced apple 2.",
        "This is a hot sliced apple 2.",
        "This is a hot and clean sliced apple 2.",
        "This is a cool and clean sliced apple 2.",
        NOTHING,
    ]
    whole = play(
        game,
        "0.4",
        "go to cabinet 2",
        "open cabinet 2",
        "take apple 1 from cabinet 2",
        "go to sinkbasin 1",
        "clean apple 1 with sinkbasin 1",
        "examine apple 1",
        "go to microwave 1",
        "heat apple 1 with microwave 1",
        "examine apple 1",
        "go to fridge 1",
        "cool apple 1 with fridge 1",
    )
    assert (whole[5], whole[8], whole[10]) == (
        "This is a clean apple 1.",
        "This is a hot and clean apple 1.",
        NOTHING,
    )  # apple 1 cannot be cooled
    mug = play(game, "0.4", "go to cabinet 2", "open cabinet 2", "take mug 1 from cabinet 2", "examine mug 1")
    assert mug[-1] == "This is a normal mug 1. In it, you see nothing."


def test_receptacles_that_share_a_place():
    """One cannot go from one to the other; what was parted from one is seen next to it while it lies in the other."""
    found = layout(
        {"drawer_bar_1": ("loc_bar_1", True), "drawer_bar_2": ("loc_bar_1", True), "bed_bar_1": ("loc_bar_2", False)},
        {"pen_bar_1": ("drawer_bar_1", "loc_bar_1", "p")},
    )
    game = Game(found, Goal("put", "pen", "bed"), "x")
    assert play(
        game,
        "0.4",
        "go to drawer 1",
        "go to drawer 2",
        "look",
        "open drawer 2",
        "take pen 1 from drawer 2",
        "open drawer 1",
        "move pen 1 to drawer 1",
        "look",
        "take pen 1 from drawer 1",
        "move pen 1 to drawer 2",
        "look",
    ) == [
        "You arrive at drawer 1. The drawer 1 is closed.",
        NOTHING,
        "You are facing the drawer 2, and drawer 1. Next to it, you see nothing.",
        "You open the drawer 2. The drawer 2 is open. In it, you see a pen 1.",
        "You pick up the pen 1 from the drawer 2.",
        "You open the drawer 1. The drawer 1 is open. In it, you see nothing.",
        "You move the pen 1 to the drawer 1.",
        "You are facing the drawer 2, and drawer 1. Next to it, you see a pen 1.",
        "You pick up the pen 1 from the drawer 1.",
        "You move the pen 1 to the drawer 2.",
        "You are facing the drawer 2, and drawer 1. Next to it, you see a pen 1.",
    ]


@pytest.mark.parametrize(
    ("goal", "actions", "wins_at"),
    [
        (
            Goal("put", "apple", "sinkbasin"),
            "go to countertop 1;take apple 2 from countertop 1;go to sinkbasin 1;move apple 2 to sinkbasin 1",
            3,
        ),
        (
            Goal("clean", "mug", "fridge"),
            "go to cabinet 2;open cabinet 2;take mug 1 from cabinet 2;go to fridge 1;"
            "open fridge 1;move mug 1 to fridge 1;take mug 1 from fridge 1;go to sinkbasin 1;"
            "clean mug 1 with sinkbasin 1;go to fridge 1;move mug 1 to fridge 1",
            10,
        ),
        (
            Goal("heat", "mug", "cabinet"),
            "go to cabinet 2;open cabinet 2;take mug 1 from cabinet 2;go to microwave 1;"
            "heat mug 1 with microwave 1;go to fridge 1;cool mug 1 with fridge 1;"
            "go to cabinet 2;move mug 1 to cabinet 2",
            None,
        ),
        (
            Goal("cool", "apple", "cabinet"),
            "go to countertop 1;take apple 2 from countertop 1;go to fridge 1;"
            "cool apple 2 with fridge 1;open fridge 1;move apple 2 to fridge 1;go to cabinet 2;open cabinet 2",
            None,
        ),
        (
            Goal("two", "apple", "cabinet"),
            "go to countertop 1;take apple 2 from countertop 1;go to cabinet 1;"
            "open cabinet 1;move apple 2 to cabinet 1;take apple 2 from cabinet 1;go to cabinet 2;open cabinet 2;"
            "move apple 2 to cabinet 2",
            8,
        ),
        (
            Goal("look", "mug", "desklamp"),
            "go to countertop 1;use desklamp 1;go to cabinet 2;open cabinet 2;"
            "take mug 1 from cabinet 2;go to countertop 1",
            5,
        ),
    ],
)
def test_when_a_goal_is_reached(goal, actions, wins_at):
    game = Game(kitchen(), goal, goal.describe())
    speaker, state, reached = Speaker(game, DIALECTS["0.4"]), game.start, []
    for text in actions.split(";"):
        action = speaker.parse_action(text)
        assert action is not None and is_possible(game, state, action), text
        state = apply_action(game, state, action)
        reached.append(is_won(game, state))
    assert reached.index(True) == wins_at if wins_at is not None else not any(reached)


def test_a_fact_about_nothing_is_refused():
    broken = kitchen()
    broken.object_receptacles.append(("pen_bar_1", "cabinet_bar_1"))
    with pytest.raises(ConfigError, match="pen_bar_1"):
        Game(broken, GOAL, "x")


def drawn(seed: int, family: str) -> Game:
    """A game of three receptacles and two or three things, often with shared places; not always solvable."""
    rng = Random(seed)
    kinds = rng.sample(["drawer", "fridge", "microwave", "bed", "sink", "drawer"], 3)
    ids = [f"{kind}_bar_{i}" + ("_bar_sinkbasin" if kind == "sink" else "") for i, kind in enumerate(kinds)]
    furniture = {one: (f"loc_bar_{rng.choice([1, 1, i + 2])}", rng.random() < 0.5) for i, one in enumerate(ids)}
    things = {}
    for i in range(rng.choice([2, 3])):
        receptacle = rng.choice(ids)
        kind = "apple" if i < 2 else "desklamp"
        letters = "".join(letter for letter in "pch" if rng.random() < 0.85) if kind == "apple" else "t"
        things[f"{kind}_bar_{i}"] = (receptacle, furniture[receptacle][0], letters)
    found = layout(furniture, things, start=rng.choice(["loc_bar_0", "loc_bar_1"]))
    found.allowed_contents = {pair for pair in found.allowed_contents if rng.random() < 0.8}
    target = "desklamp" if family == "look" else rng.choice([found.receptacles[one] for one in ids])
    return Game(found, Goal(family, "apple", target), "x")


def shortest(game: Game) -> int | None:
    """The length of a shortest way to the goal by breadth-first search over all states."""
    seen, edge, steps = {game.start}, [game.start], 0
    while edge:
        if any(is_won(game, state) for state in edge):
            return steps
        after = []
        for state in edge:
            for action in list_actions(game, state):
                child = apply_action(game, state, action)
                if child not in seen:
                    seen.add(child)
                    after.append(child)
        edge, steps = after, steps + 1
    return None


@pytest.mark.parametrize("family", list(FAMILIES))
def test_plans_are_shortest(family):
    solvable = 0
    for seed in range(40):
        game = drawn(seed, family)
        found = plan(game)
        assert (None if found is None else len(found)) == shortest(game), seed
        solvable += bool(found)
        state = game.start
        for action in found or ():
            assert is_possible(game, state, action)
            state = apply_action(game, state, action)
        assert found is None or is_won(game, state)
    assert solvable >= 8


@given(st.sampled_from(list_possible_goals()), st.integers(0, 9999), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_what_is_legal_is_possible_and_nothing_else(goal, seed, rng):
    """Along a random walk: both ways to ask agree, texts are understood as meant, and no object is lost or doubled."""
    game = draw_game(goal, seed, size="small")
    speaker, state = Speaker(game, DIALECTS["0.4"]), game.start
    everything = sum(mask.bit_count() for mask in state.contents)
    for _ in range(15):
        found = list_actions(game, state)
        assert len(set(found)) == len(found)
        assert all(speaker.parse_action(speaker.render_action(action)) == action for action in found)
        verbs = ("take", "move", "clean", "heat", "cool")
        things, places = range(len(game.object_ids)), range(len(game.ids))
        every = {Action(verb, o, r) for verb in verbs for o in things for r in places}
        every |= {Action(verb, r) for verb in ("go", "open", "close", "view") for r in places}
        every |= {Action(verb, o) for verb in ("use", "feel") for o in things}
        every |= {Action("slice", o, k) for o in things for k in things}
        every |= {Action(verb) for verb in ("look", "inventory", "help")}
        assert {action for action in every if is_possible(game, state, action)} == set(found)
        state = apply_action(
            game,
            state,
            rng.choice(
                [action for action in found if action.verb not in ("go", "look")] if rng.random() < 0.5 else found
            ),
        )
        assert sum(mask.bit_count() for mask in state.contents) + (state.held_object >= 0) == everything
        for r, contents in enumerate(state.contents):
            assert all(state.objects_at_places[game.place[r]] >> o & 1 for o in iterate_bits(contents))


@given(st.sampled_from(list_possible_goals()), st.integers(0, 9999), st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_the_explorer_knows_only_what_it_has_seen(goal, seed, rng):
    """In a room that differs only in what has not been seen it does the same."""
    game, other = draw_game(goal, seed, size="small"), draw_game(goal, seed, size="small")
    contents = list(other.start.contents)
    for o in iterate_bits(other.goal_objects):
        where = [r for r in range(len(contents)) if other.accepted_objects[r] >> o & 1 and r not in other.targets]
        contents = [mask & ~(1 << o) for mask in contents]
        contents[rng.choice(where)] |= 1 << o
    other.start = other.start._replace(contents=tuple(contents))
    ways = explore(game), explore(other)
    assert ways[0] is not None and ways[1] is not None
    speakers = Speaker(game, DIALECTS["0.4"]), Speaker(other, DIALECTS["0.4"])
    states = [game.start, other.start]
    for one, two in zip(*ways, strict=False):
        assert one == two
        states = [apply_action(game, states[0], one), apply_action(other, states[1], two)]
        if speakers[0].describe_result(states[0], one) != speakers[1].describe_result(states[1], two):
            break
    assert len(plan(game) or ()) <= len(ways[0])
