"""GRPO on your own prompts and reward: a dataset of arithmetic, the number as a reward, and a calculator as a tool.

    python grpo_prompts.py [MODEL [DATA]]

MODEL is a folder, a GGUF file or the name of a model on this machine ("smollm2"); without one a small untrained model
learns a simpler task. DATA is a file of JSON lines, JSON, CSV or Parquet with the columns `prompt` and `answer`.
"""

import sys

import evolvent as ev


def calculate(a: int, operation: str, b: int) -> int:
    """Calculates a op b, where operation is one of + - *."""
    return {"+": a + b, "-": a - b, "*": a * b}[operation]


def brief(completion):
    return 1 / (1 + len(completion.split()))


def share_on_topic(completion, answer):
    return sum(word in answer.split() for word in completion.split()) / 4


model, data = (*sys.argv[1:], None, None)[:2]
if model:
    rows = [{"prompt": f"What is {a} * {b}?", "answer": a * b} for a in range(11, 31) for b in range(11, 31)]
    rewards, tools, settings = ["number", (brief, 0.1)], [calculate], {"iterations": 20}
else:
    topics = {"colors": "red green blue black white", "animals": "cat dog cow horse sheep"}
    things = ["hat", "car", "wall", "door", "kite", "boat", "flag", "lamp", "shirt", "chair", "fence", "cup"]
    rows = [{"prompt": f"{thing}: say only {topic}", "answer": topics[topic]} for topic in topics for thing in things]
    rewards, tools, settings = [share_on_topic], [], {"iterations": 12, "max_tokens": 4}
policy = ev.train_grpo(model or "xs", data or rows, rewards, tools=tools, folder="runs/grpo-prompts", **settings)
