"""Speed and memory of the toolkit beside its peers: each module prints one table from one run."""
