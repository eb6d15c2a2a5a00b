"""A small policy over bytes with a chat template, so that any text has tokens and tokens can be read back."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config

START, END = "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(*, begin: bool = False) -> PreTrainedTokenizerFast:
    """One token a byte; `begin`: it has the habit of putting a begin token first."""
    alphabet = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(word, special=True) for word in (START, END)])
    if begin:
        from tokenizers.processors import TemplateProcessing

        core.post_processor = TemplateProcessing(single=f"{START} $A", special_tokens=[(START, 256)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=START, eos_token=END)
    tokenizer.chat_template = CHATML
    return tokenizer


def byte_policy(*, context: int = 128, seed: int = 0, begin: bool = False) -> Policy:
    """A Llama of width 16 over bytes."""
    tokenizer = byte_tokenizer(begin=begin)
    config = tiny_config(len(tokenizer), context=context)
    config.hidden_size, config.num_hidden_layers, config.intermediate_size = 16, 2, 32
    config.num_attention_heads = config.num_key_value_heads = 2
    config.head_dim = 8
    return Policy(init_tiny(config, seed=seed), tokenizer, dialect_for(tokenizer))
