# Import trajectories in AgentGym's form and learn from them. shows: loss
evolvent runs import agenttraj.json --to runs/imported
evolvent train sft runs/imported --policy smollm2 --adapter.kind lora --max_steps 2
