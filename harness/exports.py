"""Says which variables a shell exports: run_and_time.sh on a node, and a launcher that starts the nodes."""

from collections.abc import Mapping

from harness.job import Job, Origins, names
from harness.libraries import dropped, names_to_forward, secrets


def for_node(environ: Mapping[str, str], set_by_config: Mapping[str, str], origins: Origins) -> dict[str, str]:
    """Return the variables that run_and_time.sh exports on a node: those of the config file and all of the job.

    The variables JOB_... list names with spaces between them: those that mpirun hands to the ranks, the secrets that
    the shell unsets, and those that one node must not have.
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

    JOB_GIVEN lists what the user has set and the nodes get; JOB_SECRETS lists the secrets. Of the config file only the
    container's settings are returned, because each node reads that file itself.
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
