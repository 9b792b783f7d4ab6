"""Speed, memory and accuracy of the toolkit beside its peers: each command prints its tables."""

import os
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is imported: its profiler keeps quiet

DEMO_CORPUS = Path(__file__).parents[1] / "glue_scripts" / "demo_corpus"
