# inspect_ai. shows: stderr
import os

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

os.environ |= {"LOCAL_BASE_URL": os.environ["URL"], "LOCAL_API_KEY": "unused"}
dataset = json_dataset("questions.jsonl", FieldSpec(input="prompt", target="answer"))
task = Task(dataset, solver=generate(), scorer=includes())
(log,) = evaluate(task, model="openai-api/local/smollm2", max_tokens=4)
print(log.results.scores[0].metrics)
