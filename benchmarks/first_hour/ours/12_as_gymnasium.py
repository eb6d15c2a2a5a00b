# Use a world in somebody else's loop for Gymnasium. shows: (True|False)
import evolvent as ev

env = ev.worlds.as_gymnasium(ev.Lookup())
observation, info = env.reset(seed=0)
terminated = truncated = False
while not (terminated or truncated):
    observation, reward, terminated, truncated, info = env.step("answer Oslo")
print(info["is_success"])
