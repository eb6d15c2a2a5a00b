"""DataSciCoding over a user's CSV files: what becomes of columns and labels, and programs judged on them."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.cli.setup.registry import load_world
from evolvent.errors import ConfigError, VersionMismatch
from evolvent.worlds.datasci.files import read_csv_sets

pytest.importorskip("sklearn")


def write(path, head, rows):
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")


@pytest.fixture
def folder(tmp_path):
    """Two classes that a line tells apart, with a name, a gap and a color; three classes; and a file without any."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(60, 2)).round(3)
    rows = [
        (f"u{i}", a, "" if i == 4 else b, ("red", "blue", "")[i % 3], "yes" if a + b > 0 else "no")
        for i, (a, b) in enumerate(numbers.tolist())
    ]
    write(tmp_path / "shop.csv", "id,a,b,color,answer", rows)
    write(tmp_path / "other.csv", "class,x,z", [(i % 3, i % 3 + 0.01 * i, 1) for i in range(45)])
    write(tmp_path / "flat.csv", "a,b", [(1, 2), (2, 2)])
    return tmp_path


def test_columns_and_labels_of_files(folder):
    found = read_csv_sets(folder)
    assert sorted(found.sets) == ["other", "shop"]
    shop, other = found.sets["shop"], found.sets["other"]
    assert shop.rows.shape == (60, 4) and set(map(tuple, shop.rows[:, 2:])) == {(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)}
    gaps = np.delete(shop.rows[:, 1], 4)
    assert shop.rows[4, 1] == np.median(gaps)
    assert other.labels.tolist() == [i % 3 for i in range(45)] and other.rows.shape == (45, 2)
    assert [str(problem) for problem in found.problems] == [
        "flat.csv: has 1 classes in column 'b', expected 2 to 50 (the file is left out)",
        "shop.csv: left out the columns id (only numbers and few texts are read)",
    ]
    assert found.success_threshold("other") == 1.0 - 0.01
    assert len(found.table.scores["shop"]) == 6 and max(found.table.scores["shop"].values()) > 0.9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,class\n1,x\n2,\n3,x\n", "has rows without a label in column 'class'"),
        ("name,class\n" + "".join(f"n{i},{'xy'[i % 2]}\n" for i in range(40)), "holds no column of numbers"),
        (
            "a,class\n" + "".join(f"{i},{'xy'[i > 30]}\n" for i in range(33)),
            "has 2 rows of the class 'y', expected at least 10",
        ),
        ("a,b\n1,2\n1\n", "cannot be read"),
    ],
)
def test_files_that_cannot_be_used_are_told(tmp_path, text, said):
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_csv_sets(tmp_path / "data.csv")


def test_a_folder_without_files_is_told(tmp_path):
    with pytest.raises(ConfigError, match="holds no CSV file"):
        load_world(f"datasci:code:{tmp_path}")
    with pytest.raises(ConfigError, match=r"datasci:code:FOLDER runs programs on your CSV files"):
        load_world("datasci:cod")


def test_a_file_named_as_a_set_of_the_library_is_in_every_split(folder):
    """`wine` is a set of the library, for one split alone."""
    (folder / "other.csv").rename(folder / "wine.csv")
    world = load_world(f"datasci:code:{folder}")
    for split in ("train", "dev", "test"):
        assert {task.spec["data"] for task in world.tasks(split, "seen")} == {"shop", "wine"}


def test_tasks_of_files_that_were_changed_are_refused(folder):
    before = load_world(f"datasci:code:{folder}")
    task = before.tasks("train", "seen")[0]
    assert load_world(f"datasci:code:{folder}").make(task)
    text = (folder / "other.csv").read_text()
    (folder / "other.csv").write_text(text.replace("0,0.0,1", "0,0.001,1", 1))
    after = load_world(f"datasci:code:{folder}")
    assert after.version != before.version
    with pytest.raises(VersionMismatch):
        after.make(task)


@pytest.mark.long
def test_programs_are_judged_on_the_users_data(folder):
    """The expert's program reaches its own score; a program that guesses has an area of one half."""
    world = load_world(f"datasci:code:{folder}")
    tasks = world.tasks("train", "seen")
    assert {task.spec["data"] for task in tasks} == {"shop", "other"} and world.tasks("test", "seen")
    task = next(task for task in tasks if task.spec["data"] == "shop")
    try:
        env = world.make(task)
        env.reset()
        _, area, over, _, info = env.step(world.expert(task)[0])
        assert over and area > 0.9 and info["mark"] == max(world.table.scores["shop"].values()) - 0.01
        env.reset()
        guess = "def predict(rows, labels, asked):\n    return [[0.5, 0.5] for _ in asked]\n"
        assert env.step(guess)[1] == 0.5
    finally:
        world.close()
