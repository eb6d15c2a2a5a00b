# Evaluate a model behind an OpenAI-compatible endpoint on my data, with an interval. shows: 95 %
evolvent bench agent-eval --agent endpoint --endpoint "$URL" --model model --worlds crafting --limit 2
