"""Where a job's variables come from: the systems' config files, only exports, each with a reader; and not the shell
that it is started from, with what its user, modules and cluster have set there.
"""

import contextlib
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import describe, env
from harness.job import names
from runlog import workloads
from tests import jobs
from tests.jobs import printed, resolved
from tests.launch.test_launchers import LAUNCHERS

CONFIGS = sorted(jobs.REPOSITORY.glob("config_*.sh"))
SOURCED = sorted(jobs.REPOSITORY.glob("launch/dgx*.sh"))
# What Open MPI, NCCL and Paddle read themselves: a parameter is real where its name is among those they document.
LIBRARIES = {"NCCL_IB_HCA", "OMPI_MCA_pml", "OMPI_MCA_btl"}
LIBRARIES |= {"FLAGS_cudnn_exhaustive_search", "FLAGS_cudnn_batchnorm_spatial_persistent"}
SYSTEMS = [f"{n}{s}" for s in ("CPU", "DGX1", "DGXA100") for n in ("", "2x", "4x", "8x") if n + s != "8xCPU"]
SYSTEMS.append("DGXA100_mlperf")  # ResNet-50 by the closed division's recipe, as fast as this code can


def exports(system: str, **environment: str) -> dict[str, str]:
    """What a config file adds to an environment."""
    given = {"PATH": os.defpath, "DGXSYSTEM": system, **environment}
    found = env.resolve(given)
    set_by_user = {name.removeprefix("RN50_AMP_O2_") for name in given}
    assert {*found["JOB_FROM_USER"].split()} == set_by_user & {*names()}
    return {name: found[name] for name in {*found["JOB_FROM_CONFIG"].split(), *environment}}


def stem(path: Path) -> str:
    return path.stem.removeprefix("config_")


@pytest.mark.parametrize("config", [*CONFIGS, *SOURCED], ids=stem)
def test_a_config_opens_with_its_command_and_only_exports_plain_values_that_yield_to_the_users(config: Path) -> None:
    lines = config.read_text().splitlines()
    assert lines[0] == "# shellcheck shell=bash", "open the file with this line"
    if config in CONFIGS:
        says_command = "DGXSYSTEM=" in lines[1] or "./run_and_time.sh" in lines[1]
        assert says_command, "say in line 2 by which command a job starts on this system"
        says_figure = lines[2].startswith("# Throughput to expect:")
        assert says_figure, "say in line 3 `# Throughput to expect:`, and who measured it, or `not measured`"
    code = [line for line in lines if line and not line.startswith("#")]
    export = re.compile(r'export (\w+)="\$\{\1:?-[^$`"}]*\}" *(#.*)?')
    source = re.compile(r'source "\$\(dirname "\$\{BASH_SOURCE\[0\]\}"\)/(config_\w+|launch/\w+)\.sh"')
    others = [line for line in code if not (export.fullmatch(line) or source.fullmatch(line))]
    assert others == [], 'write `export NAME="${NAME:-value}"`, or `source` as config_DGXA100.sh does'


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_export_has_a_reader_and_yields_to_the_user(system: str) -> None:
    container = (jobs.REPOSITORY / "launch/container_node.sh").read_text()
    for name in exports(system):
        setting = name.removeprefix("RN50_AMP_O2_")  # of one workload and precision alone
        known = setting in names() or name in LIBRARIES or (name.startswith("CONT_") and f"${{{name}" in container)
        assert known, f"{name} has no reader"
        assert exports(system, **{name: "7"})[name] == "7"


OF_FILE = "config_DGX1.sh"
KNOB = "cuda_graph=1"
DEFAULT = env.ORIGIN_OF_DEFAULTS


@pytest.mark.parametrize(
    ("given", "name", "value", "origin"),
    [
        ({"BATCHSIZE": ""}, "BATCHSIZE", 256, OF_FILE),
        ({"RECIPE": ""}, "RECIPE", "nvidia_cosine", OF_FILE),
        ({"RECIPE": "", "RN50_RECIPE": "tiny"}, "RECIPE", "tiny", "environment"),
        ({"RECIPE": "", "DGXSYSTEM": "CPU"}, "RECIPE", "", "environment"),
        ({"BATCHSIZE": "", "DGXSYSTEM": "CPU"}, "BATCHSIZE", 16, DEFAULT),
        ({"RN50_BATCHSIZE": "", "DGXSYSTEM": "CPU"}, "BATCHSIZE", 16, DEFAULT),
        ({"RN50_RECIPE": "", "DGXSYSTEM": "CPU"}, "RECIPE", "", DEFAULT),
        ({"SEED": ""}, "SEED", -1, DEFAULT),
        ({"DGXSYSTEM": ""}, "DGXSYSTEM", "CPU", DEFAULT),
        ({"DGXSYSTEM": "CPU"}, "DGXSYSTEM", "CPU", "environment"),
        ({"RN50_AMP_O2_STRATEGY": KNOB}, "STRATEGY", KNOB, "environment"),
        ({"RN50_AMP_O2_STRATEGY": "", "DGXSYSTEM": "CPU"}, "STRATEGY", "", DEFAULT),
        ({"RN50_AMP_O2_BATCHSIZE": "8", "BATCHSIZE": ""}, "BATCHSIZE", 8, "environment"),
        ({"RN50_AMP_O2_BATCHSIZE": "8", "RN50_BATCHSIZE": "4"}, "BATCHSIZE", 8, "environment"),
    ],
)
def test_a_value_has_the_origin_of_the_variable_that_gave_it(
    given: dict[str, str], name: str, value: str | int, origin: str
) -> None:
    environ = env.resolve({"PATH": os.defpath, "DGXSYSTEM": "DGX1", **given})
    _, origins = env.read(environ)
    assert origins[name] == {"value": value, "origin": origin}
    of_rank = environ | {variable: str(entry["value"]) for variable, entry in origins.items()}
    assert env.read(of_rank)[1] == origins, "a rank is given the resolved values"


def test_a_file_of_a_users_own_is_the_origin_of_what_it_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config_OWN.sh").write_text('export BATCHSIZE="${BATCHSIZE:-32}" SEED="${SEED-}"\n')
    monkeypatch.setattr(env, "ROOT", tmp_path)
    _, origins = env.read(env.resolve({"PATH": os.defpath, "DGXSYSTEM": "OWN", "RN50_BATCHSIZE": "4"}))
    assert origins["BATCHSIZE"] == {"value": 4, "origin": "environment"}
    assert origins["SEED"] == {"value": -1, "origin": DEFAULT}


def test_a_file_need_not_export_a_setting_and_may_use_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting without `export` was lost without a word, and load_job could not export a function."""
    (tmp_path / "config_OWN.sh").write_text("f() { :; }; export -f f; BATCHSIZE=32 helper=7; export CONT_IPC=host\n")
    monkeypatch.setattr(env, "ROOT", tmp_path)
    given = {"PATH": os.defpath, "DGXSYSTEM": "OWN"}
    found = env.resolve(given)
    assert found.keys() - given == {"BATCHSIZE", "CONT_IPC", "JOB_FROM_USER", "JOB_FROM_CONFIG"}
    assert (found["BATCHSIZE"], set(found["JOB_FROM_CONFIG"].split())) == ("32", {"BATCHSIZE", "CONT_IPC"})


def test_a_misspelt_variable_of_a_file_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config_OWN.sh").write_text("export BATCHSZIE=32\n")
    monkeypatch.setattr(env, "ROOT", tmp_path)
    done = jobs.called(describe.main, "--launch", DGXSYSTEM="OWN")
    assert (done.returncode, done.stderr) == (0, "warning: BATCHSZIE is read by nothing: is it BATCHSIZE?\n")


def test_a_value_that_is_not_utf_8_or_has_another_line_end_stays_as_it_is() -> None:
    """Any variable of the shell, such as a prompt, in Latin-1 ended each launcher: "codec can't decode byte 0xfc"."""
    given = {"PATH": os.defpath, "PROMPT": "M\udcfcller", "CRLF": "a\r\nb"}
    assert given.items() < env.resolve(given).items()


def test_the_users_value_stays_where_a_file_does_not_yield(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config_OWN.sh").write_text("export BATCHSIZE=32 DGXSYSTEM=DGX1 RN50_FP32_STRATEGY=auto\n")
    monkeypatch.setattr(env, "ROOT", tmp_path)
    given = {"DGXSYSTEM": "OWN", "BATCHSIZE": "4", "RN50_FP32_STRATEGY": KNOB, "SEED": "3"}
    _, origins = env.read(env.resolve({"PATH": os.defpath, **given}))
    assert origins["BATCHSIZE"] == {"value": 4, "origin": "environment"}
    assert origins["STRATEGY"] == {"value": KNOB, "origin": "environment"}
    assert origins["DGXSYSTEM"] == {"value": "OWN", "origin": "environment"}
    assert origins["SEED"] == {"value": 3, "origin": "environment"}


@pytest.mark.parametrize("launcher", ["docker", "mpirun", "bare", "slurm"])
def test_each_node_is_given_what_its_user_set_for_one_workload_and_precision(launcher: str) -> None:
    """But for what another job has, or what is a secret by its name."""
    command, variables = LAUNCHERS[launcher]
    others = {"RN50_AMP_O2_STRATEGY": KNOB, "HRNET_FP32_STRATEGY": KNOB, "RN50_FP32_API_KEY": "x"}
    stdout = printed(*command, "--dry-run", **variables, RN50_FP32_STRATEGY="gradient_merge=2", **others)
    nodes = len(re.findall(r"(?: |--env=)BATCHSIZE=8 ", printed(*command, "--dry-run", **variables, BATCHSIZE="8")))
    given = re.findall(r"(?: |--env=)(\w+_(?:STRATEGY|API_KEY))=(\S+) ", stdout)
    assert given == [("RN50_FP32_STRATEGY", "gradient_merge=2")] * nodes and nodes
    if launcher != "docker":
        assert resolved(stdout)["STRATEGY"] == {"value": "gradient_merge=2", "origin": "environment"}


EXPECTED = {
    ("CPU", "rn50"): (16, "", "fp32", "cpu"),
    ("CPU", "hrnet"): (4, "", "fp32", "cpu"),
    ("DGX", "rn50"): (256, "nvidia_cosine", "amp_o2", "gpu"),
    ("DGX", "hrnet"): (2, "cityscapes_80k", "amp_o2", "gpu"),
    ("DGXA100_mlperf", "rn50"): (408, "mlperf_lars", "amp_o2", "gpu"),
    ("DGXA100_mlperf", "hrnet"): (2, "cityscapes_80k", "amp_o2", "gpu"),
}


def test_what_is_expected_of_each_system_and_workload_is_written_here() -> None:
    assert {stem(config) for config in CONFIGS} == set(SYSTEMS), "name in SYSTEMS each config_<SYSTEM>.sh"
    lacking = [name for name in workloads.NAMES if ("CPU", name) not in EXPECTED or ("DGX", name) not in EXPECTED]
    assert lacking == [], "write in EXPECTED a workload's batch, recipe, precision and device, on CPUs and on GPUs"


@pytest.mark.parametrize("workload", workloads.NAMES)
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_has_its_nodes_and_the_batch_and_recipe_of_each_workload(system: str, workload: str) -> None:
    job = env.of_system(DGXSYSTEM=system, WORKLOAD=workload)
    assert job.cluster.dgxnnodes == int(re.sub(r"\D.*", "", system) or 1)
    assert job.cluster.rank_numa == "" or len(job.cluster.rank_numa.split(",")) == job.cluster.dgxngpu
    kind = system if (system, workload) in EXPECTED else "DGX"
    if system.endswith("CPU"):
        kind = "CPU"
    assert (job.model.batchsize, job.model.recipe, job.model.precision, job.cluster.device) == EXPECTED[kind, workload]


# ---- the shell that a job is started from

SHADOW = "raise ImportError('a module of the shell')"


def test_a_job_of_one_node_gets_none_of_nccls_network() -> None:
    """Neither its container, which has loopback alone, nor the shell in which mpirun starts."""
    network = {"NCCL_SOCKET_IFNAME": "^lo,docker", "NCCL_IB_HCA": "=mlx5_0"}
    assert "NCCL_" not in jobs.printed("launch/container_node.sh", "--dry-run", CONT="img", **network)
    script = "source launch/common.sh; load_job --shell; unset JOB_DROPPED; env"
    stdout = jobs.printed("bash", "-euc", script, DGXSYSTEM="2xDGXA100", DGXNNODES="1", NCCL_ALGO="Ring", **network)
    assert set(re.findall(r"NCCL_\w+", stdout)) == {"NCCL_ALGO"}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with modules that hide Python's and the packages', and a link to the launcher."""
    for name in ("json", "numpy", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(SHADOW)
    (tmp_path / "launch").mkdir()
    (tmp_path / "go").symlink_to(jobs.REPOSITORY / "run_and_time.sh")
    return tmp_path


@pytest.mark.parametrize("command", ["./go", "sh ./go"])
def test_a_job_is_the_same_from_any_shell(elsewhere: Path, command: str) -> None:
    """Called through a link, from a folder that has a launch/ of its own."""
    shell: dict[str, Any] = {"PYTHONPATH": str(elsewhere), "PYTHONHOME": "/usr/nowhere", "PYTHONSAFEPATH": "1"}
    shell |= {"PYTHONINSPECT": "1"}
    shell |= {"PYTHONPROFILEIMPORTTIME": "1", "CDPATH": str(elsewhere), "HOME": "/proc/nowhere", "POSIXLY_CORRECT": "1"}
    done = jobs.run([*command.split(), "--dry-run"], cwd=elsewhere, **shell)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", jobs.run_and_time("--dry-run").stdout)


def on_a_terminal(*command: str) -> str:
    """What a command prints on a terminal, which is 80 characters wide where it does not say how wide it is."""
    terminal, theirs = pty.openpty()
    job = subprocess.Popen(command, cwd=jobs.REPOSITORY, env=jobs.environment(), stdout=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # Linux's answer when nobody has the other side any more
        while True:
            shown += os.read(terminal, 65_536)
    os.close(terminal)
    assert job.wait() == 0
    return shown.decode().replace("\r\n", "\n")


def test_a_dry_run_on_a_terminal_shows_what_the_user_has_set() -> None:
    """PROGRESS stood there as set by a launcher. That there is a terminal is not a setting; the ranks are told."""
    shown = on_a_terminal("./run_and_time.sh", "--dry-run")
    assert " -x TERMINAL_COLUMNS " in shown
    assert shown.replace(" -x TERMINAL_COLUMNS ", " ") == printed("./run_and_time.sh", "--dry-run")
    assert resolved("\n" + shown)["PROGRESS"] == {"value": "", "origin": DEFAULT}


def test_a_job_needs_nothing_of_its_shell(standing_in: Path, tmp_path: Path) -> None:
    """No HOME, PATH or TERM, as in a service's unit; neither stdin nor stdout; files for their owner alone.

    What a cluster has set for its own MPI and batch jobs is not the job's.
    """
    other_nodes = tmp_path / "nodes"
    other_nodes.write_text("n1.invalid\nn2.invalid\n")  # mpirun went to them by ssh
    cluster = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_btl": "openib", "SLURM_JOB_ID": "7", "SLURM_NODELIST": "n1"}
    cluster |= {"PBS_JOBID": "7", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_NODEFILE": str(other_nodes)}
    cluster |= {"PRTE_MCA_prte_default_hostfile": str(other_nodes)}
    module = tmp_path / "module"  # of another Open MPI, whose libraries have the names of the job's
    module.mkdir()
    for library in ("libmpi.so.40", "libopen-pal.so.80", "libpmix.so.2", "libprrte.so.3", "libhwloc.so.15"):
        (module / library).write_text("")
    cluster |= {"LD_LIBRARY_PATH": str(module), "OPAL_PREFIX": str(module)}
    job = [f"{name}={value}" for name, value in {**jobs.TINY, **cluster, "LOGDIR": tmp_path}.items()]
    script = f"umask 077; exec {standing_in}/run_and_time.sh <&- >&-"
    done = jobs.run(["env", "-i", *job, "/bin/bash", "-c", script], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_tool_needs_nothing_of_its_shell() -> None:
    done = jobs.run(["env", "-i", sys.executable, "-c", "from harness import ranks; print(ranks.MPI.COMM_WORLD.size)"])
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize("folder", ["/no/such/folder", "/etc/passwd"])
def test_a_tmpdir_that_cannot_be_written_is_refused(folder: str) -> None:
    done = jobs.run_and_time("--dry-run", TMPDIR=folder)
    said = f"error: {folder} is not a folder that can be written: set TMPDIR to one that is\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_the_image_copies_what_the_embedded_data_set_is_made_by(tmp_path: Path) -> None:
    """They are copied alone, so that a change of another file makes no layer of the data anew."""
    before, made, _ = (
        (jobs.REPOSITORY / "Dockerfile").read_text().partition("RUN .venv/bin/python -m paddle_rn50.digits data")
    )
    assert made
    for line in re.findall(r"^COPY ((?:program|harness|paddle_rn50)/.*)", before, re.M):
        *names, folder = line.split()
        (tmp_path / folder).mkdir()
        for name in names:
            shutil.copy(jobs.REPOSITORY / name, tmp_path / folder)
    done = jobs.run([sys.executable, "-m", "paddle_rn50.digits", "data"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "data").rglob("*_list.txt"))) == 2
