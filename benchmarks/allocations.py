"""Peak memory of a step on the CPU, from the record of torch's allocator."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

__all__ = ["peak_of_cpu_allocations"]


def peak_of_cpu_allocations(step: Callable[[], object]) -> int:
    """Most bytes that a step has allocated at once, above what was allocated before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    return max(accumulate(change for _, change in changes))
