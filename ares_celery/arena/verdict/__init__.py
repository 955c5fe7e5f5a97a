"""What the events of the agents say of a run: recoveries, availability, invariants, and a score."""
