"""Speed, memory and accuracy of the toolkit beside its peers: each command prints its tables."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is imported: its profiler keeps quiet
