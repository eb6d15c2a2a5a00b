# TRL. shows: train_loss
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def reward(completions, answer, **row):
    return [float(word in completion) for completion, word in zip(completions, answer, strict=True)]


dataset = load_dataset("json", data_files="questions.jsonl", split="train")
arguments = GRPOConfig(
    output_dir="out",
    max_steps=2,
    max_completion_length=4,
    num_generations=4,
    per_device_train_batch_size=4,
    use_cpu=True,
)
trainer = GRPOTrainer(model="plain", reward_funcs=reward, args=arguments, train_dataset=dataset)
print(trainer.train())
trainer.save_model("trained")
