"""Team worlds: environments of several agents with one shared reward, vectorised over episodes and agents."""
