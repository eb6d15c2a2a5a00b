# Train on my prompts with my reward. shows: iteration 2/2: mean return
import evolvent as ev


def reward(completion, answer):
    return float(answer in completion)


policy = ev.train_grpo("xs", "questions.jsonl", rewards=reward, iterations=2, max_tokens=4)
policy.save("model")
