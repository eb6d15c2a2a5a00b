# Let the model call my function while it trains. shows: iteration 1/1
import evolvent as ev


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


ev.train_grpo("smollm2", "questions.jsonl", rewards="exact", tools=[add], iterations=1, max_tokens=8)
