"""Says which variables a shell exports: run_and_time.sh on a node, and a launcher that starts the nodes."""

from collections.abc import Mapping

from harness.job import Job, Origins, names
from harness.libraries import dropped, handed_on, secrets


def for_node(environ: Mapping[str, str], set_by_config: Mapping[str, str], origins: Origins) -> dict[str, str]:
    """Return the variables that run_and_time.sh exports on a node.

    - every variable that the system's config file has set in the environment `environ`;
    - every value of the job (`origins`);
    - JOB_FORWARDED: names of the variables that mpirun hands to the ranks: the job's, who set them (JOB_FROM_...), and
      those of CUDA and other libraries;
    - JOB_SECRETS: names of variables that hold secrets; the shell unsets them;
    - JOB_DROPPED, for a job of one node: names of variables that choose NCCL's network between nodes; the shell unsets
      them. It is absent if there are none.
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

    - the container's settings (CONT_...) of those that the system's config file has set;
    - the number of nodes, and the device;
    - JOB_GIVEN: names of the variables that the launcher hands to the nodes. These are the job's variables, those of
      CUDA and other libraries, and Open MPI's own, as the environment has them before the config file is read. What the
      file sets is not handed on, because run_and_time.sh reads the file on each node;
    - JOB_SECRETS: names of variables that hold secrets.
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
