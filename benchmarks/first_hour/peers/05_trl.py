# TRL. shows: train_loss
from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

dataset = load_dataset("json", data_files="pairs.jsonl", split="train")
arguments = DPOConfig(output_dir="out", max_steps=2, use_cpu=True, bf16=False)
trainer = DPOTrainer(model="plain", args=arguments, train_dataset=dataset)
print(trainer.train())
