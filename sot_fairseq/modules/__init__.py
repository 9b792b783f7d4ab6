"""Encoder modules that fairseq lacks."""
