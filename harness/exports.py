"""Says which variables a shell exports: run_and_time.sh on a node, and a launcher that starts the nodes."""

from collections.abc import Mapping

from harness.job import Job, Origins, names
from harness.libraries import dropped, handed_on, secrets


def for_node(environ: Mapping[str, str], set_by_config: Mapping[str, str], origins: Origins) -> dict[str, str]:
    """Return the variables that run_and_time.sh exports on a node.

    JOB_FORWARDED names the variables that mpirun hands to the ranks. JOB_SECRETS and JOB_DROPPED name those that the
    shell unsets: secrets, and for a job of one node NCCL's network.
    """
    settings = {name: str(entry["value"]) for name, entry in origins.items()}
    nodes = int(settings["DGXNNODES"])
    names_of_libraries = handed_on(environ, nodes=nodes)
    forwarded = {*settings, "JOB_FROM_USER", "JOB_FROM_CONFIG", *names_of_libraries}
    return {
        **set_by_config,
        **settings,
        "JOB_FORWARDED": " ".join(sorted(forwarded)),
        "JOB_SECRETS": secrets(environ),
        **dropped(environ, nodes),  # JOB_DROPPED
    }


def for_launcher(before_config: Mapping[str, str], set_by_config: Mapping[str, str], job: Job) -> dict[str, str]:
    """Return the variables that a launcher needs to start the job on its nodes.

    JOB_GIVEN names the variables to hand to the nodes, as the user set them: run_and_time.sh reads the config file
    again on each node. JOB_SECRETS names those that hold secrets.
    """
    container_settings = {name: value for name, value in set_by_config.items() if name.startswith("CONT_")}
    names_of_job = {name for name in names() if name in before_config}
    names_of_libraries = handed_on(before_config, "OMPI_MCA_", "PRTE_MCA_", nodes=job.cluster.dgxnnodes)
    handed_to_nodes = names_of_job.union(names_of_libraries)
    return {
        **container_settings,
        "DGXNNODES": str(job.cluster.dgxnnodes),
        "JOB_DEVICE": job.cluster.device,
        "JOB_GIVEN": " ".join(sorted(handed_to_nodes)),
        "JOB_SECRETS": secrets(before_config),
    }
