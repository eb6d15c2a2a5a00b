"""LoRA fine-tuning of a local Hugging Face model: `python lora_sft.py MODEL_FOLDER CONVERSATIONS.jsonl`.

Each line of the file is {"messages": [...]} or {"prompt": ..., "completion": ...}. Without arguments a small model is
made, and learns to answer sums.
"""

import json
import sys
from pathlib import Path

import evolvent as ev
from evolvent.learn.rows import ReadingConfig, read_rows
from evolvent.learn.sources import read_json_lines
from evolvent.learn.windows import Intake
from evolvent.models.adapters import AdapterConfig, adapt, merge_adapter

run = Path("runs/lora-sft")
if len(sys.argv) > 2:
    policy, data, lr = ev.load_policy(sys.argv[1]), Path(sys.argv[2]), 2e-4
else:
    words, data, lr = [*map(str, range(19)), "plus"], Path("sums.jsonl"), 2e-2
    policy = ev.tiny_policy(words, context=32)
    sums = [{"prompt": f"{a} plus {b}", "completion": str(a + b)} for a in range(10) for b in range(10)]
    data.write_text("".join(json.dumps(row) + "\n" for row in sums))

intake = Intake()
parts = list(read_rows(read_json_lines(data, intake=intake), policy, ReadingConfig(), intake=intake))
print(f"{len(parts)} conversations, {intake.refused} left out")
tuned = adapt(policy, AdapterConfig(kind="lora", rank=8, targets=("all-linear",)), seed=0)
learner = ev.Learner(tuned, ev.weighted_nll, ev.TrainConfig(lr=lr, epochs=40, batch_tokens=512), seed=0)
report = learner.fit(parts)
trained, every = sum(w.numel() for w in tuned.model.parameters() if w.requires_grad), policy.parameters()
print(f"loss {report.losses[0]:.2f} -> {report.losses[-1]:.2f}, {trained:,} weights learned beside {every:,}")
tuned.save(run / "adapter")  # as peft reads it
merge_adapter(tuned).save(run / "model")  # as transformers reads it
