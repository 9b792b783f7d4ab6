"""Files of pretrained models: sizes, vocabularies, weight names, fine-tuned classifiers."""
