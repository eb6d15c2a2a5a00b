# Take the best of eight replies by my reward, beside one reply. shows: best_of_n
evolvent search --policy smollm2 --data questions.jsonl --reward my_rewards.py:exact --methods samples,best_of_n --paths 8 --value rollouts --budgets 200 --max_tokens 4 --span_tokens 4
