# verifiers. shows: reward
import asyncio
import os

import verifiers.v1 as vf


class GuessData(vf.TaskData):
    number: str


class Guess(vf.Task[GuessData]):
    @vf.reward
    async def is_won(self, trace) -> float:
        return float(trace.last_reply.strip() == self.data.number)


async def play(agent, number):
    async with agent.interaction(Guess(GuessData(idx=int(number), number=number))) as player:
        turn = await player.turn("guess")
        for _ in range(3):
            reply = turn.last_reply.strip()
            if reply == number:
                break
            turn = await player.turn("higher" if reply < number else "lower")
    return player.trace.reward


async def main():
    client = vf.EvalClientConfig(base_url=os.environ["URL"], api_key_var="NO_KEY")
    config = vf.AgentConfig(
        model="smollm2",
        client=client,
        harness={"id": "null"},
        runtime={"type": "subprocess"},
        sampling={"max_tokens": 8},
    )
    agent = vf.make_agent(config)
    print("reward", sum([await play(agent, str(number)) for number in range(5)]) / 5)


asyncio.run(main())
