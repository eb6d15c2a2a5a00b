# Fine-tune a model on conversations. shows: loss
evolvent train sft chats.jsonl --policy smollm2 --adapter.kind lora --max_steps 2
