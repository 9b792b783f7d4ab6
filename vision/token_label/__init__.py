"""Token labeling (arXiv:2104.10858): label maps, their files, and how they follow an image to its patches."""
