"""What is said about a name that does not exist: the nearest one, or those that exist, as many as can be read."""

from __future__ import annotations

import pytest

from evolvent.errors import ConfigError, unknown_name_problem
from evolvent.worlds.kitchen.world import Kitchen
from evolvent.worlds.science.world import Science


def test_the_nearest_name_is_proposed():
    assert str(unknown_name_problem("world", "lokup", ["lookup", "crafting"])).endswith("(did you mean 'lookup'?)")


def test_an_empty_name_is_not_listed():
    """It stands for a default: nobody types it."""
    assert "(known: easy)" in str(unknown_name_problem("form", "hard", ["", "easy"]))
    for make_world in (Science, Kitchen):
        with pytest.raises(ConfigError) as caught:
            make_world("qqq")
        assert ": ," not in str(caught.value) and "known: " in str(caught.value)


def test_of_many_names_a_part_is_listed():
    names = [f"name {number:03}" for number in range(200)]
    text = str(unknown_name_problem("level", "qqq", names))
    assert "name 059, and 140 others" in text and "name 060" not in text
