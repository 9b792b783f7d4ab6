"""Heads trained on the token states of a frozen image model."""
