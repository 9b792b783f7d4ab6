"""Heads trained on the cached token states of a frozen encoder."""
