#!/bin/sh
# llguidance 1.9.1: a number may equal its exclusive bound if that is whole and the other bound has the same whole part.
#
# A grammar is made of a JSON Schema, as for constrained decoding, and texts are matched against it byte by byte. The
# same texts are judged by jsonschema. Below a maximum of 0.5 the schema `exclusiveMinimum: 0` lets 0 pass; below a
# maximum of 1 or 1.5 it does not. So do 1 above 1 and up to 1.5, and -0 (which JSON reads as 0) from -0.5 to below 0.
# No warning is given. A model that is held to "above 0 and at most 0.5" (a learning rate, a price, a share by which
# something is divided) may answer 0, and the answer does not fit the schema that was to guarantee it.
#
# Seen with Python 3.11, llguidance 1.9.1, jsonschema 4.26.0 (numbers of the schema; texts that pass but do not fit):
#   {"exclusiveMinimum": 0, "maximum": 0.5}: 0
#   {"exclusiveMinimum": 0, "maximum": 1}: none
#   {"exclusiveMinimum": 0, "maximum": 1.5}: none
#   {"exclusiveMinimum": 0, "exclusiveMaximum": 0.01}: 0
#   {"exclusiveMinimum": 1, "maximum": 1.5}: 1
#   {"exclusiveMinimum": 0.5, "maximum": 0.75}: none
#   {"minimum": -0.5, "exclusiveMaximum": 0}: -0
#   {"minimum": -1.5, "exclusiveMaximum": -1}: -1
#   grammar warnings: 0
# Fails if that changes. `evolvent serve` moves such bounds into the range, so that its answers fit.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet "llguidance==1.9.1" "jsonschema==4.26.0"
"$folder/venv/bin/python" - <<'PYTHON'
import json

import jsonschema
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper


class Bytes:
    """A vocabulary of the 256 bytes and an end."""

    eos_token_id, bos_token_id, special_token_ids = 256, None, [256]
    tokens = [bytes([byte]) for byte in range(256)] + [b"<end>"]

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


tokenizer = LLTokenizer(TokenizerWrapper(Bytes()), n_vocab=257, slices=[])
TEXTS = "0 -0 0.0 0.001 0.1 0.5 0.6 -0.1 -0.5 1 1.0 1.2 1.5 -1 -1.0 -1.2 2".split()
SCHEMAS = {
    '{"exclusiveMinimum": 0, "maximum": 0.5}': ["0"],
    '{"exclusiveMinimum": 0, "maximum": 1}': [],
    '{"exclusiveMinimum": 0, "maximum": 1.5}': [],
    '{"exclusiveMinimum": 0, "exclusiveMaximum": 0.01}': ["0"],
    '{"exclusiveMinimum": 1, "maximum": 1.5}': ["1"],
    '{"exclusiveMinimum": 0.5, "maximum": 0.75}': [],
    '{"minimum": -0.5, "exclusiveMaximum": 0}': ["-0"],
    '{"minimum": -1.5, "exclusiveMaximum": -1}': ["-1"],
}
warnings = 0
for text, expected in SCHEMAS.items():
    schema = {"type": "number", **json.loads(text)}
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    is_wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, tokenizer)
    warnings += is_wrong + len(messages)
    passed = []
    for number in TEXTS:
        matcher = LLMatcher(tokenizer, grammar)
        if matcher.try_consume_tokens(list(number.encode())) == len(number) and matcher.is_accepting():
            passed.append(number)
    fits = jsonschema.Draft202012Validator(schema).is_valid
    wrong = [number for number in passed if not fits(json.loads(number))]
    assert any(fits(json.loads(number)) for number in passed), "the grammar lets nothing pass"
    print(f"{text}: {', '.join(wrong) or 'none'}")
    assert wrong == expected, "the bound is read otherwise now"
print(f"grammar warnings: {warnings}")
assert warnings == 0, "a warning is given now"
PYTHON
