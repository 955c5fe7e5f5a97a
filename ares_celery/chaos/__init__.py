"""Disturbances on purpose: what they look like where an agent meets them."""
