"""Faults that are real."""
