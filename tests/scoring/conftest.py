"""The commands of `scoring`, as JSON, and the formats of logs."""

import json
from typing import Any

import pytest

from tests.scoring import samples
from tests.scoring.command import Command, scoring


@pytest.fixture
def command() -> Command:
    """Runs `python -m scoring ... --json`: exit code, parsed output, standard error."""

    def call(*arguments: object) -> tuple[int, dict[str, Any], str]:
        code, out, error = scoring(*arguments, "--json")
        return code, json.loads(out or "{}"), error

    return call


@pytest.fixture(params=sorted(samples.WRITERS))
def name(request: pytest.FixtureRequest) -> str:
    """Each format of which there are samples."""
    return str(request.param)
