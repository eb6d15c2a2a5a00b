# Record episodes of my agent at an endpoint and pay them, for `train rl --from_run`. shows: paid 8
import os

import openai

client = openai.OpenAI(base_url=os.environ["RECORDING_URL"], api_key="unused")
for _ in range(8):
    messages = [{"role": "user", "content": "say red"}]
    reply = client.chat.completions.create(model="smollm2", messages=messages, max_tokens=4)
    reward = {"reward": float("red" in reply.choices[0].message.content)}
    client.post(f"/sessions/{reply.id}/reward", body=reward, cast_to=object)
print("paid", 8)
