"""A SQLite database for arbitrary queries of a model: read only, one query at a time, with limits on time and
memory.

Each of these safeguards protects by itself:

- the connection: a database in memory, or a file opened read only (`immutable`), with `query_only` and without trust in
  the schema; temporary tables stay in memory, so nothing is ever written to disk;
- the authorizer: SELECT, the tables of the database, and functions of a list. No PRAGMA, no ATTACH, no virtual tables,
  no random numbers, no extension, no file;
- SQLite's limits on lengths, columns, depth, compound queries and the size of a program;
- the text: its length, its first word, and how large it becomes when it is prepared (`lexer.expansion`), because
  SQLite cannot be interrupted while it prepares a query;
- a count of SQLite's instructions, which is the same on every machine, a bound on the result, and a heap limit.
"""

from __future__ import annotations

import sqlite3
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from evolvent.errors import EnvLost
from evolvent.worlds.sql.lexer import expansion, is_query

__all__ = [
    "FILE_LIMITS",
    "FUNCTIONS",
    "MEMORY_LIMITS",
    "Answer",
    "Database",
    "Limits",
    "Row",
    "TableRows",
    "build_image",
    "connect",
]

Row = tuple[object, ...]
TableRows = tuple[str, str, Sequence[Row]]
"""A table: its name, its CREATE TABLE statement, and its rows in ascending order of the integer primary key, which is
their first column.
"""

_PURE_FUNCTIONS = (
    "abs avg ceil ceiling char coalesce concat concat_ws count exp floor format glob group_concat hex ifnull iif instr "
    "length like ln log log10 log2 lower ltrim max min mod nullif pi pow power printf quote replace round rtrim sign "
    "sqrt string_agg substr substring sum total trim trunc typeof unicode upper "
    "cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number"
)
_CLOCK_FUNCTIONS = (
    "current_date current_time current_timestamp date datetime julianday strftime time timediff unixepoch"
)
FUNCTIONS: frozenset[str] = frozenset(_PURE_FUNCTIONS.split())
"""What a query may call: functions that depend on their arguments alone."""

_SCHEMA_TABLES = frozenset({"sqlite_master", "sqlite_schema", "sqlite_sequence"})
_FATAL_CODES = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
    }
)
_HEAP_LIMIT = 1 << 30  # bytes; SQLite has this limit for a whole process, and only ever lowers it
_SETTINGS = "PRAGMA temp_store = MEMORY; PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0"
_STEPS_ERROR = "the query takes too many steps"
_COMPLEXITY_ERROR = "the query is too complex"
_MEMORY_ERROR = "the query needs too much memory"
_MAX_ERROR_LENGTH = 300  # characters of an error
_PAGE_SIZE = 4096
_HEADER_SIZE, _LEAF_HEADER_SIZE, _POINTER_SIZE = 100, 8, 2
_LEAF_TABLE = 13
_MAX_VARINT_2 = 1 << 14  # numbers below have two bytes at most
_HEADER = struct.Struct(">16sHBBBBBBIIIIIIIIIIII20xII")
_LEAF_HEADER = struct.Struct(">BHHHB")
_SQLITE_VERSION = 3_040_000  # of the library that wrote the file; readers do not depend on it
_MAX_IDLE_DATABASES = 16  # databases in memory that are closed and kept for their connections


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a query.

    Args:
        text: characters of the query.
        length: bytes of one value, intermediate values included.
        steps: instructions of SQLite's virtual machine, a multiple of `stride`.
        stride: number of instructions between two checks of the count.
        seconds: time limit; a backstop for slow instructions (None: no clock is read).
        rows, size: of the result; the size is the characters and bytes of its values, plus eight for each value.
        columns: of the result, and of every intermediate table.
        expansion: see `lexer.expansion`.
        clock: whether the functions of date and time, which may read the clock, can be called.
    """

    text: int = 4_000
    length: int = 1_000
    steps: int = 100_000
    stride: int = 1_000
    seconds: float | None = None
    rows: int = 1_000
    size: int = 100_000
    columns: int = 100
    expansion: int = 100_000
    clock: bool = False


MEMORY_LIMITS = Limits()
"""For generated databases of some ten rows: a query ends within some milliseconds and some megabytes."""
FILE_LIMITS = Limits(
    text=20_000,
    length=200_000,
    steps=500_000_000,
    stride=1_000,
    seconds=30.0,
    rows=100_000,
    size=20_000_000,
    columns=1_000,
    expansion=1_000_000,
    clock=True,
)
"""For databases of a benchmark: BIRD's own limit of 30 s, and up to a gigabyte. One instruction over long text can take
hundredths of a second, so that a larger stride would read the clock too late."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a query: its rows, or the reason why there are none (`error`, a sentence)."""

    rows: Sequence[Row] = ()
    error: str = ""


def connect(path: Path) -> sqlite3.Connection:
    """Opens a read-only connection to a file, for trusted queries.

    The file is treated as immutable: no lock, journal or log index is created beside it. If it has a log that was
    not merged yet (`-wal`), only the log's index may be created.

    Raises:
        sqlite3.Error: the file cannot be opened.
    """
    log_path = path.with_name(f"{path.name}-wal")
    immutable_flag = "" if log_path.is_file() and log_path.stat().st_size else "&immutable=1"
    uri = f"{path.resolve().as_uri()}?mode=ro{immutable_flag}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    try:
        connection.executescript(_SETTINGS)
    except sqlite3.Error:
        connection.close()
        raise
    connection.text_factory = _decode
    return connection


def _decode(raw: bytes) -> str:
    """Decodes text of a database whose bytes may not be UTF-8."""
    return raw.decode("utf-8", "replace")


def _set_limits(connection: sqlite3.Connection, limits: Limits) -> None:
    for category, maximum in (
        (sqlite3.SQLITE_LIMIT_LENGTH, limits.length),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 4 * limits.text + 4),  # bytes, where ours are characters
        (sqlite3.SQLITE_LIMIT_COLUMN, limits.columns),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
        (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
        (sqlite3.SQLITE_LIMIT_VDBE_OP, 25_000),
        (sqlite3.SQLITE_LIMIT_FUNCTION_ARG, 20),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200),
        (sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 0),
        (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
    ):
        connection.setlimit(category, maximum)


def _format_error(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= _MAX_ERROR_LENGTH else f"{text[:_MAX_ERROR_LENGTH]}..."


class _Budget:
    """The callback that SQLite calls every `stride` instructions; True interrupts the query."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        self._left, self._until = 0, 0.0

    def renew(self) -> None:
        self._left = self._limits.steps // self._limits.stride
        self._until = self._clock() + self._limits.seconds if self._limits.seconds is not None else 0.0

    def __call__(self) -> bool:
        self._left -= 1
        return self._left < 0 or (self._limits.seconds is not None and self._clock() > self._until)


class Database:
    """A database for queries. Created by `in_memory` or `open_file`; the caller closes it.

    Args:
        connection: to the database; owned by this object from now on.
        limits: the limits of a query.
        tables: the names of the tables and views that may be read.
        clock: the clock that is read if the limits include time.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        limits: Limits,
        *,
        tables: Iterable[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection, self._limits = connection, limits
        self._budget = _Budget(limits, clock)
        self._is_closed = self._is_reusable = False
        readable_tables = self._readable_tables = {name.lower() for name in tables} | _SCHEMA_TABLES
        functions = FUNCTIONS | frozenset(_CLOCK_FUNCTIONS.split()) if limits.clock else FUNCTIONS

        def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
            if action == sqlite3.SQLITE_READ:  # without a column also for what WITH defines
                allowed = second == "" or str(first).lower() in readable_tables
            elif action == sqlite3.SQLITE_FUNCTION:
                allowed = str(second).lower() in functions
            else:
                allowed = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
            return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

        connection.execute(f"PRAGMA hard_heap_limit = {_HEAP_LIMIT}")
        connection.execute("PRAGMA query_only = ON")
        _set_limits(connection, limits)
        connection.set_progress_handler(self._budget, limits.stride)
        self._authorize = authorize
        connection.set_authorizer(authorize)

    @classmethod
    def in_memory(
        cls, create: Mapping[str, str], rows: Mapping[str, Sequence[Row]], limits: Limits = MEMORY_LIMITS
    ) -> Database:
        """Creates a new database in memory.

        Args:
            create: name of a table -> its CREATE TABLE statement.
            rows: name of a table -> its rows, values in the order of the columns.
        """
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.executescript(f"PRAGMA temp_store = MEMORY; BEGIN; {';'.join(create.values())}")
        for name, table_rows in rows.items():
            if table_rows:
                placeholders = ", ".join("?" * len(table_rows[0]))
                connection.executemany(f"INSERT INTO {name} VALUES ({placeholders})", table_rows)
        connection.execute("COMMIT")
        return cls(connection, limits, tables=create)

    @classmethod
    def from_image(cls, image: bytes, tables: Iterable[str], limits: Limits = MEMORY_LIMITS) -> Database:
        """Creates a database in memory from the bytes of a file (see `build_image`).

        A connection is used again after its database was closed, with its limits: making one takes longer than a query.
        """
        database = _idle_databases().take(limits)
        if database is None:
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA temp_store = MEMORY")
            database = cls(connection, limits, tables=())
            database._is_reusable = True
        connection = database._connection
        connection.set_authorizer(None)  # SQLite attaches the bytes by a statement of its own
        connection.deserialize(image)
        connection.set_authorizer(database._authorize)
        database._readable_tables.clear()
        database._readable_tables.update(_SCHEMA_TABLES, map(str.lower, tables))
        return database

    @classmethod
    def open_file(cls, path: Path, limits: Limits = FILE_LIMITS) -> Database:
        """Opens a database file. It is read as it is: no lock is taken, and nothing is created beside it.

        Raises:
            EnvLost: the file cannot be opened, or is not a SQLite database.
        """
        try:
            connection = connect(path)
        except sqlite3.Error as error:
            raise EnvLost(f"the database cannot be opened ({error})", value=path.name) from error
        try:
            names = connection.execute("SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
            readable_names = [
                name for name, statement in names if not str(statement).lower().startswith("create virtual")
            ]
            return cls(connection, limits, tables=readable_names)
        except sqlite3.Error as error:
            connection.close()
            raise EnvLost(f"the database cannot be read ({error})", value=path.name) from error

    def ask(self, text: str) -> Answer:
        """Runs an untrusted text as a query, after checks of its length, first word and expansion."""
        if len(text) > self._limits.text:
            return Answer(error=f"the query is longer than {self._limits.text} characters")
        if not is_query(text):
            return Answer(error="expected one SELECT query")
        if expansion(text) > self._limits.expansion:
            return Answer(error=_COMPLEXITY_ERROR)
        return self.run(text)

    def run(self, text: str) -> Answer:
        """Runs a query with a trusted text; all other limits hold.

        Raises:
            EnvLost: the database is closed, missing or corrupt; this is not a fault of the query.
        """
        if self._is_closed:
            raise EnvLost("the database did not answer (it is closed)", value=text[:200])
        self._budget.renew()
        try:
            return self._fetch(self._connection.execute(text))
        except MemoryError:
            self._is_reusable = False
            return Answer(error=_MEMORY_ERROR)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _FATAL_CODES or "closed database" in str(error):
                self._is_reusable = False
                raise EnvLost(f"the database did not answer ({error})", value=text[:200]) from error
            return Answer(error=_STEPS_ERROR if code == sqlite3.SQLITE_INTERRUPT else _format_error(error))

    def _fetch(self, cursor: sqlite3.Cursor) -> Answer:
        rows: list[Row] = []
        size = 0
        with closing(cursor):
            for row in cursor:
                rows.append(row)
                size += 8 * len(row) + sum(len(value) for value in row if isinstance(value, (str, bytes)))
                if len(rows) > self._limits.rows or size > self._limits.size:
                    limit_text = f"{self._limits.rows} rows or is larger than {self._limits.size} bytes"
                    return Answer(error=f"the result has more than {limit_text}")
        return Answer(rows)

    def close(self) -> None:
        """Releases all resources; a second call is harmless."""
        if self._is_closed:
            return
        if not self._is_reusable or not _idle_databases().give(copy(self)):
            self._connection.close()
        self._is_closed = True


class _IdleDatabases:
    """Closed databases in memory, whose connections can be given other contents. Any thread may take one."""

    def __init__(self) -> None:
        self._databases: list[Database] = []

    def take(self, limits: Limits) -> Database | None:
        """Returns a database with these limits, or None."""
        try:
            database = self._databases.pop()
        except IndexError:
            return None
        if database._limits == limits:
            return database
        database._connection.close()
        return None

    def give(self, database: Database) -> bool:
        """Returns whether the database is kept."""
        if len(self._databases) >= _MAX_IDLE_DATABASES:
            return False
        self._databases.append(database)
        return True


@cache
def _idle_databases() -> _IdleDatabases:
    return _IdleDatabases()


def build_image(tables: Sequence[TableRows]) -> bytes | None:
    """Returns a database of texts and whole numbers as the bytes of its file; None where something is too large.

    Creating tables by statements takes SQLite longer than reading them from a file: three tables with rows .24 ms
    instead of .11, where the connection is used again. The file format is published and stable
    (https://www.sqlite.org/fileformat2.html): page 1 holds the header and the schema, every table is one leaf page of a
    b-tree, and a row is a record of serial types and values.
    """
    schema = [(number, ("table", name, name, number + 1, create)) for number, (name, create, _) in enumerate(tables, 1)]
    try:
        pages = [_build_page([_build_cell(rowid, b"", row) for rowid, row in schema], _HEADER_SIZE)]
        for _, _, rows in tables:  # the primary key is the row id, and NULL in the record
            pages.append(_build_page([_build_cell(row[0], b"\0", row[1:]) for row in rows], 0))
    except (_TooLargeError, struct.error):
        return None
    changes, cookie, schema_format, utf_8 = 1, 1, 4, 1
    payload_shares, free_pages, cache_sizes, unused = (64, 32, 32), (0, 0), (0, 0), (0, 0, 0)
    schema_fields = (cookie, schema_format, *cache_sizes, utf_8, *unused)
    page_fields = (_PAGE_SIZE, 1, 1, 0, *payload_shares, changes, len(pages), *free_pages)
    header = _HEADER.pack(b"SQLite format 3\0", *page_fields, *schema_fields, changes, _SQLITE_VERSION)
    return b"".join([header, *pages])


class _TooLargeError(Exception):
    """A value or a table that does not fit."""


def _build_page(cells: Sequence[bytes], offset: int) -> bytes:
    """Returns a leaf page of a table without its first `offset` bytes: pointers, free space, and cells from the end."""
    pointers, position = [], _PAGE_SIZE
    for cell in cells:
        position -= len(cell)
        pointers.append(position)
    start = offset + _LEAF_HEADER_SIZE + _POINTER_SIZE * len(cells)
    if position < start:
        raise _TooLargeError
    header = _LEAF_HEADER.pack(_LEAF_TABLE, 0, len(cells), position, 0)
    pointer_array = struct.pack(f">{len(cells)}H", *pointers)
    return b"".join([header, pointer_array, bytes(position - start), *reversed(cells)])


def _build_cell(rowid: object, types: bytes, values: Sequence[object]) -> bytes:
    """Returns a cell: the sizes, the row id, and a record of serial types and values."""
    encoded = list(map(_encode_value, values))
    types += b"".join([value_type for value_type, _ in encoded])
    body = b"".join([part for _, part in encoded])
    header_size = len(types) + 1
    if header_size > 127:
        raise _TooLargeError
    return _encode_varint(header_size + len(body)) + _encode_varint(rowid) + _encode_varint(header_size) + types + body


@lru_cache(8192, typed=True)
def _encode_value(value: object) -> tuple[bytes, bytes]:
    """Returns a value's serial type and its bytes."""
    if isinstance(value, str):
        text = value.encode()
        return _encode_varint(13 + 2 * len(text)), text
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 31) <= value < 1 << 31:
        width = 1 if -128 <= value < 128 else 2 if -(1 << 15) <= value < 1 << 15 else 4
        return bytes([width]), value.to_bytes(width, "big", signed=True)  # types 1, 2 and 4 are named by their widths
    raise _TooLargeError


@lru_cache(4096)
def _encode_varint(number: object) -> bytes:
    if not isinstance(number, int) or not 0 <= number < _MAX_VARINT_2:
        raise _TooLargeError
    return bytes([number] if number < 128 else [128 | number >> 7, number & 127])
