"""Fault 79: a GGUF file claims more values, tensors or layers than it holds.

Its header is read within the file, and its layers are compared with its weights.
"""

from __future__ import annotations

import pytest

from evolvent.errors import ConfigError, Incomplete
from evolvent.models.gguf import read_gguf_header
from evolvent.models.inspection import check_config


def gguf(path, *, values: int = 1, tensors: int = 0, rest: bytes = b"") -> None:
    key = b"general.architecture"
    head = b"GGUF" + (3).to_bytes(4, "little") + tensors.to_bytes(8, "little") + values.to_bytes(8, "little")
    entry = len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little") + (5).to_bytes(8, "little") + b"llama"
    path.write_bytes(head + entry + rest)


@pytest.mark.parametrize(("values", "tensors"), [(2**60, 0), (1, 2**60), (2, 0)])
def test_a_gguf_header_that_counts_beyond_its_end_is_refused(tmp_path, values, tensors):
    gguf(tmp_path / "m.gguf", values=values, tensors=tensors)
    with pytest.raises(Incomplete, match="is cut off"):
        read_gguf_header(tmp_path / "m.gguf")


def test_a_gguf_array_longer_than_the_file_is_refused(tmp_path):
    array = (1).to_bytes(8, "little") + b"a" + (9).to_bytes(4, "little")
    for kind in (8, 4):
        gguf(tmp_path / "m.gguf", values=2, rest=array + kind.to_bytes(4, "little") + (2**60).to_bytes(8, "little"))
        with pytest.raises(Incomplete, match="is cut off"):
            read_gguf_header(tmp_path / "m.gguf")


def test_the_layers_of_a_gguf_file_are_compared_with_its_header(tmp_path):
    shapes = {f"blk.{number}.attn_q.weight": (8, 8) for number in range(2)}
    check_config(tmp_path, {"num_hidden_layers": 2}, shapes)
    with pytest.raises(ConfigError, match=r"got 3 layers in config\.json, expected 2"):
        check_config(tmp_path, {"num_hidden_layers": 3}, shapes)
