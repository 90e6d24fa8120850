"""The systems' config files: only exports, sourced cleanly, and every export has a reader."""

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = sorted(REPOSITORY.glob("config_*.sh"))
# What Open MPI, NCCL and Paddle read themselves: a parameter is real where its name is among those they document.
LIBRARIES = {
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "OMPI_MCA_pml",
    "OMPI_MCA_btl",
    "OMPI_MCA_btl_tcp_if_exclude",
    "FLAGS_new_executor_serial_run",  # of harness.tune
    "FLAGS_conv_workspace_size_limit",
    "FLAGS_cudnn_exhaustive_search",
    "FLAGS_cudnn_batchnorm_spatial_persistent",
}


def exports(config: Path, **environment: str) -> dict[str, str]:
    """What a config file adds to an environment."""
    script = f'set -euo pipefail; cd "{REPOSITORY}"; source "{config.name}"; env -0'
    done = subprocess.run(
        ["env", "-i", *(f"{k}={v}" for k, v in environment.items()), "PATH=/usr/bin:/bin", "bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found = dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)
    return {name: value for name, value in found.items() if name not in ("PATH", "PWD", "OLDPWD", "SHLVL", "_")}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_config_only_exports_and_opens_with_its_command(config: Path) -> None:
    lines = config.read_text().splitlines()
    assert lines[0] == "# shellcheck shell=bash"
    assert "DGXSYSTEM=" in lines[1] or "./run_and_time.sh" in lines[1]
    assert lines[2].startswith("# Throughput to expect:")
    code = [line for line in lines if line and not line.startswith("#")]
    assert all(re.match(r"export [A-Za-z_]+=|source ", line) for line in code), code


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_export_has_a_reader_and_yields_to_the_user(config: Path) -> None:
    fields = {name.upper() for name in re.findall(r"^    (\w+): (?:str|int) = _var", _text("harness/env.py"), re.M)}
    for name in exports(config):
        container = name.startswith("CONT_") and f"${{{name}" in _text("launch/docker_node.sh")
        assert name in fields or name in LIBRARIES or container, f"{name} has no reader"
        assert exports(config, **{name: "7"})[name] == "7"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_the_name_says_the_nodes(config: Path) -> None:
    found = re.fullmatch(r"config_(?:(\d+)x)?(\w+)", config.stem)
    assert found
    values = exports(config)
    assert values["DGXNNODES"] == (found[1] or "1")
    numa = values.get("RANK_NUMA", "")
    assert numa == "" or len(numa.split(",")) == int(values["DGXNGPU"])


def test_the_systems_of_the_reports_are_there() -> None:
    systems = {config.stem.removeprefix("config_") for config in CONFIGS}
    assert systems >= {
        "CPU",
        "2xCPU",
        "4xCPU",
        *(f"{n}{s}" for n in ("", "2x", "4x", "8x") for s in ("DGX1", "DGXA100")),
    }


def _text(path: str) -> str:
    return (REPOSITORY / path).read_text()
