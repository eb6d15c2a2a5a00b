# Stable-Baselines3. shows: \d
import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

model = PPO("MlpPolicy", gymnasium.make("CartPole-v1"), seed=0)
model.learn(4096)
print(evaluate_policy(model, gymnasium.make("CartPole-v1"), n_eval_episodes=10))
model.save("cartpole")
