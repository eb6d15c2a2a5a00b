"""When two queries have the same answer: fifty pairs worked by hand, and properties of the comparison."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.worlds.sql.database import Database
from evolvent.worlds.sql.equal import same_result
from evolvent.worlds.sql.lexer import is_ordered

CREATE = {
    "team": "CREATE TABLE team (id INTEGER PRIMARY KEY, name TEXT, city TEXT, wins INTEGER)",
    "player": "CREATE TABLE player (id INTEGER PRIMARY KEY, name TEXT, age INTEGER, pay REAL, team_id INTEGER)",
}
ROWS = {
    "team": [(1, "reds", "arvik", 7), (2, "blues", "belmor", 3), (3, "greens", "arvik", 3), (4, "ghosts", None, None)],
    "player": [
        (1, "anna", 20, 1.5, 1),
        (2, "boris", 31, 2.5, 1),
        (3, "carla", 20, 0.1, 2),
        (4, "david", 40, 0.2, 3),
        (5, "elena", None, 0.7, None),
    ],
}
JOIN = "FROM player JOIN team ON player.team_id = team.id"
# gold, prediction, whether it is right, and whether it is right by the rule of BIRD (set): None where that is the same
PAIRS = [
    # the same rows
    ("SELECT name FROM team", "SELECT name FROM team", True, None),
    ("SELECT name FROM team", "select team.name as x from team where 1", True, None),
    ("SELECT name FROM team WHERE wins > 3", "SELECT name FROM team WHERE wins >= 7", True, None),
    ("SELECT COUNT(*) FROM team", "SELECT COUNT(id) FROM team", True, None),
    ("SELECT COUNT(*) FROM team", "SELECT COUNT(wins) FROM team", False, None),
    ("SELECT COUNT(*) FROM team", "VALUES (4)", True, None),
    (
        f"SELECT player.name {JOIN} WHERE city = 'arvik'",
        "SELECT name FROM player WHERE team_id IN (SELECT id FROM team WHERE city = 'arvik')",
        True,
        None,
    ),
    (f"SELECT player.name {JOIN}", "SELECT name FROM player", False, None),
    ("SELECT name FROM player WHERE team_id IS NOT NULL", f"SELECT player.name {JOIN}", True, None),
    ("SELECT name FROM team WHERE id = 9", "SELECT name FROM team WHERE id = 8", True, None),
    ("SELECT name FROM team WHERE id = 9", "SELECT 1, 2 WHERE 0", True, None),  # nothing is nothing
    ("SELECT name FROM team WHERE id = 9", "SELECT NULL", False, None),
    # how often a row comes
    ("SELECT city FROM team", "SELECT DISTINCT city FROM team", False, True),
    ("SELECT DISTINCT city FROM team", "SELECT city FROM team GROUP BY city", True, None),
    ("SELECT age FROM player", "SELECT age FROM player UNION SELECT age FROM player", False, True),
    ("SELECT age FROM player WHERE age = 20", "SELECT age FROM player WHERE name = 'anna'", False, True),
    ("SELECT age FROM player WHERE age = 20", "SELECT 20 FROM team WHERE wins = 3", True, None),
    ("SELECT name FROM team", "SELECT name FROM team UNION ALL SELECT name FROM team", False, True),
    ("SELECT wins FROM team WHERE wins = 3", "VALUES (3), (3), (3)", False, True),
    # the order of rows
    ("SELECT name FROM team", "SELECT name FROM team ORDER BY name DESC", True, None),
    ("SELECT name FROM team ORDER BY name", "SELECT name FROM team ORDER BY name DESC", False, True),
    ("SELECT name FROM team ORDER BY name", "SELECT name FROM team", False, True),
    ("SELECT name FROM team ORDER BY id", "SELECT name FROM team ORDER BY 0 + id", True, None),
    ("SELECT name FROM team ORDER BY wins DESC LIMIT 1", "SELECT name FROM team WHERE wins = 7", True, None),
    ("SELECT name FROM player ORDER BY pay DESC LIMIT 2", "VALUES ('boris'), ('anna')", True, None),
    ("SELECT name FROM player ORDER BY pay DESC LIMIT 2", "VALUES ('anna'), ('boris')", False, True),
    ("SELECT * FROM (SELECT name FROM team ORDER BY name)", "SELECT name FROM team", True, None),
    (
        "SELECT name, row_number() OVER (ORDER BY id) FROM team WHERE wins = 3",
        "VALUES ('greens', 2), ('blues', 1)",
        True,
        None,
    ),
    # the order and number of columns
    ("SELECT name, city FROM team", "SELECT city, name FROM team", False, None),
    ("SELECT name, city FROM team", "SELECT name FROM team", False, None),
    ("SELECT name FROM team", "SELECT name, name FROM team", False, None),
    ("SELECT name, name FROM team", "SELECT name, name AS other FROM team", True, None),
    ("SELECT id, wins FROM team", "SELECT wins, id FROM team", False, None),
    ("SELECT * FROM team", "SELECT id, name, city, wins FROM team", True, None),
    ("SELECT name AS n FROM team", "SELECT name AS m FROM team", True, None),
    # NULL
    ("SELECT wins FROM team WHERE id = 4", "SELECT NULL", True, None),
    ("SELECT wins FROM team WHERE id = 4", "SELECT 0", False, None),
    ("SELECT wins FROM team WHERE id = 4", "SELECT ''", False, None),
    ("SELECT city, COUNT(*) FROM team GROUP BY city", "VALUES (NULL, 1), ('belmor', 1), ('arvik', 2)", True, None),
    ("SELECT MAX(age) FROM player WHERE id = 99", "SELECT NULL FROM team WHERE id = 1", True, None),
    ("SELECT SUM(age) FROM player WHERE id = 99", "SELECT TOTAL(age) FROM player WHERE id = 99", False, None),
    # numbers
    ("SELECT SUM(age) FROM player", "SELECT 111.0", True, None),
    ("SELECT AVG(wins) FROM team", "SELECT SUM(wins) * 1.0 / COUNT(wins) FROM team", True, None),
    ("SELECT AVG(wins) FROM team", "SELECT SUM(wins) / COUNT(wins) FROM team", False, None),
    ("SELECT pay FROM player WHERE id = 4", "SELECT pay + pay FROM player WHERE id = 3", True, None),
    ("SELECT 0.3", "SELECT 0.1 + 0.2", True, None),
    ("SELECT 0.3", "SELECT 0.3001", False, None),
    ("SELECT 9007199254740993", "SELECT 9007199254740992", False, None),
    ("SELECT 1e300 * 1e300", "SELECT 2e300 * 1e300", True, None),  # both are infinite
    # types and letters
    ("SELECT wins FROM team WHERE id = 1", "SELECT '7'", False, None),
    ("SELECT name FROM team WHERE id = 1", "SELECT 'Reds'", False, None),
    ("SELECT name FROM team WHERE id = 1", "SELECT 'reds '", False, None),
    ("SELECT 'ab'", "SELECT CAST('ab' AS BLOB)", False, None),
    ("SELECT wins > 3 FROM team WHERE id = 1", "SELECT 1", True, None),  # truth is a number
]


@pytest.fixture(scope="module")
def database():
    database = Database.in_memory(CREATE, ROWS)
    yield database
    database.close()


@pytest.mark.parametrize(("gold", "found", "right", "by_set"), PAIRS, ids=[str(n) for n in range(len(PAIRS))])
def test_pairs(database, gold, found, right, by_set):
    wanted, answer = database.run(gold), database.ask(found)
    assert not wanted.error and not answer.error
    assert same_result(wanted.rows, answer.rows, ordered=is_ordered(gold)) is right
    by_set = right if by_set is None else by_set
    assert same_result(wanted.rows, answer.rows, ordered=is_ordered(gold), compare="set") is by_set


def test_there_are_fifty_pairs_of_both_sorts():
    assert len(PAIRS) >= 50
    assert len({(gold, found) for gold, found, *_ in PAIRS}) == len(PAIRS)
    assert min(Counter(right for _, _, right, _ in PAIRS).values()) >= 20


values = (
    st.none()
    | st.integers(-3, 3)
    | st.sampled_from([0.5, 1.0, 2.0, -0.5, 1e-12, 3.5])
    | st.sampled_from(["", "a", "1"])
)
results = st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[values] * width), max_size=6))


@given(results, st.randoms(use_true_random=False))
def test_order_and_tiny_errors_make_no_difference(rows, rng):
    other = [tuple(v * (1 + 1e-12) if isinstance(v, float) else v for v in row) for row in rows]
    rng.shuffle(other)
    assert same_result(rows, other)
    assert same_result(rows, other, compare="set")
    assert same_result(rows, [*rows, *other], compare="set")
    assert same_result(rows, [*other, *rows]) is (not rows)


@given(results, results)
def test_against_trying_every_pairing(one, other):
    """An oracle that pairs rows greedily; without values that are nearly equal to two others that is exact."""
    left = list(other)
    for row in one:
        found = next((r for r in left if len(r) == len(row) and all(map(alike, r, row))), None)
        if found is not None:
            left.remove(found)
    expected = len(one) == len(other) and not left
    assert same_result(one, other) is expected is same_result(other, one)


def alike(one, other):
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) < 1e-9
    return type(one) is type(other) and one == other


def test_many_rows_of_floats_are_compared_quickly():
    rng = random.Random(0)
    rows = [(rng.random(), rng.random() * 1e9, "x" if n % 2 else None) for n in range(20_000)]
    other = [(a + 1e-13, b * (1 + 1e-13), c) for a, b, c in rows]
    rng.shuffle(other)
    assert same_result(rows, other)
    other[5] = (other[5][0] + 1e-3, *other[5][1:])
    assert not same_result(rows, other)


def test_an_ordered_result_has_its_order():
    assert same_result([(1,), (2,)], [(1.0,), (2.0,)], ordered=True)
    assert not same_result([(1,), (2,)], [(2,), (1,)], ordered=True)
    assert same_result([(1,), (2,)], [(2,), (1,)], ordered=True, compare="set")
