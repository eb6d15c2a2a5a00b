"""Small policies that have learned by heart what to answer to a few requests with tools."""

from __future__ import annotations

import torch

import evolvent as ev
from evolvent.models.dialects import Chat
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config
from tests.models.test_dialects import byte_tokenizer

# In the way of Qwen's templates, shortened: tools in the system's turn, calls in tags, answers of tools as a user's.
HERMES = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool.function | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n{{ m.content }}"
    '{% for c in m.tool_calls or [] %}<tool_call>\n{"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}}\n</tool_call>\n{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "see",
        "parameters": {
            "type": "object",
            "properties": {"at": {"enum": ["door", "key"]}},
            "required": ["at"],
        },
    },
}
TAKE = {
    "type": "function",
    "function": {
        "name": "take",
        "description": "get",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}
WORDS = [
    "look",
    "take",
    "see",
    "get",
    "at",
    "what",
    "user",
    "assistant",
    "tool",
    "door",
    "key",
    "a",
    "open",
    "go",
    "string",
    "none",
    "here",
    "is",
    "which",
    *'()[]{}=",:?|.',
    "'",
]


def word_policy(context=128, seed=4):
    """Over whole words, untrained."""
    return ev.tiny_policy(WORDS, context=context, seed=seed)


def hermes_policy(context=1024, seed=5):
    """Over bytes, with a chat template that shows tools; untrained."""
    tokenizer = byte_tokenizer(HERMES, ["<|im_start|>", "<|im_end|>"])
    return Policy(init_tiny(tiny_config(len(tokenizer), context=context), seed=seed), tokenizer, Chat(tokenizer))


def taught(policy, pairs, *, updates):
    """The policy after it has learned to write, after each prompt, its answer: pairs of token ids."""
    model, device = policy.model, next(policy.model.parameters()).device
    longest = max(len(prompt) + len(answer) for prompt, answer in pairs)
    ids = torch.zeros((len(pairs), longest), dtype=torch.long, device=device)
    weights = torch.zeros((len(pairs), longest), device=device)
    for row, (prompt, answer) in enumerate(pairs):
        ids[row, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
        weights[row, len(prompt) : len(prompt) + len(answer)] = 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0)
    model.train()
    for _ in range(updates):
        logits = model(input_ids=ids).logits[:, :-1].float()
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        ((losses * weights[:, 1:]).sum() / weights.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    return policy
