"""The image, and private networks for its containers."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import containers
from tests.cluster.containers import need, run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def image() -> str:
    """The run image of this checkout, built by the project's own scripts; test_image.py builds it by BuildKit too."""
    found = shutil.which("docker") is not None and run("docker", "info", check=False).returncode == 0
    need(found, "Docker is absent or its daemon does not answer")
    if run("docker", "image", "inspect", "debian:bookworm-slim", check=False).returncode != 0:
        need(shutil.which("debootstrap") is not None and os.geteuid() == 0, "debootstrap and root make the base image")
        run("launch/base_image.sh", timeout_s=300)
    containers.build_image(containers.IMAGE, DOCKER_BUILDKIT="0")
    return containers.IMAGE


@pytest.fixture
def nodes(image: str, tmp_path: Path) -> Iterator[containers.Nodes]:
    """A private network for containers of the image."""
    need(os.geteuid() == 0, "root gives files to the containers' user")
    tmp_path.chmod(0o755)
    made = containers.Nodes(tmp_path, f"job{os.getpid()}-{time.time_ns() % 10**9}")
    yield made
    made.close()
