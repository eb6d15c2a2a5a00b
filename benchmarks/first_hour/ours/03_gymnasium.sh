# Solve CartPole with PPO. shows: success \d
evolvent train rl --method ppo --worlds gymnasium:CartPole-v1 --rl.iterations 4
