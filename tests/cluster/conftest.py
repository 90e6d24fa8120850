"""The image, and private networks for its containers."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import containers
from tests.cluster.containers import need, run

# Options of launch/build_image.sh that this site needs; by default the CA certificates that pip is told to trust.
BUILD_OPTIONS = os.environ.get(
    "IMAGE_BUILD_OPTIONS", f"--ca {ca}" if (ca := os.environ.get("PIP_CERT")) else ""
).split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.xdist_group("cluster"))  # one at a time: they share the machine's cores


@pytest.fixture(scope="session")
def image() -> str:
    """The run image of this checkout, built by the project's own scripts."""
    found = shutil.which("docker") is not None and run("docker", "info", check=False).returncode == 0
    need(found, "Docker is absent or its daemon does not answer")
    if run("docker", "image", "inspect", "debian:bookworm-slim", check=False).returncode != 0:
        need(shutil.which("debootstrap") is not None and os.geteuid() == 0, "debootstrap and root make the base image")
        run("launch/base_image.sh", timeout_s=300)
    run("launch/build_image.sh", "--tag", containers.IMAGE, *BUILD_OPTIONS, timeout_s=1500)
    return containers.IMAGE


@pytest.fixture
def nodes(image: str, tmp_path: Path) -> Iterator[containers.Nodes]:
    """A private network for containers of the image."""
    need(os.geteuid() == 0, "root gives files to the containers' user")
    tmp_path.chmod(0o755)
    made = containers.Nodes(tmp_path, f"job{os.getpid()}-{time.time_ns() % 10**9}")
    yield made
    made.close()
