"""What any layout saved, every layout loads, bit for bit; what goes wrong on one rank is told on all."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import reshard_ranks as ranks_do
from crew import Crew
from reshard_ranks import LAYOUTS, SHAPES


@pytest.fixture(scope="module")
def crews():
    with Crew(2) as two, Crew(4) as four:
        yield {2: two, 4: four}


def per_size(crews, function, of_layouts, *arguments):
    """The results of all ranks of one, two and four, each of which does what concerns its layouts."""
    found = []
    for size in (1, 2, 4):
        mine = of_layouts(size)
        found += crews[size].run(function, mine, *arguments) if size > 1 else [function(mine, *arguments)]
    return found


@pytest.fixture(scope="module")
def saved(crews, tmp_path_factory):
    """A folder for each layout, saved at once, and one saved on a thread while its tensors were changed."""
    keys = [(layout, wait) for layout in LAYOUTS for wait in (True, False)]
    folders = {key: (str(tmp_path_factory.mktemp("c")), update) for update, key in enumerate(keys, 1)}
    per_size(crews, ranks_do.save, lambda size: {k: f for k, f in folders.items() if LAYOUTS[k[0]].size == size})
    return {key: Path(folder) for key, (folder, _) in folders.items()}


@pytest.fixture(scope="module")
def loaded(crews, saved):
    """{layout: what each of its ranks found wrong in any folder}."""
    layouts = lambda size: [name for name, mesh in LAYOUTS.items() if mesh.size == size]  # noqa: E731
    every = per_size(crews, ranks_do.load, layouts, [str(folder) for folder in saved.values()])
    return {layout: [wrong[layout] for wrong in every if layout in wrong] for layout in LAYOUTS}


@pytest.mark.long  # every pair; `test_matrix` goes on under other layouts in every run
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_loads_what_every_layout_saved(loaded, layout):
    assert loaded[layout] == [[]] * LAYOUTS[layout].size


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_element_is_written_once(saved, layout):
    """Also of what several ranks hold: replicas, plain tensors beside sharded ones, the weight of two stages."""
    for wait in (True, False):
        (path,) = saved[layout, wait].iterdir()
        groups = json.loads((path / "index.json").read_text())
        assert {n: tuple(row["shape"]) for n, row in groups["model"].items()} == SHAPES
        assert len(groups["optimizer"]) == 3 * len(SHAPES)
        for row in (*groups["model"].values(), *groups["optimizer"].values()):
            assert sum(math.prod(piece["shape"]) for piece in row["pieces"]) == math.prod(row["shape"])
        size = sum(4 * math.prod(row["shape"]) for rows in groups.values() for row in rows.values())
        stages = LAYOUTS[layout].pp - 1  # the second stage writes its copy of the shared weight and its moments
        twice = stages * (3 * 4 * math.prod(SHAPES["embed"]) + 4)
        assert sum(data_bytes(file) for file in path.glob("*.safetensors")) == size + twice


def data_bytes(file: Path) -> int:
    raw = file.read_bytes()
    return len(raw) - 8 - int.from_bytes(raw[:8], "little")


def test_whole_tensors_on_every_rank(crews, saved):
    one, two = crews[2].run(ranks_do.whole, "dp2", str(saved["dp2 tp2", True]))
    assert one == two == ranks_do.whole("one", str(saved["dp2 tp2", True])) and set(one) == set(SHAPES)


def test_layouts_without_regions_are_refused(crews):
    for partial, strided in crews[4].run(ranks_do.refused):
        assert partial.startswith("ConfigError: cannot save a tensor that is neither sharded nor replicated")
        assert strided.startswith("ConfigError: a strided shard lacks the shards that it strides over")


# ---------------------------------------------------------------------- damage


def test_a_flipped_byte_is_named_by_all_ranks(crews, saved, tmp_path):
    folder = shutil.copytree(saved["dp4", True], tmp_path / "c")
    (file,) = folder.glob("*/rank-00001-model-00000.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    for said, untouched in crews[2].run(ranks_do.damaged, str(folder)):
        assert (
            said.startswith("HashMismatch")
            and "rank-00001-model-00000.safetensors has changed since it was written" in said
        )
        assert "changed tensors ['second.odd']" in said and untouched


def test_a_missing_shard_is_named_by_all_ranks(crews, saved, tmp_path):
    folder = shutil.copytree(saved["dp2 tp2", True], tmp_path / "c")
    next(folder.glob("*/rank-00003-optimizer-00000.safetensors")).unlink()
    for said, untouched in crews[2].run(ranks_do.damaged, str(folder)):
        assert said.startswith("Incomplete") and "rank-00003-optimizer-00000.safetensors is missing" in said
        assert "exp_avg/first.columns" in said and untouched


def test_ranks_refuse_together(crews, saved):
    zero, one = crews[2].run(ranks_do.unequal, str(saved["tp2", True]))
    assert zero[0].startswith("RankFailed: another rank refused the checkpoint")
    assert one[0].startswith("StateMissing: the checkpoint's optimizer state has no tensor 'hessian/embed'")
    assert zero[1] == one[1] and zero[1].startswith("ShapeMismatch") and "['embed']" in zero[1]
    assert zero[2] == one[2] == ["model"]


# ---------------------------------------------------------------------- trouble while saving


@pytest.fixture
def before(crews, tmp_path):
    crews[2].run(ranks_do.save, {("dp2", True): (str(tmp_path), 1)})
    return tmp_path


def test_a_rank_that_writes_nothing(crews, before):
    (said, there, newest), (_, _, other) = crews[2].run(ranks_do.silent, str(before))
    assert said.startswith("RankFailed: ranks [1] did not write their parts of update-000000002: got nothing for 1 s")
    assert there == ["update-000000001"] and newest == other == "update-000000003"


@pytest.mark.parametrize("wait", [True, False])
def test_a_full_disk_on_one_rank(crews, before, wait):
    (zero, there), (one, _) = crews[2].run(ranks_do.full, str(before), wait)
    assert one.startswith("NoSpace: no space left for")
    assert zero.startswith("RankFailed: rank 1 could not write its part of update-000000002: got [Errno 27]")
    assert there == ["update-000000001"]
