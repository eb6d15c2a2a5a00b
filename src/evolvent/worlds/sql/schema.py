"""The schema of a database, and its text for a model together with a question.

There are three forms:

    short     team(id, name, city); player(id, name, team_id)
              player.team_id = team.id
    agentgym  sentences as in AgentGym's SQL server: "Table team has columns such as id, name, city. ..."
    create    the CREATE TABLE statements, as in BIRD's prompts
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evolvent.errors import ConfigError, EnvLost
from evolvent.trajectory import JsonObject
from evolvent.worlds.sql.database import connect

__all__ = ["TEXTS", "Link", "Schema", "Table", "Text", "parse_listed_schema", "read_schema", "render_prompt"]

Text = Literal["short", "agentgym", "create"]
TEXTS: tuple[str, ...] = ("short", "agentgym", "create")


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its columns in order, those of its primary key, and the statement that creates it."""

    name: str
    columns: tuple[str, ...]
    keys: tuple[str, ...] = ()
    create: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """A foreign key: `column` of `table` holds the `to_column` of a row of `to_table`."""

    table: str
    column: str
    to_table: str
    to_column: str


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a database and the foreign keys between them."""

    name: str
    tables: tuple[Table, ...]
    links: tuple[Link, ...] = ()


def render_prompt(
    schema: Schema, question: str, *, hint: str = "", text: Text = "short", notes: Sequence[str] = ()
) -> str:
    """Renders the first observation: the schema, the question, and the knowledge it needs.

    Args:
        hint: the knowledge that the question needs; BIRD's evidence.
        notes: SQL comments on the columns, for "create".
    """
    if text == "agentgym":
        return f"{_describe_schema(schema)}\n\n{question}" + (f" {hint}" if hint else "")
    if text == "create":
        statements = "\n\n".join(table.create for table in schema.tables)
        knowledge = [f"-- External knowledge: {hint}"] if hint else []
        return f"{statements}\n\n" + "\n".join([*notes, *knowledge, f"-- Question: {question}"])
    tables = "; ".join(f"{table.name}({', '.join(table.columns)})" for table in schema.tables)
    links = "; ".join(f"{link.table}.{link.column} = {link.to_table}.{link.to_column}" for link in schema.links)
    return "\n".join(part for part in (tables, links, question, hint) if part)


def _describe_schema(schema: Schema) -> str:
    names = ", ".join(table.name for table in schema.tables)
    sentences = [f"{schema.name} contains tables such as {names}."]
    for table in schema.tables:
        sentences.append(f"Table {table.name} has columns such as {', '.join(table.columns)}.")
        sentences.append(f"{', '.join(table.keys)} is the primary key.")
    for link in schema.links:
        sentences.append(
            f"The {link.column} of {link.table} is the foreign key of {link.to_column} of {link.to_table}."
        )
    return " ".join(sentences)


def read_schema(path: Path, name: str) -> Schema:
    """Reads the schema of a database file, tables in the order of their creation.

    Raises:
        EnvLost: the file cannot be read.
    """
    try:
        with closing(connect(path)) as connection:
            statements = connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
                "AND sql NOT LIKE 'create virtual%' ORDER BY rowid"
            ).fetchall()
            tables = [_read_table(connection, table, create) for table, create in statements]
            links = [link for table in tables for link in _read_links(connection, table, tables)]
    except sqlite3.Error as error:
        raise EnvLost(f"the database cannot be read ({error})", value=path.name) from error
    return Schema(name, tuple(tables), tuple(links))


def _read_table(connection: sqlite3.Connection, name: str, create: str) -> Table:
    rows = connection.execute("SELECT name, pk FROM pragma_table_info(?) ORDER BY cid", (name,)).fetchall()
    keys = sorted((key_position, column) for column, key_position in rows if key_position)
    return Table(name, tuple(column for column, _ in rows), tuple(column for _, column in keys), create)


def _read_links(connection: sqlite3.Connection, table: Table, tables: Sequence[Table]) -> list[Link]:
    """Reads the foreign keys of a table; a foreign key without a column refers to the primary key."""
    links = []
    query = 'SELECT "from", "table", "to", seq FROM pragma_foreign_key_list(?) ORDER BY id DESC, seq'
    keys = {other_table.name.lower(): other_table.keys for other_table in tables}
    for column, to_table, to_column, key_position in connection.execute(query, (table.name,)).fetchall():
        primary_keys = keys.get(to_table.lower(), ())
        if to_column is None and key_position < len(primary_keys):
            to_column = primary_keys[key_position]
        if to_column is not None:
            links.append(Link(table.name, column, to_table, to_column))
    return links


def parse_listed_schema(entry: JsonObject) -> Schema:
    """Builds a schema from an entry of `dev_tables.json`, with its human-readable names, in lower case.

    AgentGym shows these names; they may differ from those in the database. (Where AgentGym names the columns
    of foreign keys, it names the columns after them; here they are the right ones.)

    Raises:
        ConfigError: an entry of another form.
    """
    try:
        names = [str(name).lower() for name in entry["table_names"]]
        columns = [(int(table), str(column).lower()) for table, column in entry["column_names"]]
        flat_keys = [key for keys in entry["primary_keys"] for key in (keys if isinstance(keys, list) else [keys])]
        tables = tuple(
            Table(
                name,
                tuple(column for column_table, column in columns if column_table == table_index),
                tuple(columns[key][1] for key in flat_keys if columns[key][0] == table_index),
            )
            for table_index, name in enumerate(names)
        )
        links = tuple(
            Link(names[columns[source][0]], columns[source][1], names[columns[target][0]], columns[target][1])
            for source, target in entry["foreign_keys"]
        )
        return Schema(str(entry["db_id"]), tables, links)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError("cannot read an entry of the table list", value=error) from error
