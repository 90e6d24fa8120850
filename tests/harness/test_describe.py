"""What the command that describes a job prints for a shell, a launcher and a reader, what it refuses and warns of."""

import os
import re
import subprocess
import sys
from typing import Any

import pytest

from harness import describe
from harness.job import SETTINGS
from tests import jobs
from tests.harness.test_env import FP16, NETWORK


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (FP16 | {"STRATEGY": "cuda_graph=1,gradient_merge=2"}, "STRATEGY: cuda_graph=1: one program is captured"),
        (FP16 | {"WORKLOAD": "hrnet", "BATCHSIZE": "2", "STRATEGY": "cuda_graph=1"}, ".*fixed loss scale in FP16"),
        (FP16 | {"WORKLOAD": "hrnet", "RECIPE": "cityscapes_80k", "BATCHSIZE": "9"}, "BATCHSIZE=9: at no loss scale"),
        ({"STRATEGY": "gradient_merge=3"}, "STRATEGY: gradient_merge=3: must divide BATCHSIZE=16"),
        ({"STRATEGY": "merged_lars=1"}, "STRATEGY: merged_lars=1: the recipe digits_small does not train by LARS"),
        ({"STRATEGY": "fuse_grad_size_in_MB=4", "DGXNGPU": "1"}, "STRATEGY: fuse_grad_size_in_MB: one rank has no"),
        ({"WORKLOAD": "hrnet", "LAYOUT": "NHWC"}, "LAYOUT=NHWC: FCN-HRNetW18 is built in NCHW only"),
        ({"SEED": str(2**31 - 2), "NEXP": "3"}, "SEED=2147483646: the last .* 2147483648: set SEED to 2147483645 at"),
        ({"RESULT_FILE": "x"}, "RESULT_FILE='x': the trial loop names each log: unset it"),
    ],
)
def test_a_dry_run_says_what_the_program_refuses(variables: dict[str, str], message: str) -> None:
    """`load_job` of launch/common.sh calls this for --dry-run, --check and a run alike."""
    done = jobs.called(describe.main, "--shell", **{"PATH": os.defpath} | variables)
    jobs.refused(done, "error: ")
    assert re.match(f"error: {message}", done.stderr), done.stderr


def test_a_misspelt_variables_value_is_not_told() -> None:
    warning = "SUBMISION_ORG is read by nothing: is it SUBMISSION_ORG?"
    assert describe.misspelt({"SUBMISION_ORG": "hunter2"}) == [warning]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "RN50_STRATEGY",
            "RN50_STRATEGY is read by nothing: RN50_BATCHSIZE and RN50_RECIPE are, and any ",
        ),
        ("HRNET_BATCH", "HRNET_BATCH is read by nothing: HRNET_BATCHSIZE and HRNET_RECIPE are, and "),
        (
            "SUBMISSION_ORGANISATION",
            "SUBMISSION_ORGANISATION is read by nothing: SUBMISSION_ORG, SUBMISSION_DIVISION, ",
        ),
        ("EPOCHS", "EPOCHS is read by nothing: MAX_EPOCHS is"),
        ("LR", "LR is read by nothing: the RECIPE has it"),
        ("MLPERF_SUBMISSION_ORG", "MLPERF_SUBMISSION_ORG is read by nothing: SUBMISSION_ORG is"),
        ("CHECKPOINT_FOLDER", "CHECKPOINT_FOLDER is read by nothing: CHECKPOINT_EPOCHS, CHECKPOINT_MINUTES, "),
    ],
)
def test_a_variable_by_whose_name_a_setting_is_meant_is_said_to_be_lost(name: str, said: str) -> None:
    """They were ignored in silence: a run of RN50_STRATEGY had the default strategy."""
    warnings = describe.misspelt({name: "hunter2"})
    assert len(warnings) == 1 and warnings[0].startswith(said), warnings
    read = ("RN50_AMP_O2_STRATEGY", "RN50_FP32_FLAGS_cudnn", "HRNET_RECIPE", "SUBMISSION_ORG", "CHECKPOINT_DIR")
    assert describe.misspelt(dict.fromkeys(read, "1")) == []


def told(form: str, **variables: str) -> dict[str, str]:
    """What `python -m harness.describe` tells a shell that has these variables alone."""
    alone = [f"{name}={value}" for name, value in ({"PATH": os.defpath} | variables).items()]
    printed = jobs.printed("env", "-i", *alone, sys.executable, "-m", "harness.describe", form)
    return dict(pair.split("=", 1) for pair in printed.split("\0") if pair)


def test_the_shell_is_told_every_value_and_what_goes_to_the_ranks() -> None:
    libraries = {"NCCL_DEBUG": "INFO", "NVIDIA_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "1"}
    libraries |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "GLOO_SOCKET_IFNAME": "eth0"}
    secrets = {"NCCL_API_KEY": "x", "SECRET": "x"}
    given = told("--shell", DGXSYSTEM="2xDGX1", LOGDIR="/a folder", **libraries, **secrets)
    assert SETTINGS.keys() < given.keys()
    assert (given["LOGDIR"], given["BATCHSIZE"], given["OMPI_MCA_pml"]) == ("/a folder", "256", "ob1")
    forwarded = given["JOB_FORWARDED"].split()
    handed_on = {"NCCL_DEBUG", "NCCL_IB_HCA", "CUBLAS_WORKSPACE_CONFIG"}
    assert {"BATCHSIZE", "RESULT_FILE", "JOB_FROM_USER", *handed_on} < set(forwarded)
    left = {"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "OMPI_MCA_pml"}
    assert not {*secrets, *left} & set(forwarded)
    assert (given["JOB_FROM_USER"], set(given["JOB_SECRETS"].split())) == ("DGXSYSTEM LOGDIR", set(secrets))


def test_one_node_is_started_without_nccls_settings_of_the_network() -> None:
    """Its container has loopback alone, where NCCL would find no interface."""
    for nodes, network in (("1", set()), ("2", {*NETWORK})):
        given = told("--shell", DGXSYSTEM="2xDGX1", DGXNNODES=nodes, NCCL_DEBUG="INFO", **NETWORK)
        assert network | {"NCCL_DEBUG"} == {name for name in given["JOB_FORWARDED"].split() if name[:4] == "NCCL"}
        assert {*given.get("JOB_DROPPED", "").split()} == {*NETWORK} - network
        given = told("--launch", DGXSYSTEM="2xDGX1", DGXNNODES=nodes, NCCL_DEBUG="INFO", **NETWORK)
        assert network | {"NCCL_DEBUG"} == {name for name in given["JOB_GIVEN"].split() if name[:4] == "NCCL"}


def test_a_launcher_is_told_the_container_and_what_it_hands_on() -> None:
    given = told("--launch", DGXSYSTEM="2xDGX1", BATCHSIZE="8", OMPI_MCA_btl="tcp", SECRET="x", CONT_IPC="host")
    assert given == {
        "CONT_DEVICES": "/dev/infiniband",
        "CONT_GPUS": "all",
        "CONT_MEMLOCK": "-1",
        "CONT_SHM_SIZE": "8g",
        "DGXNNODES": "2",
        "JOB_DEVICE": "gpu",
        "JOB_GIVEN": "BATCHSIZE DGXSYSTEM OMPI_MCA_btl",
        "JOB_PATHS": "LOGDIR=results",
        "JOB_SECRETS": "SECRET",
    }


def test_the_settings_page_has_every_variable() -> None:
    page = (jobs.REPOSITORY / "docs/settings.md").read_text()
    assert describe.table() in page, "paste `python -m harness.describe --table`"


def test_a_misspelt_variable_is_said_and_a_strangers_is_not() -> None:
    meant = {"BATCHSZE": "BATCHSIZE", "BATCH_SIZE": "BATCHSIZE", "batchsize": "BATCHSIZE", "PRECISON": "PRECISION"}
    meant |= {"DGXNGPUS": "DGXNGPU", "DATA_DIR": "DATADIR", "RESUM": "RESUME", "Logdir": "LOGDIR"}
    misspelt: dict[str, Any] = dict.fromkeys(meant, "8")
    done = jobs.run([sys.executable, "-m", "harness.describe", "--json"], **misspelt)
    assert done.returncode == 0
    warnings = [f"warning: {name} is read by nothing: is it {right}?" for name, right in meant.items()]
    assert sorted(done.stderr.splitlines()) == sorted(warnings)
    strangers = (
        *("HISTFILE", "HISTSIZE", "HOSTNAME", "HOSTTYPE", "HOST", "MODEL", "DATE", "LOGNAME", "NODE_NAME", "NODE_ID"),
        *("PATH", "USER", "HOME", "LANG", "TERM", "SHELL", "PWD", "OLDPWD", "SHLVL", "EDITOR", "PAGER", "DISPLAY"),
        *("TMPDIR", "LINES", "COLUMNS", "MAIL", "MANPATH", "PS1", "VISUAL", "DEBUG", "VERBOSE", "CI", "JOBS", "NODES"),
        *("SLURM_NNODES", "SLURM_NODEID", "OMP_NUM_THREADS", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"),
        *("XDG_DATA_DIRS", "XDG_SESSION_ID", "VIRTUAL_ENV", "CONDA_PREFIX", "KUBERNETES_PORT", "SSH_TTY", "SSH_CLIENT"),
    )
    assert describe.misspelt(dict.fromkeys((*strangers, "HRNET_BATCHSIZE", "BATCHSIZE"), "1")) == []


def test_a_reader_that_has_seen_enough_ends_the_table_quietly() -> None:
    """What `python -m harness.describe --table | head` does, with a `head` that is gone already."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "harness.describe", "--table"]
    done = subprocess.run(command, cwd=jobs.REPOSITORY, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
