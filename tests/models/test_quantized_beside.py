"""What is written beside 8-bit weights: needs no torchao."""

from evolvent.models.heads import ValueHead
from evolvent.models.quantized import _copy_other_files


def test_a_value_head_comes_along_and_an_index_of_other_files_does_not(tmp_path):
    source, to = tmp_path / "float", tmp_path / "int8"
    source.mkdir()
    to.mkdir()
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    kept = ["tokenizer.json", "evolvent.json", ValueHead.FILE]
    for name in (*kept, *shards, "model.safetensors.index.json", "config.json"):
        (source / name).write_text("of the source")
    (to / "config.json").write_text("of 8 bits")
    _copy_other_files(source, to)
    assert {path.name for path in to.iterdir()} == {*kept, "config.json"}
    assert (to / "config.json").read_text() == "of 8 bits"
