"""Says which variables a shell exports: run_and_time.sh on a node, and a launcher that starts the nodes."""

from collections.abc import Mapping

from harness.job import Job, Origins, names, prefix_of
from harness.libraries import dropped, names_to_forward, secrets

# Settings that name a file or folder, which a container does not have unless it is mounted.
PATHS = (
    *("LOGDIR", "CHECKPOINT_DIR", "DATA_CACHE", "TELEMETRY_PROMETHEUS"),  # written
    *("DATADIR", "JOB_KEY", "FLEET_BASELINE", "HOSTFILE", "PRETRAINED"),  # read
)
MADE_IN_IMAGE = {"DATA_CACHE": "data"}  # the folder of the embedded data set, which an image has already


def for_node(environ: Mapping[str, str], set_by_config: Mapping[str, str], origins: Origins) -> dict[str, str]:
    """Return the variables that run_and_time.sh exports on a node.

    They are the settings of the job, what else the config file sets, and three lists of names. Each list is a text
    with spaces between the names, such as "BATCHSIZE SEED":

        JOB_FORWARDED: variables that mpirun hands to the ranks
        JOB_SECRETS:   secrets, which the shell unsets
        JOB_DROPPED:   settings of NCCL's network between nodes, which the shell unsets in a job of one node; the list
                       is left out if it would be empty, and in a job of several nodes

    Args:
        environ: The environment with what the config file adds.
        set_by_config: The variables in `environ` that `env.resolve` added or changed as it applied the config file,
            JOB_FROM_USER and JOB_FROM_CONFIG among them. Empty if the file had been applied before this process began.
        origins: The value of each setting of the job, with who set it.
    """
    variables_of_job = {name: str(entry["value"]) for name, entry in origins.items()}  # as {"BATCHSIZE": "256"}
    nodes = int(variables_of_job["DGXNNODES"])
    # Their values list the variables that the user or the config file set, so that a rank can log who set what.
    names_of_who_set_them = {"JOB_FROM_USER", "JOB_FROM_CONFIG"}
    names_of_libraries = names_to_forward(environ, nodes=nodes)  # as ["NCCL_DEBUG", "OMP_PROC_BIND"], no secrets
    forwarded = {*variables_of_job, *names_of_who_set_them, *names_of_libraries}
    return {
        **set_by_config,
        **variables_of_job,
        "JOB_FORWARDED": " ".join(sorted(forwarded)),
        "JOB_SECRETS": secrets(environ),  # by words in their names: "WANDB_API_KEY HF_TOKEN"
        **dropped(environ, nodes),  # {"JOB_DROPPED": "NCCL_IB_HCA NCCL_NET"}, or {} if none are to be unset
    }


def for_launcher(user_environ: Mapping[str, str], set_by_config: Mapping[str, str], job: Job) -> dict[str, str]:
    """Return the variables that a launcher needs to start the job on its nodes.

        CONT_...:     settings of the container, which the launcher starts; only those that the config file sets
        DGXNNODES:    the number of nodes
        JOB_DEVICE:   "cpu" or "gpu"
        JOB_GIVEN:    names of the user's variables that the launcher hands to the nodes, such as "BATCHSIZE NCCL_DEBUG"
        JOB_PATHS:    files and folders that the job names, whoever has set them, such as "DATADIR=/data", one a line
        JOB_SECRETS:  names of the user's secrets, which the launcher's shell unsets

    Args:
        user_environ: The user's environment, without what the config file adds.
        set_by_config: The variables that the config file adds to `user_environ` or changes.
        job: The settings of the job.
    """
    container_settings = {name: value for name, value in set_by_config.items() if name.startswith("CONT_")}
    # JOB_GIVEN has two groups of the user's variables: settings of jobs, and others by the beginnings of their names.
    # It has only names, because the launcher has the values in its own environment. What only the config file sets is
    # not among them, because each node reads that file by itself.
    names_of_settings = names()  # of any job: BATCHSIZE, RN50_BATCHSIZE, ...
    given_settings = [name for name in user_environ if name in names_of_settings]
    prefix_of_job = prefix_of(job.model.workload, job.model.precision)  # as "RN50_AMP_O2_"
    prefixes = ("OMPI_MCA_", "PRTE_MCA_", prefix_of_job)  # the first two are of Open MPI and its launcher PRRTE
    # The second group: names of libraries' variables, such as NCCL_DEBUG, and names that begin with one of `prefixes`,
    # as OMPI_MCA_btl; without secrets.
    given_by_prefix = names_to_forward(user_environ, *prefixes, nodes=job.cluster.dgxnnodes)
    return {
        **container_settings,
        "DGXNNODES": str(job.cluster.dgxnnodes),
        "JOB_DEVICE": job.cluster.device,
        "JOB_GIVEN": " ".join(sorted({*given_settings, *given_by_prefix})),
        "JOB_PATHS": _paths(job),
        "JOB_SECRETS": secrets(user_environ),
    }


def _paths(job: Job) -> str:
    """Return the files and folders that a job names, one a line, such as "DATADIR=/data".

    A launcher mounts these paths into the container. DATA_CACHE=data, the default, is left out, because the container's
    image already has this folder. An empty setting is left out, too.

    Args:
        job: The settings of the job.
    """
    lines = []
    for variable in PATHS:
        path = job.value(variable)
        is_in_image = path == MADE_IN_IMAGE.get(variable)  # MADE_IN_IMAGE is {"DATA_CACHE": "data"}
        if path and not is_in_image:
            lines.append(f"{variable}={path}")
    return "\n".join(lines)
