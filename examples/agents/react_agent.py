"""A ReAct loop over plain HTTP that walks to a door in a row of rooms: python react_agent.py URL MODEL [EPISODES]."""

import sys
import uuid

import httpx2


def play(http: httpx2.Client, model: str, door: str) -> float:
    """Plays one episode and posts its reward: 1 if the door was reached within three actions."""
    session, room, reward = uuid.uuid4().hex, 0, 0.0
    headers = {"x-evolvent-session": session, "x-evolvent-task": door}
    messages = [{"role": "user", "content": f"door is {door}"}]
    for _ in range(3):
        body = {"model": model, "messages": messages, "max_tokens": 4}
        reply = http.post("/chat/completions", json=body, headers=headers).raise_for_status().json()
        action = reply["choices"][0]["message"]["content"]
        room += {"go right": 1, "go left": -1}.get(action, 0)
        if room == (2 if door.startswith("right") else -2):
            reward = 1.0
            break
        messages.append({"role": "assistant", "content": action})
        messages.append({"role": "user", "content": f"room ; door is {door}"})
    http.post(f"/sessions/{session}/reward", json={"reward": reward}).raise_for_status()
    return reward


if __name__ == "__main__":
    with httpx2.Client(base_url=sys.argv[1], timeout=60) as endpoint:
        rewards = [play(endpoint, sys.argv[2], ("left", "right")[n % 2]) for n in range(int((*sys.argv, 24)[3]))]
    print(f"mean reward {sum(rewards) / len(rewards):.2f}")
