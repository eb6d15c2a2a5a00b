"""Names that other libraries use for settings, and the names of evolvent: TRL, transformers, verl, Stable-Baselines3.

A setting that is unknown under a foreign name is answered with the name that it has here.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["find_own_name"]

# Foreign name -> names here, the likeliest first; the one that a command has is shown.
_OWN_NAMES: dict[str, tuple[str, ...]] = {
    "adam_beta1": ("train.betas",),
    "adam_beta2": ("train.betas",),
    "batch_size": ("train.batch_tokens", "rl.practice.tasks_per_iteration"),
    "bf16": ("train.dtype", "dtype"),
    "cliprange": ("rl.clip_range",),
    "clip_range": ("rl.clip_range",),
    "cuda": ("device",),
    "dataset": ("data",),
    "dataset_name": ("data",),
    "ent_coef": ("rl.entropy_coef",),
    "entropy_coeff": ("rl.entropy_coef",),
    "epsilon": ("rl.clip_range",),
    "eval_steps": ("panel.limit",),
    "fp16": ("dtype",),
    "gradient_accumulation_steps": ("train.batch_tokens", "train.max_tokens_per_forward"),
    "gradient_clipping": ("train.max_grad_norm",),
    "kl_coef": ("rl.kl",),
    "learning_rate": ("train.lr", "learn.train.lr"),
    "logging_dir": ("output_dir",),
    "lora_alpha": ("adapter.alpha",),
    "lora_dropout": ("adapter.dropout",),
    "lora_r": ("adapter.rank",),
    "lora_rank": ("adapter.rank",),
    "lora_target_modules": ("adapter.targets",),
    "max_completion_length": ("max_tokens", "search.max_tokens"),
    "max_length": ("context",),
    "max_model_len": ("context",),
    "max_new_tokens": ("max_tokens", "search.max_tokens"),
    "max_prompt_length": ("context",),
    "max_seq_length": ("context",),
    "model": ("policy",),
    "model_name": ("policy",),
    "model_name_or_path": ("policy",),
    "n_epochs": ("rl.practice.ppo_epochs", "train.epochs"),
    "n_steps": ("rl.practice.tasks_per_iteration",),
    "num_epochs": ("train.epochs", "rl.practice.ppo_epochs"),
    "num_generations": ("rl.practice.group_size", "samples"),
    "num_iterations": ("rl.practice.ppo_epochs",),
    "num_samples": ("samples", "rl.practice.group_size"),
    "num_train_epochs": ("train.epochs",),
    "per_device_train_batch_size": ("train.batch_tokens", "train.max_tokens_per_forward"),
    "ppo_mini_batch_size": ("rl.practice.minibatches",),
    "r": ("adapter.rank",),
    "resume_from_checkpoint": ("resume",),
    "rollout_n": ("rl.practice.group_size",),
    "target_modules": ("adapter.targets",),
    "torch_dtype": ("dtype",),
    "total_timesteps": ("rl.practice.iterations",),
    "train_batch_size": ("train.batch_tokens", "rl.practice.tasks_per_iteration"),
    "use_peft": ("adapter.kind",),
    "warmup_ratio": ("train.warmup_steps",),
}
_ELSEWHERE = {
    "beta": "the weight of a divergence from the first policy is rl.kl",
    "push_to_hub": "use: evolvent publish RUN",
    "report_to": "use: evolvent runs track RUN",
    "wandb_project": "use: evolvent runs track RUN",
    "use_vllm": "use --endpoint URL --dialect vllm",
}


def find_own_name(name: str, settings: Collection[str]) -> str | None:
    """Returns the hint for a foreign name: the setting that it has here, or where its work is done; None: unknown.

    Args:
        name: as it was written, without a path.
        settings: dotted paths of the command.

    >>> find_own_name("learning_rate", ["policy", "train.lr"])
    "here it is 'train.lr'"
    """
    name = name.lower().replace("-", "_")
    for own_name in _OWN_NAMES.get(name, ()):
        if own_name in settings:
            return f"here it is {own_name!r}"
    return _ELSEWHERE.get(name)
