"""Evaluation: metrics, trained models, and what a dry run prints."""
