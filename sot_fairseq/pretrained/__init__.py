"""Pretrained encoders: where they are found and which architecture they have."""
