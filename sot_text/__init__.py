"""Text input: GLUE files, labels, metrics, dictionaries, WordPiece, pretrained weights, and a small demo corpus."""
