"""Pages and metrics inside Flower."""
