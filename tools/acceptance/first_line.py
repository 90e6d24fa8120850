"""The first line of the file of a job's verdicts: on which machine, by which code and in which form the job ran."""

from harness import env, provenance
from runlog.json_types import JsonObject
from runlog.schema import as_json


def describe_job(job: env.Job, *, short: bool) -> JsonObject:
    """Return what the report says of the jobs themselves: their form, system, ranks, code and packages.

    The code and the packages are found here and now, so this must be called where the job runs.

    Args:
        job: The settings of the job.
        short: Whether the checks take fewer steps.
    """
    return {
        "short": short,
        "system": job.cluster.dgxsystem,
        "ranks": job.cluster.world_size,
        "source": as_json(provenance.source(job.submission.source_commit, job.submission.image_digest)),
        "packages": provenance.packages(),
    }
