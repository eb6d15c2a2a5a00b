"""An agent with a tool, written with the `openai` package: python tool_agent.py URL MODEL [EPISODES]."""

import json
import sys

import openai

PRICES = {"tea": "4", "soup": "9", "bread": "2"}
PARAMETERS = {"type": "object", "properties": {"of": {"enum": list(PRICES)}}, "required": ["of"]}
TOOLS = [{"type": "function", "function": {"name": "price", "parameters": PARAMETERS}}]


def play(client: openai.OpenAI, model: str, dish: str) -> float:
    """Plays one episode and posts its reward: 1 if the price of this dish was looked up."""
    messages = [{"role": "user", "content": f"price of {dish}"}]
    reward = 0.0
    for _ in range(2):
        reply = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, max_tokens=32)
        message = reply.choices[0].message
        if not message.tool_calls:
            break
        messages.append(message)
        for call in message.tool_calls:
            asked = str(json.loads(call.function.arguments).get("of"))  # a model may write a list
            reward = max(reward, float(asked == dish))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": PRICES.get(asked, "none")})
    client.post(f"/sessions/{reply.id}/reward", body={"reward": reward}, cast_to=object)
    return reward


if __name__ == "__main__":
    with openai.OpenAI(base_url=sys.argv[1], api_key="unused") as endpoint:
        rewards = [play(endpoint, sys.argv[2], list(PRICES)[n % 3]) for n in range(int((*sys.argv, 24)[3]))]
    print(f"mean reward {sum(rewards) / len(rewards):.2f}")
