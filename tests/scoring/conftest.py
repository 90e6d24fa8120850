"""The formats of logs."""

import pytest

from tests.scoring import samples


@pytest.fixture(params=sorted(samples.WRITERS))
def name(request: pytest.FixtureRequest) -> str:
    """Each format of which there are samples."""
    return str(request.param)
