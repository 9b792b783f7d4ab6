"""Accuracy of classification heads on frozen encoders, compared over data sets, seeds and numbers of labels."""
