"""What a test needs that a machine may lack."""

import os
import subprocess

import pytest


def need(found: bool, what: str) -> None:
    """Skips a test where a tool is absent, and fails it where skips are failures (TESTS_MUST_NOT_SKIP=1)."""
    if not found:
        if os.environ.get("TESTS_MUST_NOT_SKIP") == "1":
            pytest.fail(what)
        pytest.skip(what)


def in_namespaces(*kinds: str) -> list[str]:
    """What begins a command in namespaces of its own, by a user without rights; some systems forbid it."""
    inside = ["unshare", "--user", "--map-root-user", *kinds]
    allowed = subprocess.run([*inside, "true"], capture_output=True, check=False).returncode == 0
    need(allowed, "users may not make namespaces here")
    return inside
