"""Chat templates: is a conversation that is written turn by turn what the template writes, token for token?

The templates are those that TRL ships, rendered by transformers, with three tokenizers: byte-level ones with merges
that split texts as Qwen and GPT-2 do, and the SentencePiece vocabulary of Mistral 7B (from mistral-common).
The reference is `apply_chat_template` alone: the whole conversation rendered, and the whole text encoded. A template
counts as exact when all of these agree for every conversation tried: the prompt of each turn; a prompt, its reply and
the turn behind it; a whole conversation of demonstrations; and each reply behind the past as the template renders it.

    python -m benchmarks.templates --json
"""

from __future__ import annotations

import copy
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.reporting import RESULTS, about, command_line, finish, show
from evolvent.errors import EvolventError
from evolvent.messages import Message
from evolvent.models.dialects import Chat

ROOT = Path(__file__).parents[1]
_MARKS = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<[｜|][^<>]{1,30}[｜|]>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]|</?think>"
    r"|<\|?(?:turn|channel|tool|tool_call|tool_response)\|?>|<end_of_utterance>|</?tool_call>|</?tool_response>|\[gMASK\]|<sop>"
)
CONVERSATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("Where is it?", "look", "A key, 3 doors.\n\n  A lamp.", "take key 12")),
    ("Be brief.", ("Go north", "The door", "Go  south \n", "42", "You see: [x]", "say 'no'")),
)


def template_names() -> list[str]:
    """Lists the files of TRL's chat templates."""
    return sorted(path.name for path in _folder().glob("*.jinja"))


def template_text(name: str) -> str:
    """Returns the text of a template."""
    return (_folder() / name).read_text(encoding="utf-8")


def _folder() -> Path:
    import trl

    return Path(trl.__file__).parent / "chat_templates"


@cache
def _control_marks() -> tuple[str, ...]:
    """Lists the control tokens of all templates."""
    marks = dict.fromkeys(mark for name in template_names() for mark in _MARKS.findall(template_text(name)))
    return ("<bos>", *(mark for mark in marks if mark != "<bos>"), "<|endoftext|>")


# How texts are split before merges: as GPT-2 and SmolLM2 do it, and as Qwen and Llama 3 do it.
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def _train_merges(is_gpt2: bool) -> str:
    """Trains 2,000 merges on a page of this repository; returns the tokenizer as JSON."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated")
    core.pre_tokenizer = (
        pre_tokenizers.ByteLevel(add_prefix_space=False)
        if is_gpt2
        else pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2_256, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    core.train_from_iterator([text, "\n\n" * 50, "assistant\n\n user\n" * 50], trainer)
    return str(core.to_str())


@cache
def _byte_level_base(is_gpt2: bool) -> Any:
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer.from_str(_train_merges(is_gpt2))
    core.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in _control_marks()])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<bos>", eos_token="<|endoftext|>")


def byte_level_tokenizer(template: str, *, is_gpt2: bool = False) -> Any:
    """Returns a byte-level tokenizer with a template and the control tokens of all templates."""
    tokenizer = copy.copy(_byte_level_base(is_gpt2))
    tokenizer.chat_template = template
    return tokenizer


@cache
def _sentencepiece_base() -> Any:
    import mistral_common
    from tokenizers import AddedToken
    from transformers import LlamaTokenizer

    source = Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.model").write_bytes(source.read_bytes())
        tokenizer = LlamaTokenizer.from_pretrained(folder)
    marks = [AddedToken(mark, special=True, normalized=False) for mark in _control_marks()]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    tokenizer.bos_token, tokenizer.eos_token = "<bos>", "<|endoftext|>"
    return tokenizer


def sentencepiece_tokenizer(template: str) -> Any:
    """Returns Mistral 7B's SentencePiece tokenizer with a template and the control tokens of all templates."""
    tokenizer = copy.copy(_sentencepiece_base())
    tokenizer.chat_template = template
    return tokenizer


TOKENIZERS: dict[str, Callable[[str], Any]] = {
    "byte-level": byte_level_tokenizer,
    "byte-level of GPT-2": partial(byte_level_tokenizer, is_gpt2=True),
    "SentencePiece": sentencepiece_tokenizer,
}


class Reference:
    """The template as transformers renders it, and nothing else."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.parts = False
        self.parts = "probe-content" not in self._safe([("user", "probe-content")])
        self.system = "probe-content" in self._safe([("system", "probe-content"), ("user", "hi")])

    def _safe(self, turns: Sequence[tuple[str, str]]) -> str:
        from jinja2 import TemplateError

        try:
            return self.render(turns, prompt=True)
        except (TemplateError, TypeError):
            return ""

    def turns(self, system: str, texts: Sequence[str]) -> list[tuple[str, str]]:
        rows = [("user" if number % 2 == 0 else "assistant", text) for number, text in enumerate(texts)]
        if system and self.system:
            return [("system", system), *rows]
        return [("user", f"{system}\n\n{rows[0][1]}"), *rows[1:]] if system else rows

    def render(self, turns: Sequence[tuple[str, str]], *, prompt: bool) -> str:
        rows = [
            {"role": role, "content": [{"type": "text", "text": text}] if self.parts else text} for role, text in turns
        ]
        return str(self.tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=prompt))

    def close_thought(self, whole: str, prompt: str) -> str:
        """Returns a rendering that closes a thought: one that the prompt opens and the template leaves out.

        The thought ends as the template ends one, or as DeepSeek-R1 does where the template never writes one.
        """
        if whole.startswith(prompt) or not prompt.rstrip().endswith("<think>"):
            return whole
        reply = {"role": "assistant", "content": "probe-content", "reasoning_content": "probe-thought"}
        rows = [{"role": "user", "content": "hi"}, reply]
        thoughtful = str(self.tokenizer.apply_chat_template(rows, tokenize=False))
        match = re.search(r"probe-thought(.*)probe-content", thoughtful, re.DOTALL)
        base = prompt[: prompt.rindex("<think>")]
        rest = whole.removeprefix(base).removeprefix("<think></think>")
        return prompt + (match[1] if match else "\n</think>\n\n") + rest

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def differences(tokenizer: Any) -> Iterator[str]:
    """Yields where a dialect differs from its template; raises EvolventError where it refuses the template."""
    chat, reference = Chat(tokenizer), Reference(tokenizer)
    for system, texts in CONVERSATIONS:
        turns = reference.turns(system, texts)
        messages = [Message(role, text) for role, text in turns]
        offset = len(turns) - len(texts)
        written = chat.open(system, texts[0])
        for number in range(1, len(texts), 2):
            past, now = turns[: offset + number], turns[: offset + number + 1]
            prompt_text, now_text = reference.render(past, prompt=True), reference.render(now, prompt=False)
            prompt = reference.encode(prompt_text)
            rendered = chat.template.prompt(messages[: offset + number])
            tail = tokenizer.decode(prompt[len(rendered) :])
            if prompt[: len(rendered)] != rendered or tail.strip() or len(prompt) - len(rendered) > 1:
                yield f"the prompt of turn {number}"
            if number == 1 and written != rendered:
                yield "the first prompt"
            written = written + chat.action(texts[number])
            expected = reference.encode(reference.close_thought(now_text, prompt_text))
            exchange = chat.template.exchanges(messages[: offset + number + 1])[-1]
            if not _equal(exchange.ids, expected, chat, tokenizer):
                yield f"reply {number} behind the rendered past"
            reply = exchange.ids[exchange.replies[0].start : exchange.replies[0].end]
            if chat.read_reply(reply).text != texts[number].strip():
                yield f"reply {number} read back: {chat.read_reply(reply)}"
            is_comparable = chat.template.extends or number == 1
            if is_comparable and not _equal(written, expected, chat, tokenizer):
                yield f"turns up to reply {number}"
            conversation = chat.template.conversation(messages[: offset + number + 1])
            if conversation.ids != written:
                yield f"a conversation up to reply {number} and its turns"
            if number + 1 < len(texts):
                written = written + chat.turn(texts[number + 1], stopped=True)


def _equal(ids: list[int], whole: list[int], chat: Chat, tokenizer: Any) -> bool:
    if ids[:-1] == whole and ids[-1] in chat.stop_ids:
        return True  # the next role's mark ends a reply
    rest = tokenizer.decode(whole[len(ids) :], skip_special_tokens=True)
    return whole[: len(ids)] == ids and not rest.strip()  # a finished conversation may end by more than one mark


def examine(kind: str, name: str) -> tuple[str, str]:
    """Tries one template with one kind of tokenizer; returns "exact", "wrong" or "refused", and why."""
    tokenizer = TOKENIZERS[kind](template_text(name))
    try:
        found = list(differences(tokenizer))
    except EvolventError as error:
        return "refused", str(error)
    return ("wrong", "; ".join(found)) if found else ("exact", "")


def main(argv: Sequence[str] | None = None) -> int:
    """Tries every template; prints a table, or one JSON object."""
    parser = command_line("templates", __doc__, quick="every sixth template", save=RESULTS / "templates.json")
    options = parser.parse_args(argv)
    names = template_names()[:: 6 if options.quick else 1]
    rows = {(kind, name): examine(kind, name) for kind in TOKENIZERS for name in names}
    verdicts = [verdict for verdict, _ in rows.values()]
    figures: dict[str, Any] = {
        "benchmark": "templates",
        "templates": len(rows),
        **{verdict: verdicts.count(verdict) for verdict in ("exact", "refused", "wrong")},
        "tokenizers": list(TOKENIZERS),
        "not_exact": {f"{kind}: {name}": why for (kind, name), (verdict, why) in rows.items() if verdict != "exact"},
        **about("trl", "transformers", "tokenizers", "mistral-common", "sentencepiece"),
    }
    show(figures, without=("versions", "machine"))
    finish(figures, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
