"""The environment of a job: every variable a user may set, read here and nowhere else.

A value comes from the user's environment, else from `config_<SYSTEM>.sh`, else from `harness/job.py`. `resolve`
evaluates the config file and leaves in JOB_FROM_USER and JOB_FROM_CONFIG the names that the first two set, so that each
rank can write into the log where a value came from. The shell gets all of it by `load_job` of launch/common.sh.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness import refusals
from harness.job import PER_WORKLOAD, SETTINGS, Origins, Setting, ValueWithOrigin, job_of, names, prefix_of
from harness.job import Job as Job  # for those who read the environment and name what they got
from harness.libraries import LIBRARIES, SECRET, TF32_OVERRIDE, mkl_settings, of_network
from runlog import workloads

ROOT = Path(__file__).resolve().parents[1]
OF_THE_SHELL = ("_", "PWD", "OLDPWD", "SHLVL")  # what bash sets by itself
MPI_TRANSPORTS = "OMPI_MCA_btl"
ORIGIN_OF_DEFAULTS = "harness/job.py"  # in a log, of a value that was not set; "harness/env.py" in older logs


# ---- reading a job


def read(environ: Mapping[str, str] = os.environ) -> tuple[Job, Origins]:
    """Return the job that an environment describes, and the value of each of its settings with who set it.

    Args:
        environ: Environment variables, as `resolve` returns them; an unresolved environment lacks what a system's
            config file sets.

    Returns:
        (job, origins). An entry of the origins is {"BATCHSIZE": {"value": 256, "origin": "environment"}}.

    Raises:
        ValueError: A value is not of its form, or at odds with another.
    """
    origins = {name: _value_with_origin(setting, environ) for name, setting in SETTINGS.items()}
    job = job_of(**{name: entry["value"] for name, entry in origins.items()})
    refusals.raise_first(refusals.of_settings(job, environ.get(TF32_OVERRIDE, "")))
    return job, origins


def _value_with_origin(setting: Setting, environ: Mapping[str, str]) -> ValueWithOrigin:
    """Return the value of a setting and who set it, as {"value": 256, "origin": "environment"}.

    Args:
        setting: The setting.
        environ: The environment of the job.

    Raises:
        ValueError: The text in the environment is not of the setting's form. The message is as "RN50_BATCHSIZE='many':
            must be a whole number". If the config file set the variable, "config_DGX1.sh: " stands before it.
    """
    variable = _variable_that_sets(setting, environ)  # as "BATCHSIZE", or "RN50_BATCHSIZE" of the workload
    if variable is None:
        return {"value": setting.default, "origin": ORIGIN_OF_DEFAULTS}
    try:
        value = setting.parse(environ[variable])
    except ValueError as error:
        fault = str(error).removeprefix(setting.variable)  # "='many': must be a whole number"
        where = _where_text_was_written(setting, variable, environ)  # "config_DGX1.sh: RN50_BATCHSIZE"
        raise ValueError(f"{where}{fault}") from None
    return {"value": value, "origin": _origin(setting, value, environ)}


def _where_text_was_written(setting: Setting, variable: str, environ: Mapping[str, str]) -> str:
    """Return the variable in which a setting's text was written, such as "BATCHSIZE" or "config_DGX1.sh: BATCHSIZE".

    Args:
        setting: The setting.
        variable: The variable from which the text was read.
        environ: The environment of the job.
    """
    precision = environ.get("PRECISION", str(SETTINGS["PRECISION"].default))
    for_job = prefix_of(_workload_of(environ), precision) + setting.variable  # RN50_AMP_O2_BATCHSIZE
    is_copy = environ.get(for_job) == environ[variable]  # `resolve` copies RN50_AMP_O2_BATCHSIZE to BATCHSIZE
    written_in = for_job if is_copy else variable
    set_by_config = environ.get("JOB_FROM_CONFIG", "").split()
    return f"{_config_file(environ)}: {written_in}" if written_in in set_by_config else written_in


def _workload_of(environ: Mapping[str, str]) -> str:
    """Return the name of the workload that an environment has or, without one, the default; the name is not checked."""
    return environ.get("WORKLOAD", str(SETTINGS["WORKLOAD"].default))


def _accepted_names(setting: Setting, environ: Mapping[str, str]) -> list[str]:
    """List the variables that may set a setting: its own and, for some, one of the workload, such as RN50_BATCHSIZE.

    Args:
        setting: The setting.
        environ: The environment of the job, which names the workload.
    """
    if setting.variable in PER_WORKLOAD:
        return [setting.variable, f"{_workload_of(environ).upper()}_{setting.variable}"]
    return [setting.variable]


def _variable_that_sets(setting: Setting, environ: Mapping[str, str]) -> str | None:
    """Return the name of the environment variable that gives a setting its value; None if the default counts.

    It is the first that is not empty. Without such a variable, an empty text is a value, but an empty number is none.

    Args:
        setting: The setting.
        environ: The environment of the job.
    """
    for name in _accepted_names(setting, environ):  # as "RECIPE", and then "RN50_RECIPE" of the workload
        if environ.get(name):
            return name
    is_set_but_empty = setting.variable in environ
    is_text = not setting.is_number
    if is_set_but_empty and is_text:
        return setting.variable
    return None


def _origin(setting: Setting, value: str | int, environ: Mapping[str, str]) -> str:
    """Return who set a setting that has a variable in the environment, such as "environment" (the user) or
    "config_DGX1.sh".

    Args:
        setting: The setting.
        value: Its value.
        environ: The environment of the job. If `resolve` has made it, JOB_FROM_USER names the user's variables, and
            JOB_FROM_CONFIG those of the config file.

    Returns:
        "environment", the name of the config file or, for what neither of the two set, the script that set it.
    """
    if "JOB_FROM_USER" not in environ:  # without `resolve`, only a user can have set the variable
        return "environment"
    set_by_user = environ["JOB_FROM_USER"].split()
    set_by_config = environ.get("JOB_FROM_CONFIG", "").split()
    for name in _accepted_names(setting, environ):  # as "BATCHSIZE", and then "RN50_BATCHSIZE" of the workload
        if name in set_by_user:
            return "environment"
        if name in set_by_config:
            return _config_file(environ)
    # A script of this project has set the variable: run_and_time.sh, which exports the defaults, or else the trial
    # loop, which sets the SEED of each trial.
    return ORIGIN_OF_DEFAULTS if value == setting.default else "launch/trials.sh"


def _config_file(environ: Mapping[str, str]) -> str:
    """Return the name of the config file of a job's system, such as "config_DGX1.sh".

    Args:
        environ: The environment of the job, as `resolve` returns it.
    """
    return f"config_{environ.get('DGXSYSTEM', '')}.sh"


def resolve(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a job, completed by the config file of the system that it runs on.

    The file is a bash script, `config_<DGXSYSTEM>.sh`, which is run in the given environment. A setting that the user
    has given a value keeps it, whatever the file exports. A variable for one workload at one precision, such as
    RN50_AMP_O2_STRATEGY, also gives the general STRATEGY its value in such a job (`_copied_from`). Of the defaults only
    DGXSYSTEM's is filled in.

    Args:
        environ: The user's environment. DGXSYSTEM in it names the system, such as "DGXA100".

    Returns:
        A new dict: `environ`, the variables as they are after the config file, and two lists of names separated by
        spaces, from which logs tell where a value came from:

            JOB_FROM_USER:    the job's settings whose values are the user's
            JOB_FROM_CONFIG:  the variables whose values are the file's

        Empty settings that have no effect are in neither. An environment that has JOB_FROM_CONFIG already is returned
        as an unchanged copy.

    Raises:
        ValueError: There is no config file for this system, or bash fails to run it.
    """
    if is_resolved(environ):
        return dict(environ)
    system = environ.get("DGXSYSTEM") or str(SETTINGS["DGXSYSTEM"].default)
    after_config = _variables_after_config(system, environ) | _given_by_user(environ)
    copied_from = _copied_from(after_config, environ)  # {"STRATEGY": "RN50_AMP_O2_STRATEGY"}
    variables = after_config | {general: after_config[name] for general, name in copied_from.items()}
    job_has = variables | {"DGXSYSTEM": system}

    set_by_user = []
    set_by_config = []
    empty_without_effect = _unread(variables)
    for name, value in variables.items():
        if name in empty_without_effect:
            continue
        # Whoever set RN50_AMP_O2_STRATEGY has also set the STRATEGY that is copied from it.
        source = copied_from.get(name, name)
        if environ.get(source) == job_has[name]:
            set_by_user.append(name)
        elif value == job_has[name]:  # not so where the default stands in for an empty DGXSYSTEM
            set_by_config.append(name)
    settings_of_user = [name for name in names() if name in set_by_user]
    who_set_them = {"JOB_FROM_USER": " ".join(settings_of_user), "JOB_FROM_CONFIG": " ".join(set_by_config)}
    return dict(environ) | job_has | who_set_them  # `job_has` has all of `environ` but a shell's own, as PWD


def _given_by_user(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a job that the user has given a value, those for one workload and precision among them.

    Args:
        environ: The user's environment.
    """
    general_names = names()
    prefixes = tuple(f"{workload.upper()}_" for workload in workloads.NAMES)  # as RN50_ of RN50_AMP_O2_STRATEGY
    return {
        name: value for name, value in environ.items() if value and (name in general_names or name.startswith(prefixes))
    }


def is_resolved(environ: Mapping[str, str]) -> bool:
    """Return whether `resolve` made an environment, so that the system's config file has been applied.

    Args:
        environ: Environment variables.
    """
    return "JOB_FROM_CONFIG" in environ


def _unread(variables: Mapping[str, str]) -> set[str]:
    """Return the names of a job's variables that are not set, or are empty and give no setting its value.

    Such are an empty BATCHSIZE, as any empty number, and an empty RECIPE with an RN50_RECIPE that is not empty.

    Args:
        variables: Environment variables of the job.
    """
    sources = {_variable_that_sets(setting, variables) for setting in SETTINGS.values()}
    return {name for name in names() if not variables.get(name) and name not in sources}


def _copied_from(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the special variables to copy to general ones, as {"STRATEGY": "RN50_AMP_O2_STRATEGY"}.

    The program reads the general STRATEGY. A special variable counts only in jobs of one workload, such as
    RN50_BATCHSIZE, or of one workload at one precision, such as RN50_AMP_O2_STRATEGY.

    Args:
        variables: The environment after the config file.
        environ: The user's environment.
    """
    workload = str(variables.get("WORKLOAD") or SETTINGS["WORKLOAD"].default)
    precision = str(variables.get("PRECISION") or SETTINGS["PRECISION"].default)
    prefix_of_workload = f"{workload.upper()}_"  # as RN50_
    prefix_of_job = prefix_of(workload, precision)  # as RN50_AMP_O2_

    general_names = list(PER_WORKLOAD)
    general_names += [name.removeprefix(prefix_of_job) for name in variables if name.startswith(prefix_of_job)]
    copied_from = {}
    for general_name in general_names:  # as BATCHSIZE
        for_workload = f"{prefix_of_workload}{general_name}"  # RN50_BATCHSIZE
        for_job = f"{prefix_of_job}{general_name}"  # RN50_AMP_O2_BATCHSIZE
        source = _source_of_general(general_name, for_workload, for_job, variables, environ)
        if source is not None:
            copied_from[general_name] = source
    return copied_from


def _source_of_general(
    general: str, for_workload: str, for_job: str, variables: Mapping[str, str], environ: Mapping[str, str]
) -> str | None:
    """Return the special variable whose value a general one must get; None if it stays as it is.

    What the user sets comes before what the config file sets, and an empty variable of the user's counts as not set.

    Args:
        general: Name of the general variable, such as "BATCHSIZE".
        for_workload: That for one workload, such as "RN50_BATCHSIZE".
        for_job: That for one workload at one precision, such as "RN50_AMP_O2_BATCHSIZE".
        variables: The environment after the config file.
        environ: The user's environment.
    """
    if environ.get(general):
        return None
    if environ.get(for_job):
        return for_job
    is_read_per_workload = general in PER_WORKLOAD  # RN50_BATCHSIZE is read, but RN50_STRATEGY never
    if is_read_per_workload and environ.get(for_workload):
        # The file's BATCHSIZE would hide the user's RN50_BATCHSIZE. Without one, RN50_BATCHSIZE is read itself.
        config_sets_general = bool(variables.get(general))
        return for_workload if config_sets_general else None
    config_sets_for_job = for_job in variables and variables[for_job] != environ.get(for_job)
    return for_job if config_sets_for_job else None


# What bash runs; $1 is the config file, the other words are the names of all settings. One that the file sets without
# `export` counts, too. A NUL ends each variable that is printed, as a value may hold a line feed.
AFTER_CONFIG = """
source "$1" >/dev/null
shift
for name; do
  if [[ -v ${name} ]]; then export "${name}"; fi
done
env -0
"""


def _variables_after_config(system: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Run the config file of a system by bash, and return all environment variables after it.

    A setting that the file sets without `export` is returned, too.

    Args:
        system: Name of the system, as "DGX1" of the file config_DGX1.sh.
        environ: Environment in which the file is run.

    Returns:
        {name: value}, without what bash sets by itself, as PWD.

    Raises:
        ValueError: There is no such file, or bash fails or ends in it.
    """
    config = ROOT / f"config_{system}.sh"
    systems = sorted(path.stem.removeprefix("config_") for path in ROOT.glob("config_*.sh") if path.is_file())
    if system not in systems:
        if "/" in system:
            raise ValueError(
                f"DGXSYSTEM={system}: is a path, must be the SYSTEM of a config_SYSTEM.sh in {ROOT}: name one of "
                f"{', '.join(systems)}"
            )
        raise ValueError(
            f"DGXSYSTEM={system}: there is no config_{system}.sh; there are: {', '.join(systems)}: "
            f"name one of these or, for a machine of your own, copy one of their files to config_{system}.sh"
        )
    # AFTER_CONFIG runs the file, exports each setting of `names()` that is set, and prints all variables. "_" is the
    # script's name, $0.
    command = ["bash", "-euc", AFTER_CONFIG, "_", str(config), *names()]
    done = subprocess.run(command, env=dict(environ), cwd=ROOT, capture_output=True, check=False)
    printed_nothing = not done.stdout  # the file called `exit 0`, so that bash never came to print the variables
    if done.returncode != 0 or printed_nothing:
        message = os.fsdecode(done.stderr).strip()
        reason = message or f"a command in it ended bash with status {done.returncode}"
        raise ValueError(f"{config.name}: {reason}: correct the file")

    return _printed_variables(os.fsdecode(done.stdout))


def _printed_variables(printed: str) -> dict[str, str]:
    """Return the variables that AFTER_CONFIG prints as NAME=value, with a NUL behind each.

    Args:
        printed: The text.

    Returns:
        {name: value}, without what bash sets by itself, as PWD.
    """
    variables = {}
    for entry in printed.split("\0"):  # the last is empty
        name, _, value = entry.partition("=")
        # A function that the file exports is not a variable that a shell could take: BASH_FUNC_f%%.
        if name.isidentifier() and name not in OF_THE_SHELL:
            variables[name] = value
    return variables


def of_system(**variables: str) -> Job:
    """Return the job of some variables and their system's config file; this process's environment does not count.

    Args:
        variables: Values by the names of environment variables, with DGXSYSTEM for a system that is not the default.

    Raises:
        ValueError: There is no such system, its config file fails, or a value is wrong.
    """
    job, _ = read(resolve({"PATH": os.defpath} | variables))
    return job


def apply_config() -> None:
    """Complete this process's environment by the config file of the system that it names, as `resolve` does.

    An environment that a launcher has completed stays as it is.

    Raises:
        ValueError: There is no config file for this system, or bash fails to run it.
    """
    os.environ.update(resolve())


def of_process() -> dict[str, str]:
    """Return the environment of this process."""
    return dict(os.environ)


def without(prefix: str | tuple[str, ...]) -> dict[str, str]:
    """Return this process's environment without the variables of a kind.

    Args:
        prefix: Beginning of the names that are left out, such as "GIT_", or several of them.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(prefix)}


def refusal(**changed: str) -> str:
    """Return why this process's environment with some variables changed describes no job; empty if it describes one.

    Args:
        changed: New values by the names of environment variables.
    """
    try:
        read(dict(os.environ) | changed)
    except ValueError as reason:
        return str(reason)
    return ""


# ---- what the libraries and the ranks are told


def runtime(job: Job) -> dict[str, str]:
    """Return the environment variables that Paddle and its libraries should find when this rank loads them.

    They choose threads, executor, GPU and arithmetic: on a GPU, for example, they forbid TF32 if the precision is fp32.
    This function only lists them; `export` sets them.

    Args:
        job: The settings of the job.

    Returns:
        {name of an environment variable: value}. The GPU is that of this process's number on its node, as mpirun gives
        it; GPU 0 without mpirun.
    """
    threads = str(job.cluster.threads_per_rank)
    settings = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "FLAGS_paddle_num_threads": threads,
        "GLOG_minloglevel": "2",  # Paddle's C++ chatter below errors
    }
    if not job.cluster.on_gpu:
        # The parallel executor's scheduling costs more than it gains on a few cores.
        settings["FLAGS_new_executor_serial_run"] = "1"
        return settings | dict(job.model.traits.cpu_settings) | mkl_settings(Path("/proc/cpuinfo").read_text())

    settings["CUDA_MODULE_LOADING"] = "LAZY"  # else the driver loads 1.8 GB of kernels, and a run uses few of them
    settings["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order in which nvidia-smi and NVML number GPUs
    settings["FLAGS_selected_gpus"] = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")  # else GPU 0
    if job.model.precision == "fp32":
        settings[TF32_OVERRIDE] = "0"  # Ampere would compute "FP32" in TF32
    return settings | dict(job.model.traits.gpu_settings)


def libraries(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables of libraries, as a log lists them.

    Args:
        environ: Environment variables. Those count whose names begin with one of LIBRARIES.

    Returns:
        {name: value}, sorted by name. A variable that is a secret by its name has a note in place of its value.
    """
    logged = {}
    for name in sorted(environ):
        if name.startswith(LIBRARIES):
            is_secret = SECRET.search(name) is not None
            logged[name] = "not logged: a secret by its name" if is_secret else environ[name]
    return logged


def export(settings: Mapping[str, str]) -> None:
    """Put variables into this process's environment, unless it has them with a value that is not empty.

    So a value that the user has set stays.

    Args:
        settings: {name of an environment variable: value}.
    """
    os.environ.update(_not_set_in(os.environ, settings))


def of_ranks(job: Job, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment that the job's ranks compute in: the given one with two changes.

        added:     the project's own variables of the libraries, for threads, executor, GPU and more (`runtime`),
                   unless the given environment has them with a value that is not empty
        left out:  in a job of one node, the variables of NCCL's network between nodes

    Args:
        job: The settings of the job.
        environ: Environment that the job is started in.
    """
    left_out = of_network(environ) if job.cluster.dgxnnodes == 1 else []
    kept = {name: value for name, value in environ.items() if name not in left_out}
    return kept | _not_set_in(kept, runtime(job))


def _not_set_in(environ: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return those of some variables that an environment does not have, or has empty.

    An empty variable must be replaced: an empty NVIDIA_TF32_OVERRIDE would let FP32 be computed in TF32.

    Args:
        environ: The environment.
        settings: {name of an environment variable: value}.
    """
    return {name: value for name, value in settings.items() if not environ.get(name)}


def visible_gpus() -> str | None:
    """Return CUDA_VISIBLE_DEVICES, which limits the GPUs that CUDA shows this process; None where it is not set."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def export_trainer(rank: int, endpoints: list[str]) -> None:
    """Tell Paddle's fleet, by environment variables, who this rank is and which ranks there are.

    Args:
        rank: Number of this rank, from 0.
        endpoints: "address:port" of every rank, in their order.
    """
    os.environ.update(
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM=str(len(endpoints)),
        PADDLE_TRAINER_ENDPOINTS=",".join(endpoints),
        PADDLE_CURRENT_ENDPOINT=endpoints[rank],
        PADDLE_WITH_GLOO="0",  # fleet need not connect the ranks: they are connected; a shell may have left 1 here
    )


def is_rank() -> bool:
    """Return whether mpirun started this process."""
    return "OMPI_COMM_WORLD_SIZE" in os.environ


@contextlib.contextmanager
def transports_of_tool() -> Iterator[None]:
    """Let MPI, which starts meanwhile, set up no transport to other ranks if mpirun did not start this process.

    Open MPI would make a segment of shared memory and leave it in /dev/shm. The ranks of a job that the tool starts
    later need theirs, so the environment is as it was afterwards.
    """
    if is_rank():
        yield
        return
    before = os.environ.get(MPI_TRANSPORTS)
    os.environ[MPI_TRANSPORTS] = "self"
    yield
    if before is None:
        del os.environ[MPI_TRANSPORTS]
    else:
        os.environ[MPI_TRANSPORTS] = before


def rank_by_mpirun() -> int:
    """Return the number of this process among those that mpirun started; 0 for a process that was started alone."""
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))


def user_names_mpi_interfaces() -> bool:
    """Return whether the user names the interfaces by which Open MPI connects nodes, or those that it leaves out."""
    return "OMPI_MCA_btl_tcp_if_include" in os.environ or "OMPI_MCA_btl_tcp_if_exclude" in os.environ


def user_fixes_mpirun_ports() -> bool:
    """Return whether the user names the ports at which the daemons of mpirun on the nodes listen."""
    return any(name.startswith(("PRTE_MCA_oob_tcp_static_", "PRTE_MCA_oob_tcp_dynamic_")) for name in os.environ)


def terminal_columns() -> int | None:
    """Return the width of the user's terminal in characters; None where the job's output does not go to one."""
    text = os.environ.get("TERMINAL_COLUMNS", "")  # by run_and_time.sh
    return int(text) if text else None
