"""The page cache is flushed before a timed run, so that the first epoch reads from the disk."""

from __future__ import annotations

import os
from pathlib import Path

from runlog.schema import CacheState

DROP = Path("/proc/sys/vm/drop_caches")


def clear(node: str, *, wanted: bool, done_by_launcher: str) -> CacheState:
    """Flushes this node's page cache; what was done, or why not."""
    if done_by_launcher:
        return CacheState(node=node, status="done", by=done_by_launcher)
    if not wanted:
        return CacheState(node=node, status="skipped", reason="CLEAR_CACHES=0")
    os.sync()
    try:
        DROP.write_text("3\n")
    except OSError as error:
        reason = "not root" if os.geteuid() else f"{DROP}: {error.strerror}"
        return CacheState(node=node, status="skipped", reason=reason)
    return CacheState(node=node, status="done", by="rank")
