"""The job's variables: parsed once, each with a reader, all in the README."""

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest

from harness import env

VARIABLES = {env.variable(f.name) for f in dataclasses.fields(env.Job)}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BATCHSIZE", "0", "must be at least 1"),
        ("BATCHSIZE", "many", "must be a whole number"),
        ("BATCHSIZE", "1e3", "must be a whole number"),
        ("BATCHSIZE", "9" * 40, "must be a whole number"),
        ("PRECISION", "fp8", "must be one of fp32, tf32"),
        ("MODE", "fast", "must be one of train, throughput"),
        ("NODE_RANK", "1", "must be below DGXNNODES=1"),
        ("PRECISION", "amp_o2", "a CPU has no kernels for it"),
        ("LOSS_SCALE", "128", "only FP16's loss is scaled"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        env.read({name: value})
    assert str(error.value).startswith(f"{name}=")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("precision", "override", "refused"),
    [
        ("fp32", "", False),
        ("fp32", "0", False),
        ("fp32", "1", True),
        ("tf32", "", False),
        ("tf32", "1", False),
        ("tf32", "0", True),
        ("amp_o2", "0", False),
    ],
)
def test_a_precision_is_the_one_that_cudas_libraries_compute_in(precision: str, override: str, refused: bool) -> None:
    environ = {"DEVICE": "gpu", "PRECISION": precision, env.TF32_OVERRIDE: override}
    if refused:
        with pytest.raises(ValueError, match=f"PRECISION={precision}: NVIDIA_TF32_OVERRIDE={override} "):
            env.read(environ)
        return
    job, _ = env.read(environ)
    assert env.runtime(job).get(env.TF32_OVERRIDE) == ("0" if precision == "fp32" else None)


def test_the_log_tells_the_libraries_variables() -> None:
    set_here = {"FLAGS_cudnn_exhaustive_search": "1", "NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "2"}
    assert env.libraries(set_here | {"PATH": "/bin", "JOB_KEY": "secret", "SECRET": "x"}) == set_here


def test_every_value_says_where_it_came_from() -> None:
    job, origins = env.read(
        {
            "DGXSYSTEM": "CPU",
            "BATCHSIZE": "8",
            "NEXP": "5",
            "RESULT_FILE": "r.txt",
            "JOB_FROM_USER": "PATH NEXP",
            "JOB_FROM_CONFIG": "BATCHSIZE",
        }
    )
    assert (job.batchsize, job.nexp) == (8, 5)
    assert origins["BATCHSIZE"] == {"value": 8, "origin": "config_CPU.sh"}
    assert origins["NEXP"] == {"value": 5, "origin": "environment"}
    assert origins["SEED"] == {"value": -1, "origin": "harness/env.py"}
    assert origins["RESULT_FILE"] == {"value": "r.txt", "origin": "launch/trials.sh"}


def test_only_one_file_of_the_training_half_reads_the_environment(repository: Path) -> None:
    readers = subprocess.run(
        ["git", "grep", "-lE", r"os\.(environ|getenv)", "--", "harness", "paddle_*"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert readers == ["harness/env.py"]


def test_every_variable_of_the_job_has_a_reader(repository: Path) -> None:
    code = (
        "\n".join(
            path.read_text()
            for folder in ("harness", "paddle_rn50", "paddle_hrnet", "launch")
            for path in (repository / folder).rglob("*")
            if path.suffix in (".py", ".sh", ".sub")
        )
        + (repository / "run_and_time.sh").read_text()
    )
    for f in dataclasses.fields(env.Job):
        name = env.variable(f.name)
        read_in_python = re.search(rf"\b(job|self)\.{f.name}\b", code)
        read_in_shell = re.search(rf"\$\{{{name}\b|\(\(.*\b{name}\b", code)
        assert read_in_python or read_in_shell, f"nothing reads {name}"


@pytest.mark.parametrize("config", sorted(Path(__file__).parents[2].glob("config_*.sh")), ids=lambda p: p.name)
def test_a_config_only_exports_what_has_a_reader(config: Path) -> None:
    """A config file holds exports and nothing else, sources cleanly, and each of its exports is read somewhere."""
    lines = [line.split("#")[0].strip() for line in config.read_text().splitlines()]
    allowed = re.compile(r'export [A-Z][A-Za-z0-9_]*=("[^"]*"|[^ ;&|]*)|source "?[\w${}/\[\]().: "]*config_\w+\.sh"?')
    for line in filter(None, lines):
        assert allowed.fullmatch(line), f"{config.name}: {line!r} is no export"
    done = subprocess.run(
        ["env", "-i", "bash", "-c", f"set -euo pipefail; source {config.name}; /usr/bin/env"],
        cwd=config.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    exported = {line.partition("=")[0] for line in done.stdout.splitlines()} - {"PWD", "SHLVL", "_"}
    shell = "\n".join(p.read_text() for p in (config.parent / "launch").iterdir() if p.suffix in (".sh", ".sub", ".py"))
    libraries = re.compile(r"(NCCL|UCX|FLAGS|OMPI|PRTE|PMIX|OMP|MKL|NVIDIA)_")  # read by the library of that name
    for name in exported - VARIABLES:
        assert libraries.match(name) or re.search(rf"\b{name}\b", shell), f"{config.name}: nothing reads {name}"


def test_the_readme_has_every_variable(repository: Path) -> None:
    assert env.table() in (repository / "README.md").read_text(), "paste `python -m harness.env --table`"


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("AuthenticAMD", "fpu avx2 avx512f avx512dq avx512cd avx512bw avx512vl", {"MKL_DEBUG_CPU_TYPE": "7"}),
        ("AuthenticAMD", "fpu avx2", {"MKL_DEBUG_CPU_TYPE": "5"}),
        ("AuthenticAMD", "fpu avx2 avx512f", {"MKL_DEBUG_CPU_TYPE": "5"}),
        ("GenuineIntel", "fpu avx2 avx512f avx512dq avx512cd avx512bw avx512vl", {}),
    ],
)
def test_mkl_is_told_the_kernels_of_an_amd_cpu(vendor, flags, expected):
    """No kernel is asked for that the CPU lacks: it would end the process."""
    assert env.mkl_settings(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\nbugs\t\t:\n") == expected
