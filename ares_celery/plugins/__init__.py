"""Extension points."""
