"""The task that fine-tunes them."""
