"""What is known of a SQL text before SQLite sees it: tokens, order, the spaces of word tokenizers, and its growth."""

from __future__ import annotations

import re
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.worlds.sql.lexer import UNBOUNDED, expansion, is_ordered, is_query, remove_spaces, tokenize

PIECES = (
    "select",
    "with",
    "a",
    "b",
    " ",
    "(",
    ")",
    ",",
    "'",
    '"',
    "`",
    "[",
    "]",
    "--",
    "/*",
    "*/",
    "\n",
    "as",
    "from",
    "order",
    "by",
    "\u00e9",
    "\udc80",
    "\x00",
    "1.5",
    "$",
    "*",
    ".",
    "natural",
    "group",
)
texts = st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text(max_size=60)


@given(texts)
def test_tokens_joined_are_the_text_again(text):
    assert "".join(token.text for token in tokenize(text)) == text


@given(texts)
def test_nothing_makes_the_questions_fail(text):
    assert is_query(text) in (True, False)
    assert is_ordered(text) in (True, False)
    assert 1 <= expansion(text) <= UNBOUNDED
    remove_spaces(text)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("a1$ 'it''s' \"x\"\"y\"", "word space string space name"),
        ("-- no\n/* never */1e5", "space number"),
        ("[a b]`c`.5", "name mark number"),
        ("'open", "string"),
        ("a\u00a0b", "word"),  # for SQLite a letter
    ],
)
def test_kinds_of_tokens(text, kinds):
    found = [token.kind for token in tokenize(text)]
    assert [kind for at, kind in enumerate(found) if at == 0 or found[at - 1] != kind] == kinds.split()


def test_names_are_read_without_their_quotes():
    named = [token.identifier for token in tokenize('"a""B" [c""D] `e``f` \'g\' Word')]
    assert [name for name in named if name] == ['a"b', 'c""d', "e`f", "g", "word"]


@pytest.mark.parametrize("text", ["SELECT 1", " \n-- first\nWITH a AS (SELECT 1) SELECT 1", "/**/values (1)", "select"])
def test_queries(text):
    assert is_query(text)


@pytest.mark.parametrize(
    "text",
    ["", "  ", "EXPLAIN SELECT 1", "PRAGMA x", "'SELECT'", '"select" 1', "(SELECT 1)", "selects", "1 SELECT", ";"],
)
def test_other_texts_are_no_queries(text):
    assert not is_query(text)


@pytest.mark.parametrize(
    ("text", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("SELECT a FROM t order\n/* x */ by a LIMIT 1", True),
        ("SELECT a FROM t UNION SELECT b FROM t ORDER BY 1", True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", False),
        ("SELECT row_number() OVER (ORDER BY a) FROM t", False),
        ("WITH c AS (SELECT a FROM t ORDER BY a LIMIT 3) SELECT a FROM c", False),
        ("SELECT 'order by' FROM t", False),
        ('SELECT "order" FROM t GROUP BY a', False),
        ("SELECT a FROM t -- ORDER BY a", False),
        ("SELECT a FROM t", False),
    ],
)
def test_the_order_of_the_query_itself(text, ordered):
    assert is_ordered(text) is ordered


@pytest.mark.parametrize(
    ("spaced", "plain"),
    [
        ("city = ' arvik '", "city = 'arvik'"),
        ("a > = 3 AND b < > 2 AND c ! = 1 AND d < = 0", "a >= 3 AND b <> 2 AND c != 1 AND d <= 0"),
        ("a | | b", "a || b"),
        ("x > 1 . 5", "x > 1.5"),
        ("team . name", "team . name"),  # SQLite reads that as it is
        ("'1 . 5' \"a > = b\" `c | | d`", "'1 . 5' \"a > = b\" `c | | d`"),
        ("a >= 3", "a >= 3"),
        ("'it''s'", "'it''s'"),
        ("' open", "' open"),
    ],
)
def test_the_spaces_of_a_word_tokenizer_are_taken_out(spaced, plain):
    assert remove_spaces(spaced) == plain
    assert remove_spaces(plain) == plain


def test_a_word_tokenizer_changes_nothing_that_a_query_means():
    """Split as the embedded tokenizer splits, joined by spaces, taken together again: the same rows."""
    query = "SELECT t.a, COUNT(*) FROM t WHERE t.b <> 'two' AND t.a >= 1.5 GROUP BY t.a HAVING COUNT(*) > 0"
    spaced = " ".join(re.findall(r"\w+|[^\w\s]", query))
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a, b)")
    connection.executemany("INSERT INTO t VALUES (?, ?)", [(1, "one"), (2, "two"), (3, "three")])
    with pytest.raises(sqlite3.Error):
        connection.execute(spaced)
    assert connection.execute(remove_spaces(spaced)).fetchall() == connection.execute(query).fetchall() == [(3, 1)]
    connection.close()


def chain(links: int) -> str:
    """WITH clauses, each of which takes the last one twice."""
    bodies = [f"a{n} AS (SELECT x FROM a{n - 1} UNION ALL SELECT x FROM a{n - 1})" for n in range(1, links)]
    return f"WITH {', '.join(['a0 AS (SELECT 1 AS x)', *bodies])} SELECT COUNT(*) FROM a{links - 1}"


def aliases(levels: int) -> str:
    """Queries in queries, each of which names the inner one three times."""
    query = "1"
    for _ in range(levels):
        query = f"(SELECT {query} AS x FROM t GROUP BY x + 1, x + 2 ORDER BY x + 3)"
    return f"SELECT {query}"


def columns(levels: int) -> str:
    query = "SELECT a FROM t"
    for _ in range(levels):
        query = f"SELECT coalesce(a, a, a, a, a) AS a FROM ({query})"
    return query


@pytest.mark.parametrize("grow", [chain, aliases, columns])
def test_what_grows_when_it_is_prepared_is_seen_to_grow(grow):
    """The measure is above what SQLite's program really grows by, and beyond every limit long before that hurts."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a)")
    sizes = [len(connection.execute(f"EXPLAIN {grow(n)}").fetchall()) for n in range(2, 6)]
    connection.close()
    measured = [expansion(grow(n)) for n in range(2, 6)]
    for at in range(3):
        assert measured[at + 1] / measured[at] >= sizes[at + 1] / sizes[at]
    assert expansion(grow(12)) > 10**8


def test_scopes_of_the_same_name_and_circles():
    nested = "SELECT 1"
    for _ in range(12):
        nested = f"WITH a AS ({nested}) SELECT 1 FROM a x, a y, a z"
    assert expansion(nested) > 3**11
    assert expansion("WITH a AS (SELECT * FROM b, b), b AS (SELECT * FROM a, a) SELECT * FROM a") == UNBOUNDED
    assert expansion(f"SELECT {'(SELECT 1), ' * 100} 1") == UNBOUNDED
    assert expansion("SELECT 1 FROM (SELECT 1 AS a) " + "NATURAL JOIN (SELECT 1 AS a) " * 20) > 2**20
    quoted = ", ".join(f'"a""{n}" AS (SELECT 1 FROM [a"{n - 1}] b, `a"{n - 1}` c)' for n in range(1, 30))
    assert expansion(f'WITH "a""0" AS (SELECT 1), {quoted} SELECT 1 FROM [a"29]') > 10**8
    odd = ", ".join(f"a${n} AS (SELECT 1 FROM a${n - 1} b, a${n - 1} c)" for n in range(1, 30))
    assert expansion(f"WITH a$0 AS (SELECT 1), {odd} SELECT 1 FROM a$29") > 10**8


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a, b FROM t WHERE a > (SELECT AVG(a) FROM t)",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 9) SELECT x FROM c",
        "WITH a AS (SELECT x, COUNT(*) AS n FROM t GROUP BY x), b AS (SELECT x FROM a WHERE n > 2) "
        "SELECT t.x, t.y FROM t JOIN b ON t.x = b.x JOIN a ON a.x = b.x ORDER BY a.n DESC LIMIT 5",
        "SELECT x FROM (SELECT x, RANK() OVER (PARTITION BY y ORDER BY z) AS r FROM (SELECT * FROM t JOIN u USING (i)))"
        " WHERE r = 1 AND x IN (SELECT x FROM v WHERE y NOT IN (SELECT y FROM w))",
    ],
)
def test_queries_that_people_write_stay_far_below_the_limits(text):
    assert expansion(text) < 5_000
