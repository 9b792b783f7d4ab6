"""Its criterion."""
