# TRL. shows: train_loss
from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

dataset = load_dataset("json", data_files="chats.jsonl", split="train")
arguments = SFTConfig(output_dir="out", max_steps=2, use_cpu=True, bf16=False, assistant_only_loss=False)
trainer = SFTTrainer(
    model="plain", args=arguments, train_dataset=dataset, peft_config=LoraConfig(target_modules="all-linear")
)
print(trainer.train())
