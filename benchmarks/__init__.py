"""Speed and memory of the toolkit beside its peers: each module prints one table from one run."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is imported: its profiler keeps quiet
