"""Queries that mean harm, against real databases: nothing is written, nothing is read that is not the database's, and
every one of them ends within its limits, in a process that is killed if it takes more time or memory than it may."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evolvent.errors import EnvLost
from evolvent.worlds.sql.database import FILE_LIMITS, MEMORY_LIMITS, Database, Limits, build_image, connect

CREATE = {"t": "CREATE TABLE t (a INTEGER, b TEXT)", "u": "CREATE TABLE u (c INTEGER)"}
ROWS = {"t": [(n, f"text {n}") for n in range(20)], "u": [(n,) for n in range(5)]}


def filled(limits: Limits = MEMORY_LIMITS) -> Database:
    return Database.in_memory(CREATE, ROWS, limits)


@pytest.fixture
def database():
    database = filled()
    yield database
    database.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database file with a view and a full-text table, in a folder of its own."""
    path = tmp_path / "data" / "shop.sqlite"
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO item VALUES (1, 'pen'), (2, 'cup');"
        "CREATE VIEW names AS SELECT name FROM item; CREATE VIRTUAL TABLE found USING fts5(body);"
        "CREATE VIEW sly AS SELECT load_extension('x') AS a;"
    )
    connection.close()
    return path


def state(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def grown(levels: int) -> str:
    query = "1"
    for _ in range(levels):
        query = f"(SELECT {query} AS x FROM t GROUP BY x + 1, x + 2 ORDER BY x + 3)"
    return f"SELECT {query}"


def doubled(links: int) -> str:
    bodies = [f"a{n} AS (SELECT x FROM a{n - 1} UNION ALL SELECT x FROM a{n - 1})" for n in range(1, links)]
    return f"WITH {', '.join(['a0 AS (SELECT 1 AS x)', *bodies])} SELECT COUNT(*) FROM a{links - 1}"


LOOP = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
HOSTILE = {
    "endless recursion": (f"{LOOP} SELECT COUNT(*) FROM c", "too many steps"),
    "endless rows": (f"{LOOP} SELECT x FROM c", "more than 1000 rows"),
    "endless distinct rows": (f"{LOOP.replace(' ALL', '')} SELECT MAX(x) FROM c", "too many steps"),
    "a product of tables": ("SELECT COUNT(*) FROM t a, t b, t c, t d, t e, t f, t g, t h", "too many steps"),
    "sorting a product": ("SELECT a.a FROM t a, t b, t c, t d, t e ORDER BY b.b, c.b, d.b", "too many steps"),
    "growing text": ("WITH RECURSIVE c(x) AS (SELECT 'aaaa' UNION ALL SELECT x || x FROM c) SELECT x FROM c", "big"),
    "replace": ("SELECT replace(hex(hex(hex(b))), '3', hex(hex(hex(b)))) FROM t", "too big"),
    "group_concat": ("SELECT group_concat(x.b) FROM t x, t y, t z", "too big"),
    "zeroblob": ("SELECT zeroblob(2000000000)", "not authorized to use function: zeroblob"),
    "randomblob": ("SELECT randomblob(2000000000)", "not authorized to use function: randomblob"),
    "random": ("SELECT random()", "not authorized to use function: random"),
    "the clock": ("SELECT date('now')", "not authorized to use function: date"),
    "the clock as a word": ("SELECT CURRENT_TIMESTAMP", "not authorized to use function: CURRENT"),
    "an extension": ("SELECT load_extension('evil')", "not authorized to use function: load_extension"),
    "a file": ("SELECT readfile('/etc/passwd')", "no such function"),
    "a file to write": ("SELECT writefile('x', 'y')", "no such function"),
    "a tokenizer's address": ("SELECT fts3_tokenizer('simple')", "not authorized"),
    "pragma as a table": ("SELECT * FROM pragma_database_list", "not authorized"),
    "pragma as a table, counted": ("SELECT COUNT(*) FROM pragma_table_info('t')", "not authorized"),
    "pages": ("SELECT 1 FROM dbstat", "dbstat"),
    "statements": ("SELECT * FROM sqlite_stmt", "sqlite_stmt"),
    "a table function": ("SELECT * FROM json_each('[1, 2]')", "json_each"),
    "attach": ("ATTACH 'other.db' AS other", "expected one SELECT query"),
    "pragma": ("PRAGMA writable_schema = ON", "expected one SELECT query"),
    "explain": ("EXPLAIN SELECT 1", "expected one SELECT query"),
    "delete after WITH": ("WITH x AS (SELECT 1) DELETE FROM t", "not authorized"),
    "insert after WITH": ("WITH x AS (SELECT 1) INSERT INTO u SELECT 1", "not authorized"),
    "update after WITH": ("WITH x AS (SELECT 1) UPDATE t SET a = 1", "not authorized"),
    "two statements": ("SELECT 1; SELECT 2", "one statement"),
    "a statement behind": ("SELECT 1; DROP TABLE t", "one statement"),
    "a statement in a comment's shadow": ("SELECT 1 /* */; /* */ DELETE FROM t; --", "one statement"),
    "a parameter": ("SELECT ?1, :a, @b, $c", "variable"),
    "NUL": ("SELECT '\x00'", "null character"),
    "half a letter": ("SELECT '\udcff'", "surrogates"),
    "a megabyte": (f"SELECT '{'a' * 1_000_000}'", "longer than 4000 characters"),
    "many columns": (f"SELECT {', '.join(['a'] * 500)} FROM t", "too many columns"),
    "many unions": (" UNION ALL ".join(["SELECT 1"] * 55), "too many terms"),
    "parentheses": (f"SELECT {'(' * 1500}1{')' * 1500}", "overflow"),
    "signs": (f"SELECT {'- ' * 1500}1", "overflow"),
    "a deep expression": (f"SELECT {' + '.join(['a'] * 400)} FROM t", "too large"),
    "a long pattern": (f"SELECT 'a' LIKE '{'%a' * 150}'", "too complex"),
    "bodies that double": (doubled(30), "the query is too complex"),
    "aliases that double": (grown(12), "the query is too complex"),
    "joins without end": ("SELECT 1 FROM " + ", ".join(["t"] * 65), "64 tables"),
    "a wide number": ("SELECT length(printf('%2000000000d', 1))", None),  # is NULL
    "nothing": ("", "expected one SELECT query"),
    "a word": ("help", "expected one SELECT query"),
    "not closed": ("SELECT 'abc", "unrecognized token"),
    "another schema": ("SELECT * FROM temp.sqlite_master", "prohibited"),
    "no function": ("SELECT sleep(1)", "no such function"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_queries_are_answered_by_a_sentence(database, name):
    query, said = HOSTILE[name]
    answer = database.ask(query)
    if said is None:
        assert answer.rows == [(None,)]
    else:
        assert said in answer.error
        assert not answer.rows
        assert len(answer.error) <= 310
    assert database.ask("SELECT COUNT(*), SUM(a) FROM t").rows == [(20, 190)]


@pytest.mark.parametrize("name", HOSTILE)
def test_without_the_look_at_the_text_the_rest_still_holds(database, name):
    """`run` is for texts that are known to be sound: what SQLite itself stops, it stops there too."""
    affordable = {"bodies that double": doubled(16), "aliases that double": grown(7)}
    database.run(affordable.get(name, HOSTILE[name][0]))
    assert database.run("SELECT COUNT(*), SUM(a) FROM t").rows == [(20, 190)]
    assert database.run("SELECT name FROM sqlite_master ORDER BY name").rows == [("t",), ("u",)]


PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from evolvent.worlds.sql.database import FILE_LIMITS, Database
from tests.worlds.test_sql_database import CREATE, HOSTILE, LOOP, ROWS, filled
database, before = filled(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for query, _ in HOSTILE.values():
    database.ask(query)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 100 * 1024, grown
print("small", flush=True)
large = Database.in_memory(CREATE, ROWS, FILE_LIMITS)
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
for query in (
    f"{LOOP} SELECT COUNT(*) FROM (SELECT DISTINCT printf('%100000d', x) FROM c)",
    f"{LOOP} SELECT printf('%100000d', x) FROM c",
    "SELECT 1 FROM t a, t b, t c, t d, t e, t f, t g, t h",
):
    print(large.ask(query).error, flush=True)
"""


def test_time_and_memory_stay_within_limits():
    """In a process of its own that is killed after a minute of CPU time, and has no more than three gigabytes."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    larger = "the result has more than 100000 rows or is larger than 20000000 bytes"
    assert done.stdout.splitlines() == ["small", "the query needs too much memory", larger, larger]


def test_a_file_is_read_and_never_written(file):
    before = state(file.parent)
    database = Database.open_file(file)
    assert database.ask("SELECT name FROM item ORDER BY id").rows == [("pen",), ("cup",)]
    assert database.ask("SELECT COUNT(*) FROM names").rows == [(2,)]
    assert database.ask("SELECT * FROM found").error  # a virtual table runs code of its own
    assert "load_extension" in database.ask("SELECT * FROM sly").error
    for query in (
        "WITH x AS (SELECT 1) DELETE FROM item",
        "INSERT INTO item VALUES (3, 'x')",
        "VACUUM INTO 'copy'",
        "ATTACH 'new.db' AS n",
        "PRAGMA journal_mode = WAL",
        "CREATE TABLE z (a)",
        "BEGIN",
        "DROP VIEW names",
        "PRAGMA query_only = OFF",
        "REINDEX",
        "ANALYZE",
        "DETACH main",
        "SAVEPOINT a",
        "COMMIT",
    ):
        assert database.ask(query).error
        assert database.run(query).error, query
    assert "not authorized" in database.run("ATTACH 'new.db' AS n").error
    database.close()
    database.close()
    assert state(file.parent) == before


def test_each_lock_holds_without_the_authorizer(file, tmp_path):
    """Read only by the connection too: what the authorizer stops first would stop there."""
    connection = connect(file)
    for query in ("DELETE FROM item", "CREATE TABLE z (a)", "PRAGMA user_version = 5"):
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute(query)
    connection.close()
    database = filled()
    database._connection.set_authorizer(None)
    assert "readonly" in database.run("DELETE FROM t").error  # query_only
    assert "too many attached databases" in database.run(f"ATTACH '{tmp_path / 'new.db'}' AS n").error
    database.close()
    assert not (tmp_path / "new.db").exists()


def test_a_log_that_was_not_merged_is_read(file):
    writer = sqlite3.connect(file)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("INSERT INTO item VALUES (3, 'hat')")
    writer.commit()
    database = Database.open_file(file)
    assert database.ask("SELECT COUNT(*) FROM item").rows == [(3,)]
    database.close()
    writer.close()


@pytest.mark.parametrize(
    "content", [b"", b"no database at all, but long enough to be looked at", b"SQLite format 3\x00" * 40]
)
def test_files_that_are_no_database_are_lost_not_wrong(tmp_path, content):
    path = tmp_path / "broken.sqlite"
    path.write_bytes(content)
    if not content:
        Database.open_file(path).close()  # for SQLite a database without tables
        return
    with pytest.raises(EnvLost, match=r"broken\.sqlite"):
        Database.open_file(path)
    with pytest.raises(EnvLost, match=r"missing\.sqlite"):
        Database.open_file(tmp_path / "missing.sqlite")


def test_a_database_that_breaks_or_closes_is_lost_not_wrong(tmp_path):
    path = tmp_path / "big.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (a TEXT)")
    connection.executemany("INSERT INTO t VALUES (?)", [("x" * 500,) for _ in range(200)])
    connection.commit()
    connection.close()
    raw = bytearray(path.read_bytes())
    raw[4096:] = b"\xff" * (len(raw) - 4096)
    path.write_bytes(raw)
    database = Database.open_file(path)
    with pytest.raises(EnvLost, match="malformed"):
        database.ask("SELECT COUNT(a) FROM t WHERE a > ''")
    database.close()
    with pytest.raises(EnvLost, match="closed"):
        database.ask("SELECT 1")


def test_text_that_is_no_utf8_is_read_with_marks(tmp_path):
    path = tmp_path / "latin.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (a TEXT)")
    connection.execute("INSERT INTO t VALUES (CAST(x'636166e9' AS TEXT))")
    connection.commit()
    connection.close()
    database = Database.open_file(path)
    assert database.ask("SELECT a FROM t").rows == [("caf\ufffd",)]
    database.close()


def test_the_count_of_steps_is_the_same_every_time_and_begins_anew():
    for steps, ends in ((5_000, False), (200_000, True)):
        database = filled(replace(MEMORY_LIMITS, steps=steps))
        answers = [database.ask("SELECT COUNT(*) FROM t a, t b, t c") for _ in range(3)]
        assert [bool(answer.rows) for answer in answers] == [ends] * 3
        database.close()


def test_the_clock_is_a_backstop():
    now = iter(range(1000))
    connection = sqlite3.connect(":memory:", isolation_level=None)
    limits = replace(FILE_LIMITS, seconds=5.0, stride=1_000)
    database = Database(connection, limits, tables=(), clock=lambda: float(next(now)))
    assert "too many steps" in database.ask(f"{LOOP} SELECT COUNT(*) FROM c").error
    assert next(now) < 20
    assert database.ask("SELECT strftime('%Y', '2024-05-06')").rows == [("2024",)]
    database.close()


def test_the_clock_is_read_often_enough_for_slow_instructions():
    """Looking for a text in a long one is a single instruction and can take hundredths of a second."""
    reads = count()
    connection = sqlite3.connect(":memory:", isolation_level=None)
    database = Database(connection, FILE_LIMITS, tables=(), clock=lambda: next(reads) / 1e9)
    assert database.ask(f"{LOOP} SELECT SUM(INSTR(x, 'b')) FROM (SELECT x FROM c LIMIT 200)").rows == [(0,)]
    assert next(reads) > 4
    database.close()


def test_one_heap_limit_is_never_raised():
    """It is the whole process's: somebody who set a lower one keeps it."""
    program = (
        "import sqlite3; from tests.worlds.test_sql_database import filled\n"
        "c = sqlite3.connect(':memory:'); c.execute('PRAGMA hard_heap_limit = 50000000'); filled().close()\n"
        "print(c.execute('PRAGMA hard_heap_limit').fetchone()[0])"
    )
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=root, env=env, check=True
    )
    assert done.stdout.strip() == "50000000"


def test_databases_are_asked_from_other_threads():
    database, found = filled(), []
    threads = [
        threading.Thread(target=lambda: found.append(database.ask("SELECT SUM(a) FROM t").rows)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
        thread.join()
    database.close()
    assert found == [[(190,)]] * 4


TEXT = """
    SELECT FROM WHERE t u a b c ( ) , * = > ' " ; -- /* 1 2 x AS WITH RECURSIVE UNION ALL JOIN ON GROUP BY ORDER LIMIT
    COUNT(*) PRAGMA ATTACH DELETE INSERT INTO VALUES EXISTS IN NOT NULL CASE WHEN THEN END ||
"""
WORDS = [*TEXT.split(), "\x00", "\udcff"]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join) | st.text(max_size=80))
def test_whatever_is_asked_is_answered_and_changes_nothing(database, text):
    for query in (text, f"SELECT {text}"):
        answer = database.ask(query)
        assert bool(answer.error) or isinstance(answer.rows, list)
        assert database.run("SELECT COUNT(*), SUM(a) FROM t").rows == [(20, 190)]


# ------------------------------------------------------------------ databases from the bytes of a file

KEYED = {
    "v": "CREATE TABLE v (id INTEGER PRIMARY KEY, name TEXT, size INTEGER)",
    "w": "CREATE TABLE w (code INTEGER PRIMARY KEY, v_id INTEGER REFERENCES v(id))",
}
KEYED_ROWS = {"v": [(n, f"text {n}", 7 * n) for n in range(1, 20)], "w": [(n, n) for n in range(1, 6)]}
TABLES = [(name, KEYED[name], KEYED_ROWS[name]) for name in KEYED]


def read_all(database: Database) -> dict[str, list[object]]:
    database._connection.set_authorizer(None)
    tables = ("sqlite_master", *KEYED)
    return {name: database._connection.execute(f"SELECT rowid, * FROM {name}").fetchall() for name in tables}


def test_an_image_holds_what_statements_would_create():
    image = build_image(TABLES)
    assert image is not None and len(image) == 4096 * (1 + len(TABLES))
    written, created = Database.from_image(image, KEYED), Database.in_memory(KEYED, KEYED_ROWS)
    assert read_all(written) == read_all(created)
    assert written._connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize(
    "row",
    [(1, "x" * 20_000), (1, 1.5), (1, None), (1, b"x"), (1, 1 << 40), (1, True), (-1, "x"), (1 << 20, "x")],
    ids=str,
)
def test_values_that_an_image_cannot_hold_are_left_to_statements(row):
    assert build_image([("t", "CREATE TABLE t (id INTEGER PRIMARY KEY, v)", [row])]) is None


@pytest.mark.parametrize("value", [0, 1, 127, 128, -128, -129, 32767, 32768, -(1 << 31), (1 << 31) - 1, "", "é" * 80])
def test_values_of_an_image_are_read_back(value):
    image = build_image([("t", "CREATE TABLE t (id INTEGER PRIMARY KEY, v)", [(9, value)])])
    database = Database.from_image(image, ["t"])
    assert database.run("SELECT id, v FROM t").rows == [(9, value)]
    database.close()


def test_too_many_rows_for_a_page_are_left_to_statements():
    rows = [(number, "x" * 40) for number in range(1, 101)]
    assert build_image([("t", "CREATE TABLE t (id INTEGER PRIMARY KEY, v)", rows)]) is None
    assert build_image([("t", "CREATE TABLE t (id INTEGER PRIMARY KEY, v)", rows[:80])]) is not None


def test_a_reused_connection_knows_nothing_of_the_database_before():
    """All guards stand, tables and rows are the new ones, and a closed database does not answer with them."""
    first = Database.from_image(build_image(TABLES), KEYED)
    connection = first._connection
    assert first.run("SELECT COUNT(*) FROM v").rows == [(19,)]
    first.close()
    first.close()
    second = Database.from_image(build_image([("t", "CREATE TABLE t (id INTEGER PRIMARY KEY)", [(1,)])]), ["t"])
    assert second._connection is connection
    assert second.run("SELECT id FROM t").rows == [(1,)]
    assert "no such table" in second.run("SELECT COUNT(*) FROM v").error
    for text in ("PRAGMA user_version", "ATTACH ':memory:' AS x", "DELETE FROM t", "CREATE TABLE u (id)"):
        assert second.run(text).error
    with pytest.raises(EnvLost, match="did not answer"):
        first.run("SELECT id FROM t")
    second.close()
    third = Database.from_image(build_image(TABLES), KEYED, replace(MEMORY_LIMITS, rows=2))
    assert third._connection is not connection, "other limits, another connection"
    third.close()
