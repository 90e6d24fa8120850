"""What a test needs that a machine may lack."""

import os

import pytest


def need(found: bool, what: str) -> None:
    """Skips a test where a tool is absent, and fails it where skips are failures (TESTS_MUST_NOT_SKIP=1)."""
    if not found:
        if os.environ.get("TESTS_MUST_NOT_SKIP") == "1":
            pytest.fail(what)
        pytest.skip(what)
