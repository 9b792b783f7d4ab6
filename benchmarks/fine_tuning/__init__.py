"""Accuracy of classification heads when the encoder is fine-tuned, paired over seeds."""
