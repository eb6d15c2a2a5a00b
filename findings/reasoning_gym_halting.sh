#!/bin/sh
# reasoning-gym 0.1.25: game_of_life_halting gives full marks to every text.
#
# The questions ask whether a pattern of the game of life halts, with "True" or "False" as the answer. The scorer compares
# bool(answer) with bool(entry["answer"]). Both are texts, and every text that is not empty is true, "False" included. A
# policy that is trained on this data set is paid for anything it says.
#
# Seen with Python 3.11, reasoning-gym 0.1.25:
#   20 questions, answers False, True
#   the answer: mean score 1.0
#   the opposite: mean score 1.0
#   'I do not know': mean score 1.0
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet "reasoning-gym==0.1.25"
"$folder/venv/bin/python" - <<'PYTHON'
import reasoning_gym

data = reasoning_gym.create_dataset("game_of_life_halting", size=20, seed=0)
answers = {entry["answer"] for entry in data}
print(f"{len(data)} questions, answers {', '.join(sorted(answers))}")
assert answers == {"True", "False"}, "the answers are others now"
replies = {
    "the answer": lambda entry: entry["answer"],
    "the opposite": lambda entry: "False" if entry["answer"] == "True" else "True",
    "'I do not know'": lambda entry: "I do not know",
}
for name, reply in replies.items():
    mean = sum(data.score_answer(reply(entry), entry) for entry in data) / len(data)
    print(f"{name}: mean score {mean}")
    assert mean == 1.0, "the scorer compares the words now"
PYTHON
