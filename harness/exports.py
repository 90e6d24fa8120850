"""Says which variables a shell exports: run_and_time.sh on a node, and a launcher that starts the nodes."""

from collections.abc import Mapping

from harness.job import Job, Origins, names
from harness.libraries import dropped, names_to_forward, secrets


def for_node(environ: Mapping[str, str], set_by_config: Mapping[str, str], origins: Origins) -> dict[str, str]:
    """Return the variables that run_and_time.sh exports on a node.

    - The variables that the system's config file has set (`set_by_config`).
    - All variables of the job, with the values that `env.read` has found: `origins` has each value and who set it. If
      the config file has set one of them, too, the value from `origins` counts.
    - JOB_FORWARDED: the names of the variables that mpirun hands to the ranks. These are the variables of the job,
      JOB_FROM_USER and JOB_FROM_CONFIG, which say who set them, and the variables of libraries without secrets.
    - JOB_SECRETS: the names of the variables with secrets. The shell unsets these variables.
    - JOB_DROPPED, only if the job has one node and there are such variables: the names of the variables of NCCL's
      network. The shell unsets them.

    `environ` is the whole environment of the job. The names in a list have spaces between them.
    """
    variables_of_job = {name: str(entry["value"]) for name, entry in origins.items()}
    nodes = int(variables_of_job["DGXNNODES"])
    names_of_libraries = names_to_forward(environ, nodes=nodes)
    forwarded = {*variables_of_job, "JOB_FROM_USER", "JOB_FROM_CONFIG", *names_of_libraries}
    return {
        **set_by_config,
        **variables_of_job,
        "JOB_FORWARDED": " ".join(sorted(forwarded)),
        "JOB_SECRETS": secrets(environ),
        **dropped(environ, nodes),  # {"JOB_DROPPED": ...}, or nothing
    }


def for_launcher(user_environ: Mapping[str, str], set_by_config: Mapping[str, str], job: Job) -> dict[str, str]:
    """Return the variables that a launcher needs to start the job on its nodes.

    - The container's settings, CONT_..., that the system's config file has set (`set_by_config`).
    - DGXNNODES: the number of nodes.
    - JOB_DEVICE: "cpu" or "gpu".
    - JOB_GIVEN: the names of the variables that the launcher hands to the nodes. The user has set all of them
      (`user_environ`). They are the variables of the job (`names`), and those of libraries and of MPI (OMPI_MCA_...,
      PRTE_MCA_...). Variables that the config file sets are not handed over, because each node reads that file itself.
    - JOB_SECRETS: the names of the user's variables that hold secrets.

    The names in a list have spaces between them.
    """
    container_settings = {name: value for name, value in set_by_config.items() if name.startswith("CONT_")}
    names_in_any_job = names()
    given_of_job = [name for name in user_environ if name in names_in_any_job]
    given_of_libraries = names_to_forward(user_environ, "OMPI_MCA_", "PRTE_MCA_", nodes=job.cluster.dgxnnodes)
    return {
        **container_settings,
        "DGXNNODES": str(job.cluster.dgxnnodes),
        "JOB_DEVICE": job.cluster.device,
        "JOB_GIVEN": " ".join(sorted({*given_of_job, *given_of_libraries})),
        "JOB_SECRETS": secrets(user_environ),
    }
