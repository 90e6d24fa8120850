"""The commands of `scoring`, as JSON, and the formats of logs."""

import json
from typing import Any

import pytest

from scoring.__main__ import main
from tests.scoring import samples
from tests.scoring.command import Command


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `python -m scoring ... --json`: exit code, parsed output, standard error."""

    def call(*arguments: object) -> tuple[int, dict[str, Any], str]:
        code = main([*map(str, arguments), "--json"])
        out, error = capsys.readouterr()
        return code, json.loads(out) if out else {}, error

    return call


@pytest.fixture(params=sorted(samples.WRITERS))
def name(request: pytest.FixtureRequest) -> str:
    """Each format of which there are samples."""
    return str(request.param)
