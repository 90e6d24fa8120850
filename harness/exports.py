"""Says which variables a shell exports: run_and_time.sh on a node, and a launcher that starts the nodes."""

from collections.abc import Mapping

from harness.job import Job, Origins, names
from harness.libraries import dropped, names_to_forward, secrets


def for_node(environ: Mapping[str, str], set_by_config: Mapping[str, str], origins: Origins) -> dict[str, str]:
    """Return the variables that run_and_time.sh exports on a node.

    - every variable that the system's config file has set in `environ`
    - every value of the job, as `env.read` has found it (`origins`); it replaces the file's, which may be of this name
    - JOB_FORWARDED: names of the variables that mpirun hands to the ranks
    - JOB_SECRETS: names of variables with secrets, which the shell unsets
    - JOB_DROPPED, for one node: names of the variables of NCCL's network, which the shell unsets
    """
    settings = {name: str(entry["value"]) for name, entry in origins.items()}
    nodes = int(settings["DGXNNODES"])
    names_of_libraries = names_to_forward(environ, nodes=nodes)
    forwarded = {*settings, "JOB_FROM_USER", "JOB_FROM_CONFIG", *names_of_libraries}
    return {
        **set_by_config,
        **settings,
        "JOB_FORWARDED": " ".join(sorted(forwarded)),
        "JOB_SECRETS": secrets(environ),
        **dropped(environ, nodes),  # {"JOB_DROPPED": ...}, or nothing
    }


def for_launcher(user_environ: Mapping[str, str], set_by_config: Mapping[str, str], job: Job) -> dict[str, str]:
    """Return the variables that a launcher needs to start the job on its nodes; lists of names have spaces between.

    - the container's settings (CONT_...) of the config file, the number of nodes and the device
    - JOB_GIVEN: names of the variables that the launcher hands to the nodes: those of the job and of its libraries that
      the user has set. Names that only the config file sets are not in `user_environ` and so are left out: on each node
      run_and_time.sh reads that file itself.
    - JOB_SECRETS: names of the user's variables that hold secrets
    """
    container_settings = {name: value for name, value in set_by_config.items() if name.startswith("CONT_")}
    variables_of_a_job = names()
    given_of_job = [name for name in user_environ if name in variables_of_a_job]
    given_of_libraries = names_to_forward(user_environ, "OMPI_MCA_", "PRTE_MCA_", nodes=job.cluster.dgxnnodes)
    return {
        **container_settings,
        "DGXNNODES": str(job.cluster.dgxnnodes),
        "JOB_DEVICE": job.cluster.device,
        "JOB_GIVEN": " ".join(sorted({*given_of_job, *given_of_libraries})),
        "JOB_SECRETS": secrets(user_environ),  # their names, not their values
    }
