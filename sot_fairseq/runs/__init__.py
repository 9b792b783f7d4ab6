"""What training runs share: commands, checks before training starts, learning rates."""
