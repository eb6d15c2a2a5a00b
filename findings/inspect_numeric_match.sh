#!/bin/sh
# inspect-ai 0.3.285: match(numeric=True) compares five significant digits, so that 1048600 is graded as 2^20.
#
# The scorer is documented to strip currency symbols and separators "before numbers are normalized and compared". To
# normalize, it prints both numbers with five significant digits (format(number, ".5g")) and compares the texts. Whole
# numbers from 100,000 on are cut, at every location. A model that answers sums wrong in the last digits scores in full,
# where pattern() with the same answers scores 0. An error in the fifth digit or before it is found.
#
# Seen with Python 3.11, inspect-ai 0.3.285 (target; answer; match; exact comparison of the whole numbers):
#   604800; 604801; C; I
#   1048576; 1,048,600; C; I
#   246912; 246910; C; I
#   86399913600; 86400000000; C; I
#   604800; 604900; I; I
#   99999; 99998; I; I
#   604800; 604,800.00; C; C
#   accuracy of four wrong answers: match 1.0, pattern 0.0
# Fails if that changes. evolvent compares whole numbers exactly.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet "inspect-ai==0.3.285"
cd "$folder"
venv/bin/python - <<'PYTHON'
from fractions import Fraction

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import match, pattern


def grade(pairs, scorer):
    """Returns the grades of answers to their targets, and the accuracy."""
    samples = [Sample(input="Say a number.", target=target) for target, _ in pairs]
    outputs = [ModelOutput.from_content("mockllm/model", f"The answer is {answer}") for _, answer in pairs]
    for output in outputs:
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # or they are counted, with a download
    model = get_model("mockllm/model", custom_outputs=outputs)
    settings = {"display": "none", "log_dir": "logs", "max_samples": 1, "max_connections": 1}
    (log,) = eval(Task(dataset=samples, scorer=scorer), model=model, **settings)
    assert log.status == "success"
    for sample, (_, answer) in zip(log.samples, pairs, strict=True):
        assert sample.output.completion.endswith(f" {answer}")
    grades = [next(iter(sample.scores.values())).value for sample in log.samples]
    return grades, log.results.scores[0].metrics["accuracy"].value


WRONG = [("604800", "604801"), ("1048576", "1,048,600"), ("246912", "246910"), ("86399913600", "86400000000")]
FOUND = [("604800", "604900"), ("99999", "99998"), ("604800", "604,800.00")]
grades, _ = grade(WRONG + FOUND, match(numeric=True))
exact = ["C" if Fraction(target) == Fraction(answer.replace(",", "")) else "I" for target, answer in WRONG + FOUND]
for (target, answer), of_match, of_numbers in zip(WRONG + FOUND, grades, exact, strict=True):
    print(f"{target}; {answer}; {of_match}; {of_numbers}")
assert exact == list("IIIIIIC"), "the table is wrong"
assert grades == list("CCCCIIC"), "it compares otherwise now"
accuracy = grade(WRONG, match(numeric=True))[1], grade(WRONG, pattern(r"([\d,.]+)$"))[1]
print(f"accuracy of four wrong answers: match {accuracy[0]}, pattern {accuracy[1]}")
assert accuracy == (1.0, 0.0), "it scores otherwise now"
PYTHON
