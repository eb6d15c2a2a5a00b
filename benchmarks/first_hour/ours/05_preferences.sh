# Learn from preferences. shows: loss
evolvent train dpo pairs.jsonl --policy smollm2 --adapter.kind lora --max_steps 2
