"""What every package of the toolkit needs: errors, atomic files, safe reading of checkpoints, downloads, tables."""
