"""Attribution methods, their evaluation, and plots, for text and image classifiers."""
