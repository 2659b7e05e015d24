"""The memory of Spark's Python workers, which live for many tasks."""

from __future__ import annotations

import gc
from functools import cache

from aerobee_store.malloc import keep_freed_memory


@cache
def prepare_worker() -> None:
    """Make the tasks of this process cheap; called by each task, done by the first one.

    Otherwise each copy of a broker's frame costs a thousand page faults, and after every task Spark collects garbage,
    for which Python visits all objects of all modules: 12 ms.
    """
    keep_freed_memory()
    gc.collect()
    gc.freeze()
