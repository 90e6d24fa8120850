"""The first line of the file of a job's verdicts: on which machine, by which code and in which form the job ran."""

from harness import env, provenance
from runlog.json_types import JsonObject
from runlog.schema import as_json


def describe_job(job: env.Job, *, short: bool) -> JsonObject:
    """Return what the report of an acceptance says of a job: short form or not, system, ranks, code and packages.

    The code and the versions of the packages are looked up on this machine, which should be the machine of the job.

    Args:
        job: The settings of the job.
        short: Whether the job runs in the short form, in which the checks take fewer steps.
    """
    return {
        "short": short,
        "system": job.cluster.dgxsystem,
        "ranks": job.cluster.world_size,
        "source": as_json(provenance.source(job.submission.source_commit, job.submission.image_digest)),
        "packages": provenance.packages(),
    }
