"""What training runs share: commands, checks before the start, learning rates, non-finite values."""
