"""The layout of BIRD, on a folder written by hand: two parts, some databases, and what can be wrong with it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from evolvent.errors import ConfigError, EnvLost, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.base import World
from evolvent.worlds.sql.bird import ITEMS
from evolvent.worlds.sql.database import FILE_LIMITS
from evolvent.worlds.sql.world import SqlWorld

LAKES = """
CREATE TABLE `Country` (`Code` TEXT PRIMARY KEY, `Full Name` TEXT);
CREATE TABLE Lake (id INTEGER PRIMARY KEY, name TEXT, depth REAL, country TEXT REFERENCES Country);
CREATE TABLE stay (lake INTEGER, guest TEXT, nights INTEGER, PRIMARY KEY (lake, guest),
                   FOREIGN KEY (lake) REFERENCES Lake (id));
CREATE VIEW deep AS SELECT name FROM Lake WHERE depth > 100;
INSERT INTO Country VALUES ('AV', 'Avaria'), ('BO', 'Bodonia');
INSERT INTO Lake VALUES (1, 'Ismere', 310.5, 'AV'), (2, 'Tarn', 12.0, 'AV'), (3, 'Ostrey', 140.0, 'BO');
INSERT INTO stay VALUES (1, 'anna', 3), (1, 'boris', 1), (2, 'anna', 7);
"""
TRAINS = (
    "CREATE TABLE train (no INTEGER, \"to\" TEXT); INSERT INTO train VALUES (1, 'Arvik'), (2, 'Belmor'), (3, 'Arvik');"
)
OTHERS = {f"town{n}": f"CREATE TABLE t (a); INSERT INTO t VALUES ({n});" for n in range(12)}
DEEP = "deep lakes refer to depth > 100"
DEV = [
    {
        "question_id": 0,
        "db_id": "lakes",
        "question": "How many deep lakes are there?",
        "evidence": DEEP,
        "SQL": "SELECT COUNT(*) FROM Lake WHERE depth > 100",
        "difficulty": "simple",
    },
    {
        "question_id": 1,
        "db_id": "lakes",
        "question": "Who stayed in Avaria?",
        "evidence": "",
        "SQL": "SELECT T1.guest FROM stay AS T1 INNER JOIN Lake AS T2 ON T1.lake = T2.id INNER JOIN Country AS T3 ON "
        "T2.country = T3.Code WHERE T3.`Full Name` = 'Avaria'",
        "difficulty": "moderate",
    },
    {
        "question_id": 2,
        "db_id": "trains",
        "question": "Where do trains go, most trains first?",
        "SQL": 'SELECT "to" FROM train GROUP BY "to" ORDER BY COUNT(*) DESC',
    },
    {
        "question_id": 3,
        "db_id": "lakes",
        "question": "In which year is it now?",
        "evidence": "",
        "SQL": "SELECT STRFTIME('%Y', CURRENT_TIMESTAMP)",
        "difficulty": "challenging",
    },
]
BAD = [
    (["not", "an object"], "list where an object was expected"),
    ({"db_id": "lakes", "question": "?"}, "no SQL"),
    ({"db_id": "lakes", "question": " ", "SQL": 3}, "no question (a question), no SQL (its gold query)"),
    ({"db_id": "../dev_databases/lakes", "question": "?", "SQL": "SELECT 1"}, "unsafe file name"),
    ({"db_id": "/etc", "question": "?", "SQL": "SELECT 1"}, "it is absolute"),
    ({"db_id": "%2e%2e/x", "question": "?", "SQL": "SELECT 1"}, "unsafe file name"),
    ({"db_id": "link", "question": "?", "SQL": "SELECT 1"}, "symbolic link"),
    ({"db_id": "ponds", "question": "?", "SQL": "SELECT 1"}, "there is no file dev_databases/ponds/ponds.sqlite"),
]
FAILING = [
    ({"db_id": "lakes", "question": "a", "SQL": "SELECT nix FROM Lake"}, "the gold query fails: no such column"),
    (
        {
            "db_id": "lakes",
            "question": "b",
            "SQL": "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c",
        },
        "the query takes too many steps",
    ),
    ({"db_id": "lakes", "question": "c", "SQL": "DELETE FROM Lake"}, "not authorized"),
    ({"db_id": "broken", "question": "d", "SQL": "SELECT 1"}, "the database cannot be"),
]
TABLES = [
    {
        "db_id": "lakes",
        "table_names_original": ["Country", "Lake", "stay"],
        "table_names": ["Country", "lake", "stay"],
        "column_names": [
            [-1, "*"],
            [0, "Code"],
            [0, "full name"],
            [1, "lake id"],
            [1, "name"],
            [1, "depth"],
            [1, "country code"],
            [2, "lake id"],
            [2, "guest"],
            [2, "nights"],
        ],
        "primary_keys": [1, 3, [7, 8]],
        "foreign_keys": [[6, 1], [7, 3]],
    },
    {"db_id": "trains", "table_names": ["train"]},
]
LIMITS = replace(FILE_LIMITS, steps=1_000_000)


def database(folder: Path, part: str, name: str, script: str) -> Path:
    path = folder / f"{part}_databases" / name / f"{name}.sqlite"
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As AgentGym wants it: folders `train` and `dev`."""
    dev, train = tmp_path / "bird" / "dev", tmp_path / "bird" / "train"
    notes = database(dev, "dev", "lakes", LAKES).parent / "database_description"
    database(dev, "dev", "trains", TRAINS)
    broken = dev / "dev_databases" / "broken" / "broken.sqlite"
    broken.parent.mkdir()
    broken.write_bytes(b"this is no database, whatever its name says" * 50)
    outside = database(tmp_path, "dev", "link", TRAINS)
    (dev / "dev_databases" / "link").symlink_to(outside.parent)
    notes.mkdir()
    (notes / "Lake.csv").write_bytes(
        b"\xef\xbb\xbforiginal_column_name,column_name,column_description,data_format,value_description\n"
        b'depth,depth,how deep it is,real,"in metres,\n at the deepest"\nname,,caf\xe9,,\nid,,,,\n'
    )
    (dev / "dev.json").write_text(json.dumps(DEV), encoding="utf-8")
    (dev / "dev_tables.json").write_text(json.dumps(TABLES), encoding="utf-8")
    rows = []
    for name, script in OTHERS.items():
        database(train, "train", name, script)
        rows += [{"db_id": name, "question": f"What is a in {name}?", "evidence": None, "SQL": "SELECT a FROM t"}] * 2
    (train / "train.json").write_text(json.dumps(rows), encoding="utf-8-sig")
    return tmp_path / "bird"


def write(folder: Path, rows: object) -> None:
    (folder / "dev" / "dev.json").write_text(json.dumps(rows), encoding="utf-8")


def play(world: SqlWorld, task: Task, text: str):
    env = world.make(task)
    env.reset()
    told, reward, terminated, _, info = env.step(text)
    env.close()
    return told, reward, terminated, "invalid" in info


def test_experts_win_everywhere(folder):
    world = SqlWorld.from_bird(folder)
    protocol: World = world
    assert (protocol.name, protocol.tiers, protocol.horizon, protocol.run_in_thread) == ("bird", ("seen",), 1, True)
    assert protocol.vocabulary() is None
    panels = {split: world.tasks(split, "seen") for split in ("train", "dev", "test")}
    assert len(panels["test"]) == len(DEV)
    assert len(panels["train"]) + len(panels["dev"]) == 2 * len(OTHERS)
    assert {task.kind for task in panels["test"]} == {"lakes", "trains"}
    assert panels["dev"]
    assert not {task.kind for task in panels["train"]} & {task.kind for task in panels["dev"]}
    for split, tasks in panels.items():
        for task in tasks:
            assert (task.split, task.tier) == (split, "seen")
            (gold,) = world.expert(task)
            assert gold not in json.dumps(dict(task.spec))  # a task does not give its answer away
            assert play(world, task, gold)[1:] == (1.0, True, False)
    assert all("dev_tables.json" in problem.where for problem in world.problems)


def test_predictions_are_judged(folder):
    world = SqlWorld.from_bird(folder)
    deep, guests, trains, _ = world.tasks("test", "seen")
    assert play(world, deep, "```sql\nSELECT COUNT(name) FROM deep\n```") == ("[(2,)]", 1.0, True, False)
    assert play(world, deep, "SELECT COUNT(*) FROM Lake") == ("[(3,)]", 0.0, True, False)
    assert play(world, deep, "SELECT depth FROM Lakes") == ("no such table: Lakes", 0.0, False, True)
    assert play(world, guests, "SELECT guest FROM stay ORDER BY nights")[1] == 1.0
    assert play(world, guests, "SELECT DISTINCT guest FROM stay")[1] == 0.0
    assert play(world, trains, "VALUES ('Belmor'), ('Arvik')")[1] == 0.0
    official = SqlWorld.from_bird(folder, compare="set")
    assert play(official, guests, "SELECT DISTINCT guest FROM stay")[1] == 1.0
    assert play(official, trains, "VALUES ('Belmor'), ('Arvik')")[1] == 1.0
    long = "SELECT group_concat(name || name || name || name, '----------') FROM Lake, stay"
    assert play(world, deep, long)[0].endswith("...")
    assert len(play(world, deep, long)[0]) == 103


def test_random_agents_have_something_to_do(folder):
    world = SqlWorld.from_bird(folder)
    for task in world.tasks("test", "seen"):
        env = world.make(task)
        _, info = env.reset()
        for query in info["admissible"]:
            env.reset()
            _, _, terminated, _, after = env.step(query)
            assert terminated
            assert "invalid" not in after
        env.close()


def test_what_is_told(folder):
    task = SqlWorld.from_bird(folder).tasks("test", "seen")[0]
    told = SqlWorld.from_bird(folder, descriptions=True).make(task).reset()[0]
    assert told.startswith("CREATE TABLE `Country`")
    assert told.index("CREATE TABLE Lake") < told.index("CREATE TABLE stay")
    assert "-- Lake.depth: how deep it is in metres, at the deepest\n-- Lake.name: caf\ufffd\n" in told
    assert told.endswith(f"\n-- External knowledge: {DEEP}\n-- Question: How many deep lakes are there?")
    assert "-- Lake" not in SqlWorld.from_bird(folder).make(task).reset()[0]
    short = SqlWorld.from_bird(folder, text="short").make(task).reset()[0]
    assert short == (
        "Country(Code, Full Name); Lake(id, name, depth, country); stay(lake, guest, nights)\n"
        "Lake.country = Country.Code; stay.lake = Lake.id\n"
        f"How many deep lakes are there?\n{DEEP}"
    )


def test_agentgyms_sentences_and_names(folder):
    world = SqlWorld.from_bird(folder, text="agentgym")
    lakes, _, trains, _ = world.tasks("test", "seen")
    assert world.make(lakes).reset()[0] == (
        "lakes contains tables such as country, lake, stay. Table country has columns such as code, full name. "
        "code is the primary key. Table lake has columns such as lake id, name, depth, country code. "
        "lake id is the primary key. Table stay has columns such as lake id, guest, nights. "
        "lake id, guest is the primary key. The country code of lake is the foreign key of code of country. "
        "The lake id of stay is the foreign key of lake id of lake.\n\nHow many deep lakes are there?"
    )
    assert (
        world.make(trains)
        .reset()[0]
        .startswith("trains contains tables such as train. Table train has columns such as no, to.")
    )
    (problem,) = world.problems
    assert problem.where == "dev_tables.json, row 1"


def test_item_ids_of_agentgym(folder):
    world = SqlWorld.from_bird(folder)
    assert world.task_at_index(9428) == world.tasks("test", "seen")[0]
    assert world.task_at_index(9430).spec["row"] == 2
    assert world.task_at_index(0).spec["part"] == "train"
    assert {len(items) for items in ITEMS.values()} == {9428, 1534}
    for index, message in ((-1, "0 to 10961"), (10962, "0 to 10961"), (9432, "usable row 4"), (24, "usable row 24")):
        with pytest.raises(ConfigError, match=message):
            world.task_at_index(index)


def test_bad_rows_are_told_and_good_rows_kept(folder):
    write(folder, [row for row, _ in BAD] + DEV + [row for row, _ in FAILING])
    world = SqlWorld.from_bird(folder, limits=LIMITS)
    for at, (_, message) in enumerate(BAD):
        (problem,) = [problem for problem in world.problems if problem.where == f"dev.json, row {at}"]
        assert message in problem.what
    found = world.tasks("test", "seen")
    assert [task.spec["row"] for task in found] == [len(BAD) + n for n in range(len(DEV))]
    for at, (_, message) in enumerate(FAILING, len(BAD) + len(DEV)):
        (problem,) = [problem for problem in world.problems if problem.where == f"dev.json, row {at}"]
        assert message in problem.what
    assert world.tasks("test", "seen") is found
    assert world.task_at_index(9428 + len(BAD)) == found[0]  # ids count all rows
    with pytest.raises(ConfigError, match="usable row 0"):
        world.task_at_index(9428)


def test_without_looking_first_a_failing_gold_query_is_an_error_not_a_zero(folder):
    write(folder, [FAILING[0][0], FAILING[3][0]])
    world = SqlWorld.from_bird(folder, verify=False)
    failing, broken = world.tasks("test", "seen")
    env = world.make(failing)
    env.reset()
    with pytest.raises(EnvLost, match="gold query"):
        env.step("SELECT 1")
    env.close()
    with pytest.raises(EnvLost, match="broken"):
        world.make(broken)


def test_a_changed_row_is_another_task(folder):
    task = SqlWorld.from_bird(folder).tasks("test", "seen")[0]
    write(folder, [{**DEV[0], "SQL": "SELECT 2"}, *DEV[1:]])
    changed = SqlWorld.from_bird(folder)
    with pytest.raises(VersionMismatch, match=r"dev\.json, row 0"):
        changed.make(task)
    assert changed.tasks("test", "seen")[0].id != task.id


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"part": "tset"}, "unknown part"),
        ({"part": None, "row": "0"}, r"(?s)part.*row"),
        ({"row": True}, ", expected the number of a row"),
        ({"row": 77}, "row of dev.json not found"),
        ({"row": -1}, "row of dev.json not found"),
    ],
)
def test_broken_specs(folder, spec, message):
    world = SqlWorld.from_bird(folder)
    good = world.tasks("test", "seen")[0]
    with pytest.raises(ConfigError, match=message):
        world.make(Task("bird", "1", {**good.spec, **spec}))


def test_folders_that_are_none(tmp_path, folder):
    with pytest.raises(ConfigError, match=r"no questions in the BIRD layout.*train\.json"):
        SqlWorld.from_bird(tmp_path / "nowhere")
    for content, message in (
        ("{}", "does not hold an array of rows"),
        ("[1", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "no rows"),
    ):
        alone = tmp_path / "alone"
        shutil.rmtree(alone, ignore_errors=True)
        alone.mkdir()
        (alone / "dev.json").write_text(content, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            SqlWorld.from_bird(alone)
    write(folder, [row for row, _ in BAD])
    shutil.rmtree(folder / "train")
    with pytest.raises(ConfigError) as caught:
        SqlWorld.from_bird(folder)
    assert len(caught.value.problems) >= len(BAD)
    with pytest.raises(ConfigError, match="rounds"):
        SqlWorld.from_bird(folder, rounds=0)


def test_a_part_alone_and_without_folders(folder):
    world = SqlWorld.from_bird(str(folder / "dev"))
    assert len(world.tasks("test", "seen")) == len(DEV)
    assert not world.tasks("train", "seen")
    assert not world.tasks("dev", "seen")
    with pytest.raises(ConfigError, match="unknown tier"):
        world.tasks("test", "evo")
    with pytest.raises(ConfigError, match="names of a BIRD database cannot change"):
        world.rename(world.tasks("test", "seen")[0], None)


def test_nothing_is_written_into_the_folder(folder):
    def state():
        return {path.relative_to(folder): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}

    before = state()
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o444)
    world = SqlWorld.from_bird(folder, rounds=2, descriptions=True)
    for task in world.tasks("test", "seen"):
        env = world.make(task)
        env.reset()
        env.step("WITH x AS (SELECT 1) DELETE FROM Lake")
        env.step(world.expert(task)[0])
        env.close()
    assert state() == before


def test_copies_have_one_key(folder):
    world = SqlWorld.from_bird(folder)
    keys = [world.key(task) for split in ("train", "dev") for task in world.tasks(split, "seen")]
    assert len(set(keys)) == len(OTHERS)
    assert len(keys) == 2 * len(OTHERS)
