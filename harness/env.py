"""The environment of a job: every variable a user may set, read here and nowhere else.

A value comes from the user's environment, else from `config_<SYSTEM>.sh`, else from here. `resolve` evaluates the
config file and leaves in JOB_FROM_USER and JOB_FROM_CONFIG the names that the first two set. So each rank can write
into the log where a value came from. The shell gets all of it by `load_job` of launch/common.sh. A hyperparameter
belongs to a recipe, not here.
"""

import argparse
import dataclasses
import difflib
import functools
import importlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.libraries import LIBRARIES, SECRET, TF32_OVERRIDE, dropped, handed_on, mkl_settings, of_network, secrets
from program.strategy import Strategy, parse

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = {"rn50": "paddle_rn50", "hrnet": "paddle_hrnet"}
MODELS = {"rn50": "resnet50_v1.5", "hrnet": "fcn_hrnetw18"}  # as scoring/published/published.csv names them
PRECISIONS = ("fp32", "tf32", "amp_o1", "amp_o2")

OF_THE_SHELL = ("_", "PWD", "OLDPWD", "SHLVL")  # what bash sets by itself

Origins = dict[str, dict[str, Any]]  # {VARIABLE: {"value": ..., "origin": who set it}}


def _var(doc: str, default: Any, *, choices: tuple[str, ...] = (), least: int | None = None) -> Any:
    return field(default=default, metadata={"doc": doc, "choices": choices, "least": least})


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job as its environment describes it; the variable of a field is its name in capitals."""

    dgxsystem: str = _var("system: the SYSTEM of a `config_<SYSTEM>.sh`", "CPU")
    workload: str = _var("model to train", "rn50", choices=tuple(WORKLOADS))
    mode: str = _var(
        "`train` to the target, or `throughput`: a fixed number of steps", "train", choices=("train", "throughput")
    )
    recipe: str = _var(
        "recipe of `paddle_<workload>/config.py`; empty: that of `RN50_RECIPE` or `HRNET_RECIPE`, "
        "else the workload's small default",
        "",
    )
    batchsize: int = _var(
        "images a step on one device; for one workload alone: `RN50_BATCHSIZE`, `HRNET_BATCHSIZE`", 16, least=1
    )
    precision: str = _var("arithmetic of the training program", "fp32", choices=PRECISIONS)
    loss_scale: int = _var("scale of the FP16 loss; 0: dynamic, and fixed for a captured step", 0, least=0)
    layout: str = _var("image layout of the program; empty: NHWC in half precision", "", choices=("", "NCHW", "NHWC"))
    strategy: str = _var("`auto`, or `knob=value,...` of program/strategy.py; empty: its defaults", "")
    device: str = _var("where the program runs", "cpu", choices=("cpu", "gpu"))
    data: str = _var("`real`, or `synthetic`: one batch made once", "real", choices=("real", "synthetic"))
    datadir: str = _var("data set in ImageNet's layout, rn50: or packed; empty: the embedded digits", "")
    image_size: int = _var("side of the square training crop in pixels; 0: the recipe's", 0, least=0)
    pretrained: str = _var("hrnet: weights to start from, a .pdparams file of PaddleSeg; empty: none", "")
    logdir: str = _var("folder of the results", "results")
    nexp: int = _var("trials, one log each", 1, least=1)
    on_failure: str = _var("after a failed trial `stop`, or `go_on`", "stop", choices=("stop", "go_on"))
    keep_trials: int = _var("1, set by a launcher that goes on: trials that have a log are not run again", 0, least=0)
    seed: int = _var("seed of the first trial, later ones count up; -1: from the OS", -1, least=-1)
    clear_caches: int = _var("1: flush the page cache before each trial (needs root)", 1, least=0)
    cache_cleared: str = _var("set by a launcher that flushed outside the container: how it did", "")
    dgxnnodes: int = _var("nodes", 1, least=1)
    dgxngpu: int = _var("ranks on a node: its GPUs, or on a CPU its processes", 2, least=1)
    threads: int = _var("CPU threads a rank for compute; 0: cores / ranks of the node", 0, least=0)
    data_threads: int = _var("CPU threads a rank for the input pipeline; 0: as many as `THREADS`", 0, least=0)
    print_steps: int = _var("steps between two printed windows", 5, least=1)
    warmup_steps: int = _var("throughput mode: steps before the measured ones", 10, least=1)
    measured_steps: int = _var("throughput mode: measured steps", 50, least=1)
    max_epochs: int = _var("epochs of a training run and its schedule, but mlperf_lars'; 0: the recipe's", 0, least=0)
    progress: str = _var(
        "`bar` or `plain` output while it runs; empty: as the terminal allows", "", choices=("", "bar", "plain")
    )
    submission_org: str = _var("organisation named in the log", "not stated")
    submission_division: str = _var("MLPerf division", "open", choices=("closed", "open"))
    submission_status: str = _var("MLPerf status", "research", choices=("cloud", "onprem", "preview", "research"))
    submission_platform: str = _var("platform named in the log; empty: `DGXSYSTEM`", "")
    gloo_port: int = _var("TCP port of the ranks' rendezvous on a CPU; 0: a free one", 0, least=0)
    result_file: str = _var("set by the trial loop: the log of this trial", "")
    data_cache: str = _var("folder in which the embedded data set is made", "data")
    checkpoint_epochs: int = _var("epochs between two checkpoints; 0: none by epochs", 0, least=0)
    checkpoint_minutes: int = _var("minutes between two checkpoints; 0: none by time", 15, least=0)
    checkpoint_keep: int = _var("checkpoints kept, the newest", 2, least=1)
    checkpoint_dir: str = _var("folder of the checkpoints; empty: beside the log", "")
    resume: str = _var("`auto`: go on from the last good checkpoint", "no", choices=("no", "auto"))
    hang_timeout_s: int = _var("seconds without progress after which a rank ends the run; 0: never", 300, least=0)
    telemetry_s: int = _var("seconds between two samples of each node's sensors; 0: none", 1, least=0)
    telemetry_prometheus: str = _var("text file for node_exporter, rewritten with each sample; empty: none", "")
    profile: str = _var("`steps:a-b`: trace steps a to b; the run may then not be published", "")
    hosts: str = _var("the nodes' names, comma-separated, the first node first", "")
    node_rank: int = _var("this node's number, from 0", 0, least=0)
    hostfile: str = _var("file with the name of one node a line, instead of `HOSTS`", "")
    job_key: str = _var("several nodes: file of the job's private ssh key, the same on each", "")
    ssh_port: int = _var("several nodes: port of the waiting nodes' sshd", 2222, least=1)
    ssh_address: str = _var("several nodes: address that sshd listens on; empty: all", "")
    node_wait_s: int = _var("several nodes: seconds that they wait for each other", 300, least=1)
    switch_groups: str = _var("fleet: switch group of each of `HOSTS`, with commas between; empty: all in one", "")
    fleet_baseline: str = _var("fleet: an earlier fleet.json, on the first node, to compare with; empty: none", "")
    rank_numa: str = _var("NUMA node of each rank of a node, with commas between; empty: ranks roam", "")
    source_commit: str = _var("set in an image, which has no git: commit of the code", "")
    image_digest: str = _var("set in a container by its launcher: digest of the image", "")

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.dgxnnodes * self.dgxngpu

    @property
    def global_batch(self) -> int:
        """Images a step over all ranks."""
        return self.batchsize * self.world_size

    @property
    def threads_per_rank(self) -> int:
        """CPU threads a rank computes with."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // self.dgxngpu)

    @property
    def package(self) -> str:
        """Python package of the workload."""
        return WORKLOADS[self.workload]

    @functools.cached_property
    def knobs(self) -> Strategy:
        """STRATEGY, parsed. Raises ValueError where it names an unknown or refused knob, or gives one a wrong value."""
        return parse(self.strategy)

    @functools.cached_property
    def hyperparameters(self) -> Any:
        """The recipe of `paddle_<workload>/config.py`. Raises ValueError where there is none, or none for the batch."""
        config = importlib.import_module(f"{self.package}.config")
        return config.recipe(self.recipe, global_batch=self.global_batch, image_size=self.image_size)


# Of a fixed loss scale, as the twin shows it (docs/program.md). By one of 1 at 224 px FP16 flushes less than 1 % of
# ResNet-50's gradients to 0; at 32 px 1.23 %. At 10 times the images the first step overflows, of four images alone; at
# 5 it does not. Baidu's runs have 1.
IMAGES_TO_SCALE, MOST_SCALE = 16, 4


def _refusals(job: Job, tf32_override: str) -> Iterator[str]:
    """What is wrong with settings together."""
    gpu, scaled, trains = job.device == "gpu", f"LOSS_SCALE={job.loss_scale}", job.mode == "train"
    if not gpu and job.precision != "fp32":
        yield f"PRECISION={job.precision}: a CPU has no kernels for it: use fp32 or DEVICE=gpu"
    if not job.logdir:
        yield "LOGDIR is empty: set it to the folder of the results, or unset it"
    if job.dgxnnodes == 1 and (named := job.hosts.count(",") + 1) > 1:
        yield f"HOSTS names {named} nodes, but DGXNNODES is 1: set DGXNNODES={named}, or unset HOSTS"
    if job.pretrained and job.workload != "hrnet":
        yield f"PRETRAINED={job.pretrained}: {job.workload} starts from weights of its own: unset it, or WORKLOAD=hrnet"
    if trains and (job.workload, job.recipe) == ("rn50", "recorded"):
        yield "RECIPE=recorded: it is for the first steps of MODE=throughput: train by nvidia_cosine"
    if job.loss_scale and job.precision not in ("amp_o1", "amp_o2"):
        yield f"{scaled}: only FP16's loss is scaled: set 0, or PRECISION=amp_o1 or amp_o2"
    if job.loss_scale and job.workload != "rn50":
        yield f"{scaled}: a fixed scale was shown to hold for ResNet-50 alone: set 0"
    least, most = (max(2, n) for n in (math.ceil(job.global_batch / IMAGES_TO_SCALE), job.global_batch * MOST_SCALE))
    if job.loss_scale and not least <= job.loss_scale <= most:
        mean = f"the gradients of a mean over {job.global_batch} images"
        yield f"{scaled}: FP16 is shown to hold {mean} at {least} to {most} alone: set one of these, or 0"
    if job.node_rank >= job.dgxnnodes:
        yield f"NODE_RANK={job.node_rank}: must be below DGXNNODES={job.dgxnnodes}"
    steps = job.warmup_steps + job.measured_steps
    if job.profile and traced_steps(job.profile)[1] > steps and not trains:
        ends = f"the run ends with step {steps} (WARMUP_STEPS + MEASURED_STEPS)"
        yield f"PROFILE={job.profile}: {ends}: trace earlier ones, or set MEASURED_STEPS to more"
    if job.resume == "auto" and not trains:
        yield "RESUME=auto: a run of MODE=throughput has no checkpoints: set MODE=train"
    if gpu and job.precision == "fp32" and tf32_override not in ("", "0"):
        yield f"PRECISION=fp32: {TF32_OVERRIDE}={tf32_override} allows TF32: unset it, or set PRECISION=tf32"
    if gpu and job.precision == "tf32" and tf32_override == "0":
        yield f"PRECISION=tf32: {TF32_OVERRIDE}=0 has it computed in FP32: unset it, or set PRECISION=fp32"


def traced_steps(text: str) -> tuple[int, int]:
    """First and last step of PROFILE. Raises ValueError where it is none."""
    match = re.fullmatch(r"steps:(\d{1,9})-(\d{1,9})", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"PROFILE={text!r}: must be steps:a-b with 1 <= a <= b, as steps:20-25")
    return int(match[1]), int(match[2])


PER_WORKLOAD = ("BATCHSIZE", "RECIPE")  # what a config file gives for each workload, as HRNET_BATCHSIZE


def names() -> list[str]:
    """Every variable that describes a job."""
    fields = [f.name.upper() for f in dataclasses.fields(Job)]
    return fields + [f"{workload.upper()}_{name}" for workload in WORKLOADS for name in PER_WORKLOAD]


def _parse(f: dataclasses.Field[Any], text: str) -> Any:
    name, meta = f.name.upper(), f.metadata
    value: Any = text
    if isinstance(f.default, int):
        if not re.fullmatch(r"-?\d{1,18}", text):
            raise ValueError(f"{name}={text!r}: must be a whole number ({meta['doc']})")
        value = int(text)
        if meta["least"] is not None and value < meta["least"]:
            raise ValueError(f"{name}={value}: must be at least {meta['least']} ({meta['doc']})")
    elif meta["choices"] and text not in meta["choices"]:
        raise ValueError(f"{name}={text!r}: must be one of {', '.join(c or 'empty' for c in meta['choices'])}")
    return value


def read(environ: Mapping[str, str] = os.environ) -> tuple[Job, Origins]:
    """The job that the environment describes, and {VARIABLE: {"value", "origin"}}.

    Raises ValueError for a value that is no number, out of range, none of the choices, or at odds with another.
    """
    from_user, from_config = (set(environ.get(f"JOB_FROM_{whom}", "").split()) for whom in ("USER", "CONFIG"))
    workload = environ.get("WORKLOAD", Job.workload).upper()
    origins: Origins = {}
    for f in dataclasses.fields(Job):
        name = f.name.upper()
        known = [name, f"{workload}_{name}"] if name in PER_WORKLOAD else [name]
        text = next((environ[one] for one in known if environ.get(one)), environ.get(name))
        value, origin = f.default, "harness/env.py"
        if text is not None and (text or not isinstance(f.default, int)):
            value = _parse(f, text)
            if "JOB_FROM_USER" not in environ or from_user.intersection(known):
                origin = "environment"
            elif from_config.intersection(known):
                origin = f"config_{environ.get('DGXSYSTEM', '')}.sh"
            elif value != f.default:
                origin = "launch/trials.sh"
        origins[name] = {"value": value, "origin": origin}
    job = Job(**{name.lower(): entry["value"] for name, entry in origins.items()})
    if refusal := next(_refusals(job, environ.get(TF32_OVERRIDE, "")), ""):
        raise ValueError(refusal)
    return job, origins


def resolve(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment with what `config_<DGXSYSTEM>.sh` adds to it; one that went through here is left as it is.

    What the file has for one workload and precision alone, as RN50_AMP_O2_STRATEGY, goes before what it has for all.

    Raises ValueError where there is no such file, or bash refuses it.
    """
    if "JOB_FROM_CONFIG" in environ:
        return dict(environ)
    system = environ.get("DGXSYSTEM") or Job.dgxsystem
    found = _left_by_config(system, environ)
    prefix = f"{found.get('WORKLOAD') or Job.workload}_{found.get('PRECISION') or Job.precision}_".upper()
    alone = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
    found |= {name: value for name, value in alone.items() if not environ.get(name)}
    return dict(environ) | {
        **found,
        "DGXSYSTEM": system,
        "JOB_FROM_USER": " ".join(name for name in names() if name in environ),
        "JOB_FROM_CONFIG": " ".join(name for name in found if name not in environ),
    }


def _left_by_config(system: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment as bash leaves it that evaluates the system's file."""
    config = ROOT / f"config_{system}.sh"
    if not config.is_file():
        there = ", ".join(sorted(path.stem.removeprefix("config_") for path in ROOT.glob("config_*.sh")))
        raise ValueError(f"DGXSYSTEM={system}: there is no config_{system}.sh; there are: {there}")
    command = ["bash", "-euc", 'source "$1" >/dev/null; env -0', "_", str(config)]
    done = subprocess.run(command, env=dict(environ), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{config.name}: {done.stderr.strip() or 'bash refuses it'}: correct the file")
    pairs = (entry.partition("=") for entry in done.stdout.split("\0") if entry)
    return {name: value for name, _, value in pairs if name not in OF_THE_SHELL}


def of_system(**variables: str) -> Job:
    """The job of these variables alone over their system's config file. Raises ValueError as `resolve` and `read`."""
    return read(resolve({"PATH": os.defpath} | variables))[0]


def without(prefix: str) -> dict[str, str]:
    """This process's environment but for the variables that begin with `prefix`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(prefix)}


ALIKE, LEAST_LETTERS = 0.88, 6  # by difflib's ratio; what is near a shorter name (MODE, HOSTS) is MODEL or HOST


def misspelt(environ: Mapping[str, str]) -> list[str]:
    """A warning for each variable that nobody reads and whose name is nearly that of one of the job's."""
    known = names()
    long = [name for name in known if len(name) >= LEAST_LETTERS]
    near = {name: difflib.get_close_matches(name, long, n=1, cutoff=ALIKE) for name in environ if name not in known}
    near |= {name: [name.upper()] for name in near if name.upper() in known}
    return [f"{name}={environ[name]} is read by nothing: is it {found[0]}?" for name, found in near.items() if found]


def refusal(**changed: str) -> str:
    """Why the environment with these variables changed describes no job; empty if it does."""
    try:
        read(dict(os.environ) | changed)
    except ValueError as reason:
        return str(reason)
    return ""


def runtime(job: Job) -> dict[str, str]:
    """Settings that Paddle and its libraries read from this rank's environment when they are loaded."""
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "FLAGS_paddle_num_threads")
    settings = dict.fromkeys(threads, str(job.threads_per_rank))
    settings["GLOG_minloglevel"] = "2"  # Paddle's C++ chatter below errors
    if job.device == "cpu":
        # The parallel executor's scheduling costs more than it gains on a few cores.
        settings["FLAGS_new_executor_serial_run"] = "1"
        if job.workload == "hrnet":  # a sixth faster, having many small tensors; ResNet-50 gains nothing
            settings["FLAGS_eager_delete_tensor_gb"] = "1"
        return settings | mkl_settings(Path("/proc/cpuinfo").read_text())
    settings["CUDA_MODULE_LOADING"] = "LAZY"  # else the driver loads 1.8 GB of kernels, of which a run takes few
    settings["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as nvidia-smi numbers them, and what is sampled of them
    settings["FLAGS_selected_gpus"] = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")  # else GPU 0
    if job.precision == "fp32":
        settings[TF32_OVERRIDE] = "0"  # Ampere would compute "FP32" in TF32
    if job.workload == "hrnet":
        settings["FLAGS_dynamic_static_unified_comm"] = "0"  # passes/sync_bn.py says why, and refuses another value
    return settings


def libraries(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The libraries' variables, for a log: `runtime`'s and the config file's among them, without a secret's value."""
    names = sorted(name for name in environ if name.startswith(LIBRARIES))
    return {name: "not logged: a secret by its name" if SECRET.search(name) else environ[name] for name in names}


def export(settings: Mapping[str, str]) -> None:
    """Puts settings into this process's environment; one that the user has set stays."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def of_ranks(job: Job, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment that the job's ranks compute in: without NCCL's network on one node, with what `runtime` sets."""
    left_out = of_network(environ) if job.dgxnnodes == 1 else []
    kept = {name: value for name, value in environ.items() if name not in left_out}
    return runtime(job) | kept


def visible_gpus() -> str | None:
    """CUDA_VISIBLE_DEVICES, by which CUDA shows this process some of the node's GPUs; None where it is not set."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def export_trainer(rank: int, endpoints: list[str]) -> None:
    """Tells Paddle's fleet who this rank is and which ranks there are."""
    os.environ.update(
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM=str(len(endpoints)),
        PADDLE_TRAINER_ENDPOINTS=",".join(endpoints),
        PADDLE_CURRENT_ENDPOINT=endpoints[rank],
    )


def is_rank() -> bool:
    """Whether mpirun started this process."""
    return "OMPI_COMM_WORLD_SIZE" in os.environ


def columns() -> int:
    """Width of the user's terminal, as the shell passed it on."""
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdigit() and int(text) > 20 else 100


def table() -> str:
    """The variables as the rows of a Markdown table, for docs/settings.md."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for f in dataclasses.fields(Job):
        default = f"`{f.default}`" if f.default != "" else ""
        choices = [c for c in f.metadata["choices"] if c and f"`{c}`" not in f.metadata["doc"]]
        doc = f.metadata["doc"] + (": " + ", ".join(f"`{c}`" for c in choices) if choices else "")
        rows.append(f"| `{f.name.upper()}` | {default} | {doc} |")
    return "\n".join(rows)


def _exports(environ: Mapping[str, str], added: Mapping[str, str], origins: Origins) -> dict[str, str]:
    """What the shell of a node is told: the job with every value resolved, and what mpirun hands to the ranks."""
    settings = {name: str(entry["value"]) for name, entry in origins.items()}
    nodes = int(settings["DGXNNODES"])
    forwarded = {*settings, "JOB_FROM_USER", "JOB_FROM_CONFIG"} | set(handed_on(environ, nodes=nodes))
    lists = {"JOB_FORWARDED": " ".join(sorted(forwarded)), "JOB_SECRETS": secrets(environ)}
    return {**added, **settings, **lists, **dropped(environ, nodes)}


def _launch(before: Mapping[str, str], added: Mapping[str, str], job: Job) -> dict[str, str]:
    """What a launcher is told: the container's settings, the nodes, and which of its variables it hands to them.

    What a config file sets is not handed on: run_and_time.sh reads it on each node. Open MPI's own settings are.
    """
    container = {name: value for name, value in added.items() if name.startswith("CONT_")}
    given = {*names()}.intersection(before)
    given.update(handed_on(before, "OMPI_MCA_", "PRTE_MCA_", nodes=job.dgxnnodes))
    told = {"DGXNNODES": str(job.dgxnnodes), "JOB_DEVICE": job.device, "JOB_GIVEN": " ".join(sorted(given))}
    return {**container, **told, "JOB_SECRETS": secrets(before)}


def main() -> int:
    """`python -m harness.env`: the job that this environment and its system's config file describe."""
    parser = argparse.ArgumentParser(prog="python -m harness.env", description=main.__doc__)
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--json", action="store_true", help="{NAME: {value, origin}}")
    form.add_argument(
        "--shell", action="store_true", help="NAME=VALUE with a NUL after each: what run_and_time.sh exports"
    )
    form.add_argument("--launch", action="store_true", help="the same for a launcher, whose host has Python alone")
    form.add_argument("--table", action="store_true", help="the variables as a Markdown table")
    args = parser.parse_args()
    if args.table:
        print(table())
        return 0
    try:
        environ = resolve()
        job, origins = read(environ)
        if not args.launch:
            _ = job.knobs, job.hyperparameters  # what is wrong in them is said now
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if "JOB_FROM_CONFIG" not in os.environ:  # once: not of what a launcher has resolved
        for warning in misspelt(os.environ):
            print(f"warning: {warning}", file=sys.stderr)
    if args.json:
        print(json.dumps(origins, indent=1))
        return 0
    added = {name: value for name, value in environ.items() if os.environ.get(name) != value}
    exports = _launch(os.environ, added, job) if args.launch else _exports(environ, added, origins)
    sys.stdout.write("".join(f"{name}={value}\0" for name, value in exports.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
