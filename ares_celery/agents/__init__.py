"""What a user implements: the contract of an agent, its context, the registry of types."""
