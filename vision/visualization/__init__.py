"""What of an image a classifier goes by."""
