"""The image, and private networks for its containers."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import containers
from tests.cluster.containers import Rootless, need, run


def pytest_configure() -> None:
    """Has a run that is told to end remove its containers, users and SLURM first, as one that is interrupted does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


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
        run("launch/base_image.sh")
    containers.build_image(containers.IMAGE, DOCKER_BUILDKIT="0")
    containers.build_standing_in()
    return containers.IMAGE


@pytest.fixture
def nodes(image: str, tmp_path: Path) -> Iterator[containers.Nodes]:
    """A private network for containers of the image."""
    need(os.geteuid() == 0, "root gives files to the containers' user")
    tmp_path.chmod(0o755)
    made = containers.Nodes(tmp_path, f"job{os.getpid()}-{time.time_ns() % 10**9}")
    yield made
    made.close()


@pytest.fixture(scope="session", autouse=True)
def podman_user(image: str, request: pytest.FixtureRequest) -> Iterator[Rootless | None]:
    """A user of Podman without root, where a test asks for one: its images are loaded beside the tests before."""
    if not any("rootless" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield None
        return
    tools = ("podman", "slirp4netns", "newuidmap", "catatonit")
    found = all(shutil.which(name) for name in tools) and os.geteuid() == 0
    need(found, f"{', '.join(tools)} run containers without root, and root makes the user who does")
    tun = Path("/dev/net/tun")
    mode = tun.stat().st_mode
    tun.chmod(0o666)  # as elsewhere: slirp4netns, the network of containers without root, opens it
    made = Rootless()
    try:
        made.begin()
        yield made
    finally:
        made.close()
        tun.chmod(mode)
