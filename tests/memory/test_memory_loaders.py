"""TRAD's files: stale last actions dropped, types by instruction, one bad file never hides the rest."""

from __future__ import annotations

import json
import zipfile

import pytest

from evolvent.errors import SampleInvalid, StoreUnavailable
from evolvent.memory.loaders import household_family, read_trad
from evolvent.memory.steps import StepMemory

GOOD = {
    "task": "put some keychain on sofa.",
    "traj": [
        {"obs": "You are in the middle of a room.", "act": "go to shelf 8", "thought": "I need to find a keychain."},
        {"obs": "On the shelf 8, you see a keychain 1.", "act": "take keychain 1 from shelf 8", "thought": "Take it."},
        {"obs": "You pick up the keychain 1.", "act": "go to shelf 1", "thought": "stale"},
    ],
}


def folder(tmp_path):
    for name, text in {
        "0_1.json": json.dumps(GOOD),
        "0_0.json": json.dumps(GOOD | {"task": "cool some mug and put it in shelf."}),
        "9_9.json": '{"task": ',
        "1_1.json": json.dumps({"task": "x", "traj": []}),
        "2_2.json": "[1]",
        "3_3.json": json.dumps({"task": "x", "traj": [{"obs": "a", "act": 1}, {"obs": "b"}]}),
        "notes.txt": "none",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_good_files_and_bad(tmp_path):
    found = read_trad(folder(tmp_path))
    assert [one.id for one in found.trajectories] == ["trad/0_0", "trad/0_1"]
    assert [str(error).split(": ")[1] for error in found.invalid] == ["1_1.json", "2_2.json", "3_3.json", "9_9.json"]
    one = found.trajectories[1]
    assert one.task.kind == "put" and found.trajectories[0].task.kind == "cool", "not by the file's name"
    assert [step.action for step in one.steps] == ["go to shelf 8", "take keychain 1 from shelf 8"]
    assert one.steps[1].thought == "Take it." and one.final_observation == "You pick up the keychain 1."
    assert json.loads(one.meta["stale"]) == {"act": "go to shelf 1", "thought": "stale"}
    memory = StepMemory.from_trajectories(found.trajectories)
    assert len(memory) == 4 and memory.get_demonstration("trad/0_1").task == "put some keychain on sofa."
    assert memory.query(["stale"], 9, distinct=False)[0][0].record.thought != "stale"


def test_a_zip_is_a_folder(tmp_path):
    files = folder(tmp_path)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in sorted(files.glob("*.json"), reverse=True):
            archive.write(path, path.name)
    assert read_trad(tmp_path / "all.zip").trajectories == read_trad(files).trajectories


@pytest.mark.parametrize("spoilt", ["bits", "password", "method"])
def test_an_entry_that_cannot_be_unpacked_hides_no_other(tmp_path, spoilt):
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0_0.json", json.dumps(GOOD))
        archive.writestr("0_1.json", json.dumps(GOOD))
    data = bytearray(path.read_bytes())
    listed = data.find(b"PK\x01\x02")  # of the first entry, as its own header at 0
    if spoilt == "bits":
        data[45:60] = b"\xff" * 15
    elif spoilt == "password":
        data[6], data[listed + 8] = 1, 1
    else:
        data[8], data[listed + 10] = 77, 77
    path.write_bytes(data)
    found = read_trad(path)
    assert [one.id for one in found.trajectories] == ["trad/0_1"]
    assert ["0_0.json: it cannot be unpacked" in str(error) for error in found.invalid] == [True]


def test_no_such_place(tmp_path):
    with pytest.raises(StoreUnavailable):
        read_trad(tmp_path / "none.zip")
    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(SampleInvalid):
        read_trad(tmp_path / "text.zip")


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("put a cool bowl in diningtable.", "cool"),
        ("put a bowl in diningtable", "put"),
        ("Find two pens", ""),
        ("find two pen and put them in desk.", "two"),
        ("examine the cd with the desklamp.", "look"),
        ("clean some fork and put it in countertop.", "clean"),
        ("put some alarmclock on dresser.", "put"),
    ],
)
def test_families(text, family):
    assert household_family(text) == family
