"""The page cache is flushed before a timed run, so that the first epoch reads from the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

DROP = Path("/proc/sys/vm/drop_caches")


def clear(*, wanted: bool, done_by_launcher: str) -> dict[str, Any]:
    """Flushes this node's page cache; what was done, or why not, as metadata of the log's `cache_clear`."""
    if done_by_launcher:
        return {"status": "done", "by": done_by_launcher}
    if not wanted:
        return {"status": "skipped", "reason": "CLEAR_CACHES=0"}
    os.sync()
    try:
        DROP.write_text("3\n")
    except OSError as error:
        reason = "not root" if os.geteuid() else f"{DROP}: {error.strerror}"
        return {"status": "skipped", "reason": reason}
    return {"status": "done", "by": "rank"}
