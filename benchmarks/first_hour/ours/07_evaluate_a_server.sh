# Evaluate a model behind an OpenAI-compatible endpoint in a world, with an interval. shows: 95 %
evolvent bench agent-eval --agent endpoint --endpoint "$URL" --model smollm2 --worlds crafting --limit 2 --max_tokens 32
