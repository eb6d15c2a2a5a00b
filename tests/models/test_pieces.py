"""Regions of tensors against masks, and folders of safetensors that are read in parts: no more than is needed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from evolvent.errors import ConfigError, Incomplete, ShapeMismatch, UnsafePath
from evolvent.models import pieces
from evolvent.models.pieces import DTYPES, Entry, Index, Piece, Region, fill, fill_all, local_tensor, region_of
from evolvent.models.writing import entry_from_row, entry_to_row, group_shards, merge_indices, write_tensors

# ---------------------------------------------------------------------- regions


@st.composite
def boxes(draw: st.DrawFn, count: int) -> tuple[tuple[int, ...], list[Region]]:
    """A shape of up to three dimensions and regions inside it, possibly empty."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=3)))
    found = []
    for _ in range(count):
        ends = [sorted((draw(st.integers(0, size)), draw(st.integers(0, size)))) for size in shape]
        found.append(Region(tuple(a for a, _ in ends), tuple(b - a for a, b in ends)))
    return shape, found


def mask(shape: tuple[int, ...], region: Region | None) -> np.ndarray:
    held = np.zeros(shape, dtype=int)
    if region is not None:
        held[region.slices(Region.whole(shape))] = 1
    return held


@given(boxes(2))
def test_overlap_and_rest_are_those_of_masks(drawn):
    shape, (one, other) = drawn
    assert np.array_equal(mask(shape, one.overlap(other)), mask(shape, one) * mask(shape, other))
    rest = sum((mask(shape, box) for box in one.without(other)), np.zeros(shape, dtype=int))
    assert np.array_equal(rest, mask(shape, one) * (1 - mask(shape, other)))
    assert one.numel == mask(shape, one).sum()


@given(boxes(5), st.data())
def test_a_region_is_put_together_from_any_pieces(drawn, data):
    """Pieces overlap, are in two files, are empty: every element that is somewhere is read once, or one is missing."""
    shape, (wanted, *parts) = drawn
    index = Index(Path("x"), {"w": Entry(shape, torch.float32, tuple(Piece(f"{i}", p) for i, p in enumerate(parts)))})
    there = np.minimum(1, sum(mask(shape, part) for part in parts))
    if (mask(shape, wanted) > there).any():
        with pytest.raises(Incomplete, match="a part of tensor 'w'"):
            index.plan_reads("w", wanted)
        return
    reads = index.plan_reads("w", wanted)
    assert np.array_equal(sum((mask(shape, part) for _, part in reads), np.zeros(shape, int)), mask(shape, wanted))
    assert all(part.overlap(piece.region) == part for piece, part in reads)


def test_a_plain_tensor_is_whole_and_ours():
    weight = torch.nn.Parameter(torch.ones(2, 3))
    assert region_of(weight) == ((2, 3), Region((0, 0), (2, 3)), True)
    local_tensor(weight).zero_()
    assert not weight.any()
    assert region_of(torch.tensor(1.0)) == ((), Region((), ()), True)


# ---------------------------------------------------------------------- writing


@pytest.mark.parametrize("name", DTYPES)
def test_what_is_written_is_safetensors(tmp_path, name):
    """Beside odd numbers of narrow elements, so that wide ones would lie crooked in the order of names."""
    dtype = DTYPES[name]
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    given_ = {
        "a": torch.tensor([1, 0, 1], dtype=torch.uint8),
        "ü": tensor,
        "z": torch.zeros(0, 2),
        "s": torch.tensor(7.0),
    }
    specs = {n: (t.dtype, t.shape) for n, t in given_.items()}
    written = write_tensors(tmp_path / "f.safetensors", specs, lambda n: given_[n])
    found = load_file(tmp_path / "f.safetensors")
    assert sorted(found) == sorted(given_)
    for n, t in given_.items():
        assert found[n].dtype == t.dtype and found[n].shape == t.shape
        assert torch.equal(found[n].reshape(-1).view(torch.uint8), t.reshape(-1).view(torch.uint8))
    assert written.sha256 == hashlib.sha256((tmp_path / "f.safetensors").read_bytes()).hexdigest()


def test_a_type_that_has_no_name_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="complex128"):
        write_tensors(tmp_path / "f", {"a": (torch.complex128, (1,))}, lambda name: torch.zeros(1))
    assert not (tmp_path / "f").exists()


def test_names_are_grouped_up_to_a_size():
    assert list(group_shards({"a": 3, "b": 3, "c": 9, "d": 1, "e": 5}, 6)) == [["a", "b"], ["c"], ["d", "e"]]
    assert list(group_shards({}, 6)) == []


# ---------------------------------------------------------------------- folders


def hf_folder(folder: Path, *files: dict[str, torch.Tensor]) -> Path:
    """An ordinary weight folder of one file or, with an index, of several."""
    folder.mkdir()
    if len(files) == 1:
        save_file(files[0], folder / "model.safetensors")
        return folder
    places = {}
    for number, tensors in enumerate(files, 1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        save_file(tensors, folder / name)
        places |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


A, B = torch.arange(24.0).reshape(4, 6), torch.arange(10).to(torch.bfloat16)


@pytest.mark.parametrize("files", [[{"a": A, "b": B}], [{"a": A}, {"b": B}]])
def test_a_hugging_face_folder_is_an_index(tmp_path, files):
    index = Index.of_folder(hf_folder(tmp_path / "m", *files))
    assert sorted(index) == ["a", "b"] and len(index) == 2 and "c" not in index
    assert (index["a"].shape, index["a"].dtype, index["b"].dtype) == ((4, 6), torch.float32, torch.bfloat16)
    assert torch.equal(index.whole("a"), A) and torch.equal(index.tensors()["b"], B)
    target = torch.zeros(10)
    fill(target, index, "b")
    assert torch.equal(target, B.float())


def test_other_weights_beside_the_model_are_not_taken_for_it(tmp_path):
    folder = hf_folder(tmp_path / "m", {"a": A})
    save_file({"v": A}, folder / "value_head.safetensors")
    save_file({"a": B}, folder / "consolidated.safetensors")
    assert list(Index.of_folder(folder)) == ["a"]


def test_folders_that_cannot_be_read(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(Incomplete, match=r"no weights.*model\.safetensors"):
        Index.of_folder(tmp_path / "empty")
    folder = hf_folder(tmp_path / "m", {"a": A}, {"b": B})
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0notjson!")
    with pytest.raises(Incomplete, match=r"model-00002-of-00002\.safetensors cannot be read"):
        Index.of_folder(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(Incomplete, match=r"model-00002-of-00002\.safetensors is missing"):
        Index.of_folder(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../m/a.safetensors"}}))
    with pytest.raises(UnsafePath):
        Index.of_folder(folder)
    for text in ("{", "[]", '{"weight_map": 1}'):
        (folder / "model.safetensors.index.json").write_text(text)
        with pytest.raises(Incomplete, match=r"index\.json cannot be read"):
            Index.of_folder(folder)


def in_pieces(folder: Path, cuts: list[tuple[Region, str]]) -> Index:
    """A as if ranks had saved it in these regions."""
    found = []
    for region, file in cuts:
        part = A[region.slices(Region.whole(A.shape))].contiguous()
        save_file({"a": part}, folder / file)
        found.append(Piece(file, region))
    return Index(folder, {"a": Entry(tuple(A.shape), A.dtype, tuple(found))})


COLUMNS = [(Region((0, 0), (4, 5)), "0"), (Region((0, 5), (4, 1)), "1")]


def test_a_whole_is_filled_from_pieces(tmp_path):
    quarters = [(Region((i, j), (2, 3)), f"{i}{j}") for i in (0, 2) for j in (0, 3)]
    for number, cuts in enumerate((COLUMNS, quarters, [*COLUMNS, *quarters])):
        (tmp_path / str(number)).mkdir()
        assert torch.equal(in_pieces(tmp_path / str(number), cuts).whole("a"), A)


def test_no_more_is_read_than_is_needed(tmp_path, monkeypatch):
    """Rows 1 and 2 of a tensor that lies in columns: two slices, and the files are opened once for two targets."""
    index = in_pieces(tmp_path, COLUMNS)
    opened, read = [], []

    class Spy:
        def __init__(self, path):
            opened.append(path.name)
            self._file = real(path)

        def __enter__(self):
            self._inner = self._file.__enter__()
            return self

        def __exit__(self, *error):
            return self._file.__exit__(*error)

        def get_slice(self, name):
            inner = self._inner.get_slice(name)
            return type("Slice", (), {"__getitem__": lambda _, key: read.append(inner[key].shape) or inner[key]})()

    real = pieces._opened
    monkeypatch.setattr(pieces, "_opened", Spy)
    rows = Region((1, 0), (2, 6))
    monkeypatch.setattr(pieces, "region_of", lambda tensor: ((4, 6), rows, True))
    targets = [torch.zeros(2, 6), torch.zeros(2, 6)]
    fill_all([("a", target) for target in targets], index)
    assert all(torch.equal(target, A[1:3]) for target in targets)
    assert sorted(opened) == ["0", "1"] and sorted(map(tuple, read)) == [(2, 1), (2, 1), (2, 5), (2, 5)]


def test_what_is_missing_is_named_and_nothing_is_changed(tmp_path):
    index = in_pieces(tmp_path, COLUMNS[:1])
    whole = Index(tmp_path, {**index, "b": Entry((4, 5), A.dtype, index["a"].pieces)})
    target, other = torch.zeros(4, 6), torch.zeros(4, 5)
    with pytest.raises(Incomplete, match=r"tensor 'a'.*missing \(4, 1\) at \(0, 5\)"):
        fill_all([("b", other), ("a", target)], whole)
    with pytest.raises(Incomplete, match="lacks tensor 'c'"):
        fill_all([("b", other), ("c", target)], whole)
    with pytest.raises(ShapeMismatch, match=r"tensor 'a'.*got \(4, 6\), expected \(6, 4\)"):
        fill_all([("b", other), ("a", target.t())], whole)
    assert not target.any() and not other.any()
    (tmp_path / "0").unlink()
    with pytest.raises(Incomplete, match="is missing"):
        fill(torch.zeros(4, 5), whole, "b")


# ---------------------------------------------------------------------- what several ranks wrote


def part(region: Region, file: str, shape=(4, 6), dtype=torch.float32) -> dict[str, dict[str, Entry]]:
    return {"model": {"a": Entry(shape, dtype, (Piece(file, region, 1),) if region.numel else ())}}


def test_parts_of_ranks_are_one_index():
    top, bottom, none = Region((0, 0), (3, 6)), Region((3, 0), (1, 6)), Region((4, 0), (0, 6))
    index = merge_indices([part(top, "0"), part(none, ""), part(top, "2"), part(bottom, "3")], Path("x"))["model"]
    assert [piece.file for piece in index["a"].pieces] == ["0", "3"]  # of a piece in two files the first counts
    assert entry_from_row(json.loads(json.dumps(entry_to_row(index["a"])))) == index["a"]
    with pytest.raises(Incomplete, match="tensor 'a'"):
        merge_indices([part(top, "0")], Path("x"))
    with pytest.raises(ShapeMismatch, match="different tensors 'a'"):
        merge_indices([part(top, "0"), part(bottom, "3", dtype=torch.float16)], Path("x"))
    assert merge_indices([{"optimizer": {}}, {"optimizer": {}}], Path("x"))["optimizer"] == {}
