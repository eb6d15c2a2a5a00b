#!/bin/sh
# transformers 5.23.0: Mamba 1 forgets its recurrent state when several tokens follow a cache.
#
# A text is fed to a tiny random Mamba in two pieces, with the cache that the first piece returned. The second piece has
# six tokens. The logits differ from those of the whole text: the slow path of the mixer begins its scan with a state of
# zeros unless exactly one token follows. Fed one token at a time, the logits agree. Nothing is said, and Mamba 2, fed in
# the same two pieces, agrees. Chat turns, prefilled chunks and assisted decoding continue a cache with several tokens.
#
# Seen with Python 3.11, torch 2.13.0 (CPU), transformers 5.23.0:
#   mamba: whole against pieces of 6: 0.0048, of 1: 0.0000
#   mamba2: whole against pieces of 6: 0.0000, of 1: 0.0000
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet "torch==2.13.*" "transformers==5.23.0"
"$folder/venv/bin/python" - <<'PYTHON'
import logging
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {
    "mamba": {"state_size": 8, "hidden_size": 32, "intermediate_size": 64},
    "mamba2": {"state_size": 8, "hidden_size": 32, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 16},
}


def difference(model, ids, step):
    """The largest difference between the logits of a whole text and of its pieces: 10 tokens, then `step` at a time."""
    with torch.inference_mode():
        whole = model(ids).logits
        out = model(ids[:, :10], use_cache=True)
        logits = [out.logits]
        for first in range(10, ids.shape[1], step):
            out = model(ids[:, first : first + step], cache_params=out.cache_params, use_cache=True)
            logits.append(out.logits)
    return float((torch.cat(logits, 1) - whole).abs().max())


found = {}
for kind, sizes in SIZES.items():
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=50, num_hidden_layers=2, **sizes)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    ids = torch.randint(0, 50, (1, 16))
    found[kind] = (difference(model, ids, 6), difference(model, ids, 1))
    print(f"{kind}: whole against pieces of 6: {found[kind][0]:.4f}, of 1: {found[kind][1]:.4f}")
assert found["mamba"][0] > 1e-3 and found["mamba"][1] < 1e-5, "Mamba 1 goes on otherwise now"
assert max(found["mamba2"]) < 1e-5, "Mamba 2 goes on otherwise now"
PYTHON
