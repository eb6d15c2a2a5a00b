#!/bin/sh
# reasoning-gym 0.1.25: coin_flip gives full marks to the first digits of a probability, the digit 0 included.
#
# The questions ask for a probability. A text that is not within .0001 of it is paid the share of the characters that
# agree from the left, of the shorter text. So every beginning of the right text is paid in full: 0.2 for 0.234375, and
# 0 for every probability that begins with it.
#
# Seen with Python 3.11, reasoning-gym 0.1.25:
#   What is the probability of getting exactly 2 heads in 6 fair coin flips?
#   0.234375: 1.0, 0.2: 1.0, 0: 1.0, 0.3: 0.6666666666666666
#   0 in answer to 50 questions: mean score 0.92
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet "reasoning-gym==0.1.25"
"$folder/venv/bin/python" - <<'PYTHON'
import reasoning_gym

data = reasoning_gym.create_dataset("coin_flip", size=1, seed=3)
entry = data[0]
assert entry["answer"] == "0.234375", "the question is another one now"
scores = {text: data.score_answer(text, entry) for text in ("0.234375", "0.2", "0", "0.3")}
print(entry["question"])
print(", ".join(f"{text}: {score}" for text, score in scores.items()))
assert scores["0.2"] == scores["0"] == 1.0 > scores["0.3"], "the beginning is not enough now"
many = reasoning_gym.create_dataset("coin_flip", size=50, seed=0)
mean = sum(many.score_answer("0", entry) for entry in many) / len(many)
print(f"0 in answer to {len(many)} questions: mean score {mean}")
assert mean > 0.9, "0 is not enough now"
PYTHON
