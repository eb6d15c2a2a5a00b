"""A small framework of streaming agents, two of which share a session: python team_agent.py URL MODEL."""

import asyncio
import sys
import uuid

import openai


class Agent:
    def __init__(self, client: openai.AsyncOpenAI, model: str, instructions: str) -> None:
        self.client, self.model, self.instructions = client, model, instructions

    async def run(self, text: str, **names: str) -> str:
        messages = [{"role": "system", "content": self.instructions}, {"role": "user", "content": text}]
        settings = {"model": self.model, "messages": messages, "metadata": names, "max_tokens": 2}
        stream = await self.client.chat.completions.create(stream=True, **settings)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def play(client: openai.AsyncOpenAI, model: str, color: str) -> float:
    """Plays one episode and posts its reward: half for the plan, half for the work."""
    names = {"evolvent_session": uuid.uuid4().hex, "evolvent_task": color}
    plan = await Agent(client, model, "plan").run(color, **names)
    work = await Agent(client, model, "work").run(f"{plan} {color}", **names)
    reward = (plan == "paint") / 2 + (work == color) / 2
    await client.post(f"/sessions/{names['evolvent_session']}/reward", body={"reward": reward}, cast_to=object)
    return reward


async def main(url: str, model: str) -> None:
    async with openai.AsyncOpenAI(base_url=url, api_key="unused") as client:
        rewards = await asyncio.gather(*(play(client, model, color) for color in ("red", "blue") * 4))
    print(f"mean reward {sum(rewards) / len(rewards):.2f}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
