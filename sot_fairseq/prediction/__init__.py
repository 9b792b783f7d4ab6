"""Prediction with a fine-tuned checkpoint."""
