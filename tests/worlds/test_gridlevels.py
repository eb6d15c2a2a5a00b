"""BabyAI's levels: names, houses, missions, limits, and an expert that fulfils them."""

from __future__ import annotations

import hashlib
import re

import pytest

from evolvent.errors import ConfigError
from evolvent.trajectory import canonical_json
from evolvent.worlds.grid.expert import solve
from evolvent.worlds.grid.levels import LEVELS, NAMES, draw_level, full_level_name
from evolvent.worlds.grid.mission import PUT
from evolvent.worlds.grid.scene import Scene
from evolvent.worlds.grid.spec import build_scene

COLOUR = "(red|green|blue|purple|yellow|grey)"
THING = f"(a|the) {COLOUR} (key|ball|box)"
EXPECTED = {  # rooms' size, columns and rows; things (None: several numbers); doors (None: several); mission; moves
    "GoToRedBallGrey": (8, 1, 1, 8, 0, "go to the red ball", 64),
    "GoToRedBallNoDists": (8, 1, 1, 1, 0, "go to the red ball", 64),
    "GoToObjS6": (6, 1, 1, 1, 0, f"go to {THING}", 36),
    "GoToLocalS8N7": (8, 1, 1, 7, 0, f"go to {THING}", 64),
    "GoToObjMazeS7": (7, 3, 3, 1, None, f"go to {THING}", 441),
    "GoToImpUnlock": (8, 3, 3, 18, None, f"go to {THING}", 576),
    "GoToRedBlueBall": (8, 1, 1, 8, 0, "go to the (red|blue) ball", 64),
    "GoToDoor": (7, 3, 3, 0, 4, f"go to (a|the) {COLOUR} door", 441),
    "GoToObjDoor": (8, 3, 3, 8, 4, f"go to (a|the) {COLOUR} (key|ball|box|door)", 576),
    "Open": (8, 3, 3, 18, None, f"open (a|the) {COLOUR} door", 576),
    "OpenRedDoor": (5, 2, 1, 0, 1, "open the red door", 50),
    "OpenDoorLoc": (8, 3, 3, 0, 4, "open (a|the) door (on your left|on your right|in front of you|behind you)", 576),
    "OpenRedBlueDoorsDebug": (6, 3, 3, 0, 2, "open the red door, then open the blue door", 720),
    "Pickup": (8, 3, 3, 18, None, f"pick up {THING}", 576),
    "UnblockPickup": (8, 3, 3, 20, None, f"pick up {THING}", 576),
    "PickupDistDebug": (7, 1, 1, 5, 0, f"pick up (a|the) ({COLOUR} )?(key|ball|box|object)", 49),
    "PickupAbove": (6, 3, 3, 1, None, f"pick up {THING}", 288),
    "PutNextLocalS6N4": (6, 1, 1, 4, 0, f"put {THING} next to {THING}", 72),
    "PutNextS7N4Carrying": (7, 2, 1, 7, 0, f"put {THING} next to {THING}", 392),
    "Unlock": (8, 3, 3, 25, None, f"open (a|the) {COLOUR} door", 576),
    "UnlockLocalDist": (8, 3, 3, 4, 1, "open the door", 576),
    "KeyInBox": (8, 3, 3, 1, 1, "open the door", 576),
    "UnlockPickupDist": (6, 2, 1, 6, 1, f"pick up (a|the) {COLOUR} box", 72),
    "BlockedUnlockPickup": (6, 2, 1, 3, 1, "pick up the box", 576),
    "UnlockToUnlock": (6, 3, 1, 3, 2, "pick up the ball", 1080),
    "ActionObjDoor": (7, 3, 3, 5, 4, f"(go to|pick up|open) (a|the) {COLOUR} (key|ball|box|door)", 441),
    "FindObjS7": (7, 3, 3, 1, None, "pick up the (key|ball|box)", 980),
    "KeyCorridorS6R3": (6, 3, 3, 2, None, "pick up the ball", 1080),
    "OneRoomS20": (20, 1, 1, 1, 0, "pick up the ball", 400),
    "MoveTwoAcrossS8N9": (8, 2, 1, 18, 0, f"put {THING} next to {THING}, then put {THING} next to {THING}", 1024),
    "SynthS5R2": (5, 3, 2, None, None, r"(go to|pick up|open|put) .*", None),
    "BossLevel": (8, 3, 3, None, None, r"(go to|pick up|open|put) .*", None),
}


def scene_of(name: str, seed: int) -> Scene:
    return build_scene(draw_level(name, seed))


def test_the_forty_levels_of_agentgym_in_its_order() -> None:
    assert len(LEVELS) == len(set(LEVELS)) == 40
    assert set(LEVELS) <= set(NAMES)
    assert len(NAMES) == len(set(NAMES)) == 96
    assert (LEVELS[0], LEVELS[11], LEVELS[39]) == (
        "BabyAI-GoToRedBallGrey-v0",
        "BabyAI-Open-v0",
        "BabyAI-BossLevelNoUnlock-v0",
    )


def test_names_with_and_without_their_ends() -> None:
    assert (
        full_level_name("GoToObj")
        == full_level_name("BabyAI-GoToObj-v0")
        == full_level_name("GoToObj-v1")
        == "BabyAI-GoToObj-v0"
    )
    with pytest.raises(ConfigError, match="did you mean 'BossLevel'"):
        full_level_name("BosLevel")


def test_an_episode_is_the_same_everywhere() -> None:
    """A change of the generator is a new version of the world: it gives other episodes."""
    drawn = [draw_level(name, seed) for seed in (0, 7) for name in NAMES]
    assert hashlib.sha256(canonical_json(drawn).encode()).hexdigest()[:16] == "a32e69dba40c42fd"
    assert draw_level("BossLevel", 3) == draw_level("BabyAI-BossLevel-v0", 3) != draw_level("BossLevel", 4)


@pytest.mark.parametrize("name", EXPECTED)
def test_houses_missions_and_limits_are_those_published(name: str) -> None:
    size, columns, rows, things, doors, mission, moves = EXPECTED[name]
    for seed in range(6):
        scene = scene_of(name, seed)
        board = scene.board
        assert board.size == (columns * (size - 1) + 1, rows * (size - 1) + 1)
        found = [board.objects[code] for code in board.start.cells]
        if things is not None:
            assert sum(thing is not None and thing.type != "door" for thing in found) == things
        if doors is not None:
            assert sum(thing is not None and thing.type == "door" for thing in found) == doors
        assert re.fullmatch(mission, scene.mission.text)
        if moves is not None:
            assert scene.max_moves == moves
        else:
            assert scene.max_moves == size**2 * columns * rows * scene.mission.num_walks
        assert scene.max_actions == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_expert_fulfils_every_level(name: str) -> None:
    for seed in range(4):
        assert solve(scene_of(name, seed), max_actions=150) is not None
        assert solve(build_scene(draw_level(name, seed), short_text=False), max_actions=300) is not None


def test_what_is_special_in_a_level() -> None:
    assert scene_of("PutNextS7N4Carrying", 0).board.start.held_code
    assert len(scene_of("KeyInBox", 0).board.inside) == 1
    assert [scene_of(f"OpenDoorsOrderN4{end}", 0).mission.num_strict_stages for end in ("", "Debug")] == [0, 2]
    greys = {thing.colour for thing in scene_of("GoToRedBallGrey", 0).board.objects if thing}
    assert greys == {"red", "grey"}
    for seed in range(10):
        scene = scene_of("MoveTwoAcrossS8N9", seed)
        for atom in (atom for stage in scene.mission.stages for atom in stage):
            assert atom.verb == PUT
            assert not atom.codes & atom.landmark_codes
    texts = {draw_level("BossLevel", seed)["mission"] for seed in range(40)}
    assert any(" after you " in str(text) for text in texts) and any(", then " in str(text) for text in texts)
    assert any("on your left" in str(text) for text in texts)


def test_things_that_bar_the_way_are_where_they_should_be() -> None:
    for seed in range(10):
        board = scene_of("BlockedUnlockPickup", seed).board
        door = next(at for at, code in enumerate(board.start.cells) if (t := board.objects[code]) and t.type == "door")
        ball = board.objects[board.start.cells[door - 1]]
        assert ball is not None and ball.type == "ball"
