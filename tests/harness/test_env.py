"""The job's variables: parsed once, each with a reader, all in docs/settings.md; a run's commit; what loads first."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from harness import env, libraries, provenance, workload
from harness.job import SETTINGS, job_of
from tests import jobs
from tests.jobs import need
from tests.test_architecture import imports, tracked

FP16 = {"DEVICE": "gpu", "PRECISION": "amp_o2", "DGXNGPU": "8", "BATCHSIZE": "408"}
HOLDS = "FP16 is shown to hold .* 3264 images at 204 to 13056 alone: set one of these, or 0$"
THROUGHPUT = {"MODE": "throughput", "WARMUP_STEPS": "2", "MEASURED_STEPS": "6"}
TF32 = libraries.TF32_OVERRIDE


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"BATCHSIZE": "many"}, "BATCHSIZE='many': must be a whole number"),
        ({"BATCHSIZE": "1e3"}, "BATCHSIZE='1e3': must be a whole number"),
        ({"BATCHSIZE": "9" * 40}, "BATCHSIZE=9{40}: must have at most 18 digits"),
        ({"SEED": "-" + "9" * 19}, "SEED=-9{19}: must have at most 18 digits"),
        ({"BATCHSIZE": "\N{ARABIC-INDIC DIGIT THREE}"}, "BATCHSIZE='.': must be a whole number"),
        ({"RANK_NUMA": "0,\N{ARABIC-INDIC DIGIT THREE}"}, "RANK_NUMA='0,.': must be whole numbers"),
        ({"PROFILE": "steps:1-\N{ARABIC-INDIC DIGIT THREE}"}, "PROFILE='steps:1-.': must be steps:a-b"),
        ({"MODE": "fast"}, "MODE='fast': must be one of train, throughput"),
        ({"NODE_RANK": "1"}, "NODE_RANK=1: must be below DGXNNODES=1"),
        ({"HOSTS": "a,b"}, "HOSTS names 2 nodes, but DGXNNODES is 1: set DGXNNODES=2, or unset HOSTS"),
        *(
            ({"HOSTS": names, "DGXNNODES": "2"}, f"HOSTS='{names}': must be names or IPv4 addresses, .* SSH_PORT is")
            for names in ("a b;c", ",", "a,", "a,,b", "a:99999,b", "a:b:c,d")
        ),
        ({"HOSTS": "a,b,a", "DGXNNODES": "3"}, "HOSTS names a more than once: give each node once$"),
        ({"HOSTS": "a", "DGXNNODES": "2"}, "HOSTS names 1 node, but DGXNNODES is 2: set DGXNNODES=1, or unset HOSTS$"),
        ({"SWITCH_GROUPS": "1,2,3"}, "SWITCH_GROUPS=1,2,3: names 3 groups: give one for each of the 1 HOSTS$"),
        ({"RANK_NUMA": "0,99999"}, "RANK_NUMA='0,99999': must be .*, of 4 digits at most"),
        ({"RANK_NUMA": "x,y"}, "RANK_NUMA='x,y': must be whole numbers, comma-separated"),
        ({"RANK_NUMA": "0,1", "DGXNGPU": "3"}, "RANK_NUMA=0,1: names 2 NUMA nodes: give one for each of .*DGXNGPU=3"),
        ({"SSH_ADDRESS": "not an address!"}, "SSH_ADDRESS='not an address!': must be the name or the IP address"),
        ({"SOURCE_COMMIT": "zz zz"}, "SOURCE_COMMIT='zz zz': must be a git commit"),
        ({"IMAGE_DIGEST": "sha256:" + "0" * 63}, "IMAGE_DIGEST='sha256:0+': must be sha256: and 64 hexadecimal digits"),
        ({"SUBMISSION_ORG": "a\nb"}, r"SUBMISSION_ORG='a\\nb': must be one line of printable text"),
        ({"BATCHSIZE": "1000001"}, "BATCHSIZE=1000001: must be at most 1000000"),
        ({"RN50_BATCHSIZE": "1000001"}, "RN50_BATCHSIZE=1000001: must be at most 1000000"),
        ({"DGXNGPU": "99999999999"}, "DGXNGPU=99999999999: must be at most 10000"),
        ({"DATA_THREADS": "99999999999"}, "DATA_THREADS=99999999999: must be at most 10000"),
        ({"THREADS": "99999999999"}, "THREADS=99999999999: must be at most 10000"),
        ({"NEXP": "1000000000000"}, "NEXP=1000000000000: must be at most 10000"),
        ({"SSH_PORT": "65536"}, "SSH_PORT=65536: must be at most 65535"),
        ({"KEEP_TRIALS": "2"}, "KEEP_TRIALS=2: must be at most 1"),
        ({"LOGDIR": ""}, "LOGDIR is empty: set it to the folder of the results, or unset it"),
        ({"RECIPE": "recorded"}, "RECIPE=recorded: it is for .* MODE=throughput: train by nvidia_cosine$"),
        ({"PRETRAINED": "w"}, "PRETRAINED=w: rn50 starts from weights of its own: unset it, or WORKLOAD=hrnet$"),
        ({"LOSS_SCALE": "128"}, "LOSS_SCALE=128: only FP16's loss is scaled"),
        # Small ones flush gradients to 0, large ones overflow: nothing looks for infinities.
        (FP16 | {"LOSS_SCALE": "203"}, f"LOSS_SCALE=203: {HOLDS}"),
        (FP16 | {"LOSS_SCALE": "13057"}, f"LOSS_SCALE=13057: {HOLDS}"),
        # HRNet's loss is a mean over pixels too: 64, which its 64 images would allow, flushes its gradients to 0.
        (
            FP16 | {"WORKLOAD": "hrnet", "BATCHSIZE": "8", "LOSS_SCALE": "64"},
            "LOSS_SCALE=64: .* was shown to hold for ResNet-50 alone: set 0$",
        ),
        ({"DEVICE": "gpu", "PRECISION": "fp32", TF32: "1"}, "PRECISION=fp32: NVIDIA_TF32_OVERRIDE=1 "),
        ({"DEVICE": "gpu", "PRECISION": "tf32", TF32: "0"}, "PRECISION=tf32: NVIDIA_TF32_OVERRIDE=0 "),
        *(
            ({"PROFILE": text}, "PROFILE=")
            for text in ("steps", "steps:3", "steps:0-2", "steps:5-4", "5-6", "steps:1-2;rm")
        ),
        (
            THROUGHPUT | {"PROFILE": "steps:5-9"},
            "PROFILE=steps:5-9: the run ends with step 8 .* MEASURED_STEPS to more",
        ),
    ],
)
def test_a_wrong_value_is_named(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as error:
        env.read(variables)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "variables",
    [
        {"SOURCE_COMMIT": "0a1b2c3-dirty", "IMAGE_DIGEST": f"sha256:{'0a' * 32}", "RANK_NUMA": "3,3,1,1"},
        {"SOURCE_COMMIT": "unknown", "SSH_ADDRESS": "fe80::1%eth0", "SSH_PORT": "65535", "SEED": "2147483647"},
        {"DGXNNODES": "2", "HOSTS": "10.0.0.1,node-2.site_a", "SWITCH_GROUPS": "leaf-1,leaf-1"},
        FP16 | {"LOSS_SCALE": "204"},
        FP16 | {"LOSS_SCALE": "13056"},
        {"RECIPE": "recorded", "MODE": "throughput"},
        THROUGHPUT | {"PROFILE": "steps:5-8"},
        {"PROFILE": "steps:5-100000"},  # MODE=train: it ends where the target is reached
    ],
)
def test_what_stands_at_the_limit_is_taken(variables: dict[str, str]) -> None:
    assert env.read(variables)[0].model.loss_scale == int(variables.get("LOSS_SCALE", 0))


@pytest.mark.parametrize(("batch", "scale"), [("408", 4096), ("2", 16), ("8480", 131072)])
def test_a_captured_step_scales_its_loss_by_its_global_batch(batch: str, scale: int) -> None:
    """A scale of 4,096 whatever the batch would overflow at 256 images, and be too little at 67,840."""
    job = env.read(FP16 | {"BATCHSIZE": batch, "STRATEGY": "cuda_graph=1"})[0]
    assert workload.plan_of(job).fixed_scale == scale
    launched = env.read(FP16 | {"BATCHSIZE": batch})[0]
    assert workload.plan_of(launched).fixed_scale == 0, "dynamic"


def test_hrnet_in_fp16_trains_no_more_pixels_than_it_holds() -> None:
    """At 256 crops the twin's cosine is 0.955 at 32,768, and twice that overflows; rates are measured all the same."""
    job = FP16 | {"WORKLOAD": "hrnet", "RECIPE": "cityscapes_80k", "BATCHSIZE": "8"}
    said = "^BATCHSIZE=8: at no loss scale .* of 256 such crops: train 64 at most over all ranks, or set PRECISION=fp32"
    with pytest.raises(ValueError, match=said):
        workload.plan_of(env.read(job | {"DGXNNODES": "4"})[0])
    for way in ({}, {"DGXNNODES": "4", "MODE": "throughput"}, {"DGXNNODES": "4", "PRECISION": "tf32"}):
        workload.plan_of(env.read(job | way)[0])
    workload.plan_of(env.read(job | {"DGXNNODES": "4", "RECIPE": "scenes_small"})[0])


@pytest.mark.parametrize(
    ("precision", "override"), [("fp32", ""), ("fp32", "0"), ("tf32", ""), ("tf32", "1"), ("amp_o2", "0")]
)
def test_a_precision_is_the_one_that_cudas_libraries_compute_in(precision: str, override: str) -> None:
    environ = {"DEVICE": "gpu", "PRECISION": precision, TF32: override}
    job, _ = env.read(environ)
    settings = env.runtime(job)
    assert settings.get(TF32) == ("0" if precision == "fp32" else None)
    assert env.of_ranks(job, environ)[TF32] == ("0" if precision == "fp32" else override)
    with mock.patch.dict(os.environ, environ):
        env.export(settings)
        assert os.environ[TF32] == ("0" if precision == "fp32" else override)
    assert settings["CUDA_MODULE_LOADING"] == "LAZY", "a GPU gets the kernels that a run takes alone"


def test_the_log_tells_the_libraries_variables() -> None:
    set_here = {"FLAGS_cudnn_exhaustive_search": "1", "NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "2"}
    set_here |= {"CUDA_MODULE_LOADING": "LAZY"}
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
    assert (job.model.batchsize, job.trials.nexp) == (8, 5)
    assert origins["BATCHSIZE"] == {"value": 8, "origin": "config_CPU.sh"}
    assert origins["NEXP"] == {"value": 5, "origin": "environment"}
    assert origins["SEED"] == {"value": -1, "origin": "harness/job.py"}
    assert origins["RESULT_FILE"] == {"value": "r.txt", "origin": "launch/trials.sh"}


@pytest.mark.parametrize(
    ("given", "value", "origin"),
    [
        ({}, 2, "config_DGX1.sh"),
        ({"HRNET_BATCHSIZE": "3"}, 3, "environment"),
        ({"BATCHSIZE": "4", "HRNET_BATCHSIZE": "3"}, 4, "environment"),
        ({"RN50_BATCHSIZE": "5"}, 2, "config_DGX1.sh"),
        ({"HRNET_BATCHSIZE": ""}, 2, "config_DGX1.sh"),
        ({"BATCHSIZE": ""}, 2, "config_DGX1.sh"),
        ({"BATCHSIZE": "", "HRNET_BATCHSIZE": "3"}, 3, "environment"),
    ],
    ids=["the file's", "the user's", "for all", "the other's", "one filled", "a general one filled", "by the user"],
)
def test_a_workload_has_its_own_batch(given: dict[str, str], value: int, origin: str) -> None:
    environ = env.resolve({"PATH": os.defpath, "DGXSYSTEM": "DGX1", "WORKLOAD": "hrnet", **given})
    job, origins = env.read(environ)
    assert job.model.batchsize == value
    assert origins["BATCHSIZE"] == {"value": value, "origin": origin}
    # A rank is given the resolved value, and says of it what the node said.
    assert env.read(environ | {"BATCHSIZE": str(value)})[1]["BATCHSIZE"] == origins["BATCHSIZE"]


def test_a_resolved_environment_is_left_as_it_is() -> None:
    environ = env.resolve({"PATH": os.defpath, "DGXSYSTEM": "DGX1"})
    assert env.resolve(environ | {"DGXSYSTEM": "NONE"}) == environ | {"DGXSYSTEM": "NONE"}


def test_a_config_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config_BAD.sh").write_text('echo "no such file" >&2\nfalse\n')
    monkeypatch.setattr(env, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"config_BAD\.sh: no such file: correct the file"):
        env.of_system(DGXSYSTEM="BAD")
    for end, status in (("[ -d /no/such/folder ] && export BATCHSIZE=8", 1), ("exit 0", 0)):
        (tmp_path / "config_BAD.sh").write_text(f"{end}\n")
        with pytest.raises(ValueError, match=rf"config_BAD\.sh: a command in it ended bash with status {status}: corr"):
            env.of_system(DGXSYSTEM="BAD")
    with pytest.raises(ValueError, match=r"there is no config_GOOD\.sh; there are: BAD: .* to config_GOOD\.sh$"):
        env.of_system(DGXSYSTEM="GOOD")


@pytest.mark.parametrize(
    ("exported", "given", "value", "origin"),
    [
        ("BATCHSIZE=256", {}, 256, "config_MINE.sh"),
        ("BATCHSIZE=256", {"BATCHSIZE": "8"}, 8, "environment"),
        ("BATCHSIZE=256", {"RN50_BATCHSIZE": "8"}, 8, "environment"),
        ("BATCHSIZE=256", {"HRNET_BATCHSIZE": "8"}, 256, "config_MINE.sh"),
        ("BATCHSIZE=256", {"BATCHSIZE": ""}, 256, "config_MINE.sh"),
        ("RN50_BATCHSIZE=256", {"RN50_BATCHSIZE": "8"}, 8, "environment"),
        ("RN50_FP32_BATCHSIZE=256", {"RN50_BATCHSIZE": "8"}, 8, "environment"),
        ("RN50_FP32_BATCHSIZE=256", {"RN50_FP32_BATCHSIZE": "8"}, 8, "environment"),
        ("BATCHSIZE=256", {"RN50_FP32_BATCHSIZE": ""}, 256, "config_MINE.sh"),
    ],
)
def test_the_users_value_counts_also_where_a_config_file_does_not_let_it_pass(
    exported: str, given: dict[str, str], value: int, origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config_MINE.sh").write_text(f"export {exported}\n")
    monkeypatch.setattr(env, "ROOT", tmp_path)
    _, origins = env.read(env.resolve({"PATH": os.defpath, "DGXSYSTEM": "MINE", **given}))
    assert origins["BATCHSIZE"] == {"value": value, "origin": origin}


def test_a_variable_of_one_workload_for_a_setting_that_has_none_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RN50_STRATEGY, which is warned of as read by nothing, switched off the config file's RN50_FP32_STRATEGY."""
    (tmp_path / "config_MINE.sh").write_text("export RN50_FP32_STRATEGY=gradient_merge=2\n")
    monkeypatch.setattr(env, "ROOT", tmp_path)
    _, origins = env.read(env.resolve({"PATH": os.defpath, "DGXSYSTEM": "MINE", "RN50_STRATEGY": "auto"}))
    assert origins["STRATEGY"] == {"value": "gradient_merge=2", "origin": "config_MINE.sh"}


@pytest.mark.parametrize("name", ["BATCHSIZE", "RN50_BATCHSIZE", "RN50_FP32_BATCHSIZE"])
def test_a_wrong_value_names_its_variable_and_a_config_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(env, "ROOT", tmp_path)
    config = tmp_path / "config_MINE.sh"
    config.write_text(f"export {name}=8\r\n")
    with pytest.raises(ValueError, match=rf"^config_MINE\.sh: {name}='8\\r': must be a whole number"):
        env.of_system(DGXSYSTEM="MINE")
    config.write_text("")
    with pytest.raises(ValueError, match=f"^{name}='x': must be a whole number"):
        env.of_system(DGXSYSTEM="MINE", **{name: "x"})


NETWORK = {"NCCL_SOCKET_IFNAME": "^lo,docker", "NCCL_IB_HCA": "mlx5_7", "NCCL_NET": "IB", "NCCL_COMM_ID": "10.0.0.1:7"}


def test_the_ranks_of_one_node_compute_without_them_too() -> None:
    environ = {**NETWORK, "NCCL_ALGO": "Ring", "CUDA_MODULE_LOADING": "EAGER"}
    alone = env.of_ranks(job_of(device="gpu"), environ)
    assert not {*NETWORK} & {*alone} and alone["NCCL_ALGO"] == "Ring"
    assert (alone["CUDA_MODULE_LOADING"], alone["CUDA_DEVICE_ORDER"]) == ("EAGER", "PCI_BUS_ID")
    assert {*NETWORK} < {*env.of_ranks(job_of(device="gpu", dgxnnodes=2), environ)}


def test_only_one_file_of_the_training_half_reads_the_environment() -> None:
    found = jobs.run(["git", "grep", "-lE", r"os\.(environ|getenv)", "--", "program", "harness", "paddle_*"])
    assert found.stdout.split() == ["harness/env.py"]


def test_every_variable_of_the_job_has_a_reader() -> None:
    code = (
        "\n".join(
            path.read_text()
            for folder in ("program", "harness", "tools", "paddle_rn50", "paddle_hrnet", "launch")
            for path in (jobs.REPOSITORY / folder).rglob("*")
            if path.suffix in (".py", ".sh", ".sub")
        )
        + (jobs.REPOSITORY / "run_and_time.sh").read_text()
    )
    for name, setting in SETTINGS.items():
        read_in_python = re.search(rf"\b({setting.group}|self|course|cluster|model)\.{setting.name}\b", code)
        read_in_shell = re.search(rf"\$\{{{name}\b|\(\(.*\b{name}\b", code)
        assert read_in_python or read_in_shell, f"nothing reads {name}"


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
    assert libraries.mkl_settings(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\nbugs\t\t:\n") == expected


def test_paddle_is_told_the_ranks_gpu_before_it_is_loaded() -> None:
    """It reads FLAGS_selected_gpus when it is imported; without it GPU 0 is the default device of every rank."""
    script = """if True:
        import sys
        from harness import env
        from harness.job import job_of
        env.export(env.runtime(job_of(device="gpu")))
        assert "paddle" not in sys.modules
        import paddle
        print(paddle.get_flags("FLAGS_selected_gpus"), paddle.base.framework._cuda_ids())
    """
    told = jobs.printed(sys.executable, "-c", script, OMPI_COMM_WORLD_LOCAL_RANK="3")
    assert told.strip() == "{'FLAGS_selected_gpus': '3'} [3]"


def test_the_commit_in_a_logs_header_is_this_checkouts_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns it, whatever repository GIT_DIR names; of an archive below another repository git knows none."""
    need(shutil.which("git") is not None, "git")
    checkout, archive = tmp_path / "checkout", tmp_path / "checkout" / "archive"
    for root in (checkout, archive):
        (root / "locks").mkdir(parents=True)
        for name in ("run_and_time.sh", "locks/run.lock"):
            (root / name).write_text("")
    who = ("-c", "user.name=user", "-c", "user.email=user@example.com")
    names = ("run_and_time.sh", "locks")
    for words in (("init", "--quiet"), ("add", *names), (*who, "commit", "--quiet", "--message", "One")):
        jobs.printed("git", "-C", str(checkout), *words)
    commit = jobs.printed("git", "-C", str(checkout), "rev-parse", "HEAD").strip()
    if os.geteuid() == 0:
        for path in (checkout, checkout / ".git"):
            os.chown(path, 1, 1)
        assert jobs.run(["git", "rev-parse", "HEAD"], cwd=checkout).returncode != 0, "git trusts no other user's"
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))
    for root, found in ((checkout, (commit, False)), (archive, (None, None))):
        monkeypatch.setattr(provenance, "REPOSITORY", root)
        source = provenance.source("", "")
        assert (source.commit, source.dirty) == found


def test_an_image_says_its_commit_or_that_it_knows_none() -> None:
    for told, found in (
        ("0a1b2c3", ("0a1b2c3", False)),
        ("0a1b2c3-dirty", ("0a1b2c3", True)),
        ("unknown", (None, None)),
    ):
        source = provenance.source(told, "")
        assert (source.commit, source.dirty) == found


# ---- Paddle's parts of a zlib stay apart from the system's, whichever way our code is started


FIRST, COMMAND = ("program", "harness", "tools"), 'if __name__ == "__main__"'
USE = """
import io
import numpy
from PIL import Image
file = io.BytesIO()
Image.fromarray(numpy.zeros((40, 40), numpy.uint8)).save(file, "PNG")
Image.open(io.BytesIO(file.getvalue())).load()
from mpi4py import MPI
print("whole")
"""


@pytest.mark.parametrize("first", ["harness", "tools.inspect"])
def test_paddle_before_all_else_breaks_nothing(first: str) -> None:
    """In a process of its own, as pytest has zlib already; PNG and MPI were what crashed."""
    done = jobs.run([sys.executable, "-c", f"import {first}\nimport paddle\n{USE}"])
    assert done.stdout.endswith("whole\n"), done.stderr[-1500:]


def test_every_command_has_the_harness_before_paddle() -> None:
    commands = [path for path in tracked(".py", but=("tests/",)) if COMMAND in path.read_text()]
    assert len(commands) > 10
    for path in commands:
        tree = ast.parse(path.read_text())
        top = [name.partition(".")[0] for node, name in imports(tree) if node in tree.body]
        if path.parent.name not in FIRST:  # `python -m harness.x` has the package first
            safe = (*FIRST, "zlib")  # zlib before Paddle's is what these three bring
            assert "paddle" not in top[: min(top.index(name) if name in top else len(top) for name in safe)], path


@pytest.fixture
def drop_caches(tmp_path: Path, monkeypatch) -> tuple[Path, Path]:
    """The files that flush the page cache in and outside a container, as this process sees them; neither is there."""
    files = (tmp_path / "in_container", tmp_path / "outside")
    monkeypatch.setattr(provenance, "DROP_CACHES", files)
    monkeypatch.setattr(os, "sync", lambda: None)
    return files


@pytest.mark.parametrize(("asked", "status", "by"), [(True, "done", "rank"), (False, "skipped", None)])
def test_the_page_cache_is_flushed_where_it_is_asked_for(
    asked: bool, status: str, by: str | None, drop_caches: tuple[Path, Path]
) -> None:
    state = provenance.clear_caches(asked)
    assert (state.status, state.by, [file.exists() for file in drop_caches]) == (status, by, [False, asked])


def test_in_a_container_the_hosts_page_cache_is_flushed(drop_caches: tuple[Path, Path]) -> None:
    in_container, outside = drop_caches
    in_container.touch()
    assert provenance.clear_caches(True).status == "done"
    assert (in_container.read_text(), outside.exists()) == ("3\n", False)


def test_a_page_cache_that_cannot_be_flushed_is_said_with_the_reason(
    drop_caches: tuple[Path, Path], monkeypatch
) -> None:
    in_container, _ = drop_caches
    in_container.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    state = provenance.clear_caches(True)
    assert (state.status, state.reason) == ("skipped", f"{in_container}: Is a directory")


# ---- how a command ends


@pytest.mark.parametrize("package", ["paddle_rn50", "paddle_hrnet"])
def test_a_workloads_module_is_no_command(package: str) -> None:
    """It used to die in Paddle's zlib, or to hang, where neither mpirun nor a job's environment was there."""
    command = [sys.executable, "-m", f"{package}.train"]
    environ = {"PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=jobs.REPOSITORY, env=environ, capture_output=True, text=True, timeout=120)
    error = f"error: {package}/train.py is not a command: start a job by ./run_and_time.sh"
    assert (done.returncode, done.stdout, done.stderr.splitlines()[-1]) == (2, "", error)
