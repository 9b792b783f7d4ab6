"""Seeing what a classifier sees: attribution, its checks, and plots; what texts and images both need."""
