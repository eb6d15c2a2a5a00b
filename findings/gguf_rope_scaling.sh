#!/bin/sh
# transformers 5.23.0: the scaling of rotary positions in a GGUF file is dropped without a word.
#
# GGUF files state it as rope.scaling.type, rope.scaling.factor and rope.scaling.original_context_length (the format's
# specification, section "RoPE"; llama.cpp and its converter read and write the three). Two files of a tiny Llama state a
# linear and a YaRN scaling by 4 from 2,048 tokens. The configuration that transformers reads from either is that of a
# file without scaling: rope_type "default", while max_position_embeddings is the extended 8,192. No warning is given. A
# model that was extended that way then reads every position beyond the first at another angle than it was trained with.
#
# Seen with Python 3.11, torch 2.13.0 (CPU), transformers 5.23.0, gguf 0.19.0:
#   none: rope_type default, factor None, context 8192
#   linear: rope_type default, factor None, context 8192
#   yarn: rope_type default, factor None, context 8192
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet "torch==2.13.*" "transformers==5.23.0" "gguf==0.19.0"
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
import warnings
from pathlib import Path

import gguf
from transformers import AutoConfig


def write(path, scaling):
    """Writes the header of a Llama without weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(8192)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(64)
    if scaling is not None:
        writer.add_rope_scaling_type(scaling)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(2048)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


warnings.simplefilter("error")  # a warning would end this
kinds = {"none": None, "linear": gguf.RopeScalingType.LINEAR, "yarn": gguf.RopeScalingType.YARN}
read = {}
for name, scaling in kinds.items():
    write(Path(sys.argv[1]) / f"{name}.gguf", scaling)
    config = AutoConfig.from_pretrained(sys.argv[1], gguf_file=f"{name}.gguf")
    rope = config.rope_parameters
    read[name] = (rope["rope_type"], rope.get("factor"), config.max_position_embeddings)
    print(f"{name}: rope_type {read[name][0]}, factor {read[name][1]}, context {read[name][2]}")
assert set(read.values()) == {("default", None, 8192)}, "the scaling is read now"
PYTHON
