"""``ares demo``: a fleet of agents that outlives kill -9, with a checker that reads everything back."""
