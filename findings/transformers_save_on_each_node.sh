#!/bin/sh
# transformers 5.23.0: with `save_on_each_node`, the checkpoints of every node but the first hold no weights.
#
# Two processes train one step, each as the only process of its node (LOCAL_RANK 0), and both are told to save:
# `TrainingArguments(save_on_each_node=True)` is made for nodes that share no storage. Both nodes write optimizer,
# schedule and random state. Only the first writes the model and its configuration, and the second says nothing:
# `save_pretrained` asks torch.distributed for the global rank and skips all files unless it is 0. The same is
# true of a call with `is_main_process=True`, which the documentation describes as how a process is chosen to write.
#
# Seen with Python 3.11, torch 2.13.0 (CPU), transformers 5.23.0, accelerate 1.15.0:
#   node 0: config.json True, model.safetensors True, optimizer.pt True; save_pretrained(is_main_process=True): 3 files
#   node 1: config.json False, model.safetensors False, optimizer.pt True; save_pretrained(is_main_process=True): 0 files
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet "torch==2.13.*" "transformers==5.23.0" "accelerate==1.15.0"
cat >"$folder/train.py" <<'PYTHON'
import logging
import os
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        ids = torch.arange(8) + index
        return {"input_ids": ids, "labels": ids}


node = f"node-{os.environ['RANK']}"
torch.manual_seed(0)
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
settings = TrainingArguments(
    node,
    max_steps=1,
    save_steps=1,
    per_device_train_batch_size=1,
    save_on_each_node=True,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)), settings, train_dataset=Rows())
assert settings.should_save, "each node is told to save"
trainer.train()
trainer.model.save_pretrained(f"{node}/direct", is_main_process=True)
PYTHON
cd "$folder"
port=$(python3 -c 'import socket; place = socket.create_server(("127.0.0.1", 0)); print(place.getsockname()[1])')
export WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" OMP_NUM_THREADS=1
RANK=1 venv/bin/python train.py >second.log 2>&1 &
RANK=0 venv/bin/python train.py >first.log 2>&1 || { cat first.log; exit 1; }
wait $! || { cat second.log; exit 1; }
venv/bin/python - <<'PYTHON'
from pathlib import Path

written = {}
for number in (0, 1):
    node = Path(f"node-{number}")
    names = {path.name for path in (node / "checkpoint-1").iterdir()}
    written[number] = [name in names for name in ("config.json", "model.safetensors", "optimizer.pt")]
    has_config, has_weights, has_optimizer = written[number]
    files = len(list((node / "direct").iterdir()))
    print(
        f"node {number}: config.json {has_config}, model.safetensors {has_weights}, optimizer.pt {has_optimizer}; "
        f"save_pretrained(is_main_process=True): {files} files"
    )
assert written[0] == [True, True, True], "the first node saves otherwise now"
assert written[1] == [False, False, True], "the second node saves otherwise now"
PYTHON
