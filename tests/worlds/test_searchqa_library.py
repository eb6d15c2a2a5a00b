"""A user's own collection: both formats of documents, questions, bad rows, ties, splits, foreign tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evolvent.errors import ConfigError, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.panel import Sizes
from evolvent.worlds.searchqa.library import read_library
from evolvent.worlds.searchqa.world import SearchQA

CORPUS = [
    {"id": "10", "contents": '"Marie Curie"\nMarie Curie was born in Warsaw. She worked in Paris.'},
    {"id": 9, "contents": '"Warsaw"\nWarsaw is the capital of Poland.'},
    {"id": "b", "title": "Poland", "text": "Poland is a country. Its capital is Warsaw."},
    {"id": "a", "text": "The river Vistula flows through Warsaw."},
]
QUESTIONS = [
    {
        "question": "Where was Marie Curie born?",
        "golden_answers": ["Warsaw", "Warszawa"],
        "type": "place",
        "split": "test",
    },
    {
        "question": "Of which country is the city where Marie Curie was born the capital?",
        "answer": "Poland",
        "queries": ["where was Marie Curie born", "capital Warsaw"],
        "split": "train",
    },
    {"question": "Who painted the ceiling?", "answers": ["Michelangelo"]},
]


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write(tmp_path / "corpus.jsonl", CORPUS), write(tmp_path / "questions.jsonl", QUESTIONS)


def test_documents_in_the_order_of_their_ids(files: tuple[Path, Path]) -> None:
    library = read_library(*files)
    assert [(document.id, document.title) for document in library.documents] == [
        ("9", '"Warsaw"'),
        ("10", '"Marie Curie"'),
        ("a", ""),
        ("b", "Poland"),
    ]
    assert library.documents[1].names == ("Marie Curie",)
    assert library.documents[1].text == "Marie Curie was born in Warsaw. She worked in Paris."
    assert library.invalid == ()


def test_the_order_of_rows_does_not_matter(files: tuple[Path, Path], tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", list(reversed(CORPUS)))
    assert read_library(other, files[1]).digest == read_library(*files).digest
    write(other, CORPUS[:-1])
    assert read_library(other, files[1]).digest != read_library(*files).digest


def test_an_episode(files: tuple[Path, Path]) -> None:
    world = SearchQA.from_files(*files)
    (task,) = world.tasks("test", "seen")
    assert (task.kind, task.split, world.name, world.tiers, world.vocabulary()) == (
        "place",
        "test",
        "searchqa_files",
        ("seen",),
        None,
    )
    env = world.make(task)
    observation, info = env.reset()
    assert observation == "Question: Where was Marie Curie born?"
    assert info["admissible"] == ("<search>Where was Marie Curie born?</search>",)
    observation, _, _, _, info = env.step(info["admissible"][0])
    assert observation == (
        '<information>Doc 1(Title: "Marie Curie") Marie Curie was born in Warsaw. She worked in Paris.</information>'
    )
    assert info["admissible"][1:] == ("<search>Marie Curie</search>", "<answer>Marie Curie</answer>")
    assert str(env.step("search warsaw")[0]).count("Doc ") == 3
    assert env.step("<answer>the WARSZAWA.</answer>")[:3] == ("right", 1.0, True)


def test_an_experts_answer_can_be_read(files: tuple[Path, Path]) -> None:
    world = SearchQA(read_library(*files), text="short")
    (place,), (country,) = world.tasks("test", "seen"), world.tasks("train", "seen")
    assert world.expert(place) == ["search Where was Marie Curie born?", "answer Warsaw"]
    assert world.expert(country) == ["search where was Marie Curie born", "search capital Warsaw", "answer Poland"]
    every = [task for split in ("train", "dev", "test") for task in world.tasks(split, "seen")]
    (ceiling,) = (task for task in every if "ceiling" in task.spec["question"])
    assert world.expert(ceiling) is None
    assert world.key(place) == "where was marie curie born"
    with pytest.raises(ConfigError, match="names"):
        world.rename(place, None)  # type: ignore[arg-type]


def test_a_folder_and_a_limit(files: tuple[Path, Path]) -> None:
    assert len(SearchQA.from_folder(files[0].parent).tasks("train", "seen")) >= 1
    world = SearchQA.from_files(*files, sizes=Sizes(train=0, dev=0, test=1))
    assert [len(world.tasks(split, "seen")) for split in ("train", "dev", "test")] == [0, 0, 1]
    with pytest.raises(ConfigError, match="unknown tier"):
        world.tasks("test", "combo")


def test_splits_by_the_question_alone(tmp_path: Path) -> None:
    rows = [{"question": f"What is number {n}?", "answer": n} for n in range(300)]
    corpus = write(tmp_path / "corpus.jsonl", CORPUS)
    world = SearchQA.from_files(corpus, write(tmp_path / "q.jsonl", rows))
    again = SearchQA.from_files(corpus, write(tmp_path / "r.jsonl", list(reversed(rows))))
    sizes = [len(world.tasks(split, "seen")) for split in ("train", "dev", "test")]
    assert sum(sizes) == 300
    assert 210 < sizes[0] < 265
    assert min(sizes[1:]) > 10
    assert {task.id for task in world.tasks("test", "seen")} == {task.id for task in again.tasks("test", "seen")}


def test_bad_rows_are_named_and_good_ones_kept(files: tuple[Path, Path], tmp_path: Path) -> None:
    corpus = write(
        tmp_path / "bad.jsonl",
        [
            "",
            "{",
            "[1]",
            {"contents": "no id"},
            {"id": True, "text": "x"},
            {"id": 1},
            {"id": 2, "text": " "},
            {"id": 3, "text": "kept"},
            {"id": "3", "text": "again"},
            {"id": 4, "title": 5, "text": "x"},
            '{"id": 5, "text": "\\ud800"}',
            "[" * 100_000,
            {"id": 6, "text": "kept too"},
        ],
    )
    with corpus.open("ab") as file:
        file.write(b'{"id": 7, "text": "\xff"}\n')
    questions = write(
        tmp_path / "asked.jsonl",
        [
            {"question": "Who?", "answer": "A B"},
            {"question": "who", "answer": "C"},
            {"question": "What?"},
            {"question": "", "answer": "x"},
            {"question": "Which?", "answer": "the"},
            {"question": "When?", "answer": [None]},
            {"question": "Why?", "answer": ["", "so"], "split": "valid"},
            {"question": "How?", "answer": 7, "kind": 3},
            {"question": "Whose?", "answer": 7, "queries": 1.5},
            {"question": "Whom?", "answer": "x", "queries": {}},
        ],
    )
    library = read_library(corpus, questions)
    assert [document.text for document in library.documents] == ["kept", "kept too"]
    assert [(question.text, question.answers) for question in library.questions] == [
        ("Who?", ("A B",)),
        ("Whose?", ("7",)),
    ]
    told = [str(error) for error in library.invalid]
    where = [text.split(":")[0] for text in told]
    assert where == [f"{corpus} row {n}" for n in (2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 14)] + [
        f"{questions} row {n}" for n in (2, 3, 4, 5, 6, 7, 8, 10)
    ]
    for text, word in zip(
        told,
        (
            "JSON",
            "object",
            "id",
            "id",
            "text",
            "text",
            "duplicate document id",
            "text",
            "JSON",
            "JSON",
            "JSON",
            "duplicate question",
            "answer",
            "question",
            "answer",
            "answer",
            "split",
            "kind",
            "queries",
        ),
        strict=True,
    ):
        assert word in text


def test_files_without_a_good_row_are_both_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_library(tmp_path / "none.jsonl", write(tmp_path / "bad.jsonl", ["{}", "{}"]))
    first, second = map(str, caught.value.problems)
    assert "none.jsonl" in first and "cannot be read" in first
    assert "no valid row: row 1" in second
    with pytest.raises(ConfigError, match="no row"):
        read_library(write(tmp_path / "empty.jsonl", []), write(tmp_path / "bad.jsonl", QUESTIONS))
    with pytest.raises(ConfigError, match="no word"):
        read_library(write(tmp_path / "mute.jsonl", [{"id": 1, "text": "?!"}]), write(tmp_path / "q.jsonl", QUESTIONS))


def test_tasks_of_other_collections_and_broken_ones(files: tuple[Path, Path], tmp_path: Path) -> None:
    world = SearchQA.from_files(*files)
    other = SearchQA.from_files(write(tmp_path / "other.jsonl", CORPUS[:2]), files[1])
    with pytest.raises(VersionMismatch, match="collection"):
        other.make(world.tasks("test", "seen")[0])
    broken = {"corpus": world.library.digest, "question": 5, "answers": [], "queries": "x"}  # type: ignore[union-attr]
    with pytest.raises(ConfigError) as caught:
        world.make(Task(world.name, "1", broken))
    assert [problem.where for problem in caught.value.problems] == ["question", "answers", "queries"]
    with pytest.raises(ConfigError):
        SearchQA().make(world.tasks("test", "seen")[0])


def test_a_marked_file_of_windows(files: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "bom.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + files[0].read_bytes().replace(b"\n", b"\r\n"))
    assert read_library(path, files[1]).digest == read_library(*files).digest
