"""Team worlds: environments of several agents with one shared reward, vectorized over episodes and agents."""
