"""The embedded default: a small Llama trained from scratch on a laptop CPU, with a closed vocabulary of words.

Sizes are those of the specification: xs has 170,368 parameters at a vocabulary of 159 words, s has 873,472.
`P = V d + L (4 d^2 + 3 d f + 2 d) + d` with tied embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from evolvent.errors import ConfigError, MissingExtra, unknown_name_problem

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["CONTROL_WORDS", "NO_WORD", "SIZES", "Size", "init_tiny", "tiny_config", "word_tokenizer"]

Size = Literal["xs", "s", "m"]
CONTROL_WORDS: tuple[str, ...] = ("<pad>", "<bos>", "<eos>", "<unk>", "<obs>", "<act>")
NO_WORD = "?"  # how a control token reads that a model wrote where a word belongs; part of every vocabulary
SIZES: dict[str, dict[str, int]] = {
    "xs": {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 192},
    "s": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 384},
    "m": {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 576},
}
# Rotary wavelengths of 6 to some 250 tokens. With the usual base of 10,000 most are longer than any episode: heads that
# look at the token before, which reading a recipe needs, then form late.
ROPE_THETA = 50.0
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %} <act> {{ message['content'] }} {{ eos_token }}"
    "{% elif message['role'] != 'system' %} <obs> {{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %} <act>{% endif %}"
)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("train", "a language model") from error
    return transformers


def tiny_config(vocab: int, size: str = "xs", *, context: int = 256) -> LlamaConfig:
    """Returns a Llama configuration of the embedded sizes.

    Args:
        vocab: words in the vocabulary, control words included.
        size: "xs", "s" or "m".
        context: most tokens of an episode.
    Raises:
        ConfigError: an unknown size.
    """
    if size not in SIZES:
        raise ConfigError([unknown_name_problem("size", size, SIZES)])
    shape = SIZES[size]
    return _transformers().LlamaConfig(
        vocab_size=vocab,
        num_key_value_heads=shape["num_attention_heads"],
        max_position_embeddings=context,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        attn_implementation="sdpa",
        **shape,
    )


def init_tiny(config: LlamaConfig, *, seed: int) -> LlamaForCausalLM:
    """Builds a fresh model: embeddings N(0, .25), other matrices with standard deviation .7 / sqrt(fan_in), norms 1.

    An embedding must stand out from the outputs of the layers, or the model learns late to copy tokens that it
    reads: with .02 crafting is read after about ten times the tokens, with 1 after about three times as many.

    The same seed gives the same weights; the global random state of torch is left as it was.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _transformers().LlamaForCausalLM(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "embed_tokens" in name or "lm_head" in name:
                    weight.normal_(0.0, 0.25)
                elif weight.dim() > 1:
                    weight.normal_(0.0, 0.7 * weight.shape[-1] ** -0.5)
                else:
                    weight.fill_(1.0)
    return model.eval()


def word_tokenizer(vocabulary_words: Sequence[str], *, context: int = 256) -> PreTrainedTokenizerFast:
    """Builds a tokenizer whose tokens are whole words and single punctuation marks, after the control words.

    On its vocabulary, encoding what was decoded is the identity.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    vocabulary: dict[str, int] = {}
    for word in (*CONTROL_WORDS, NO_WORD, *vocabulary_words):
        vocabulary.setdefault(word, len(vocabulary))
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(r"[^\w\s]"), "isolated")]
    )
    tokenizer = _transformers().PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<obs>", "<act>"],
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def read_vocabulary(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Reads the map from word to token id in the tokenizer's own file."""
    return dict(json.loads(tokenizer.backend_tokenizer.to_str())["model"]["vocab"])
