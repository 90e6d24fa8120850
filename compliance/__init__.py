"""Compliance: may this log be published, and as what package. Needs neither Paddle nor DALI nor MPI."""

from runlog import interpreter

interpreter.refuse_unfit("compliance")

COMMANDS = {  # of `python -m compliance`, with what each does; `paddle-reference` has its own `score`
    "check": "may these logs be published: exit status 0 if all pass, 1 if one fails",
    "score": "minutes of a submission: olympic mean, scaled by the reference convergence points where they apply",
    "system": "write the 33 fields of an MLPerf system description",
    "package": "build the tree that is handed in: logs, system description, code, README and hashes",
    "verify": "re-check a package, or a published folder: hashes, logs, system description and score",
    "publish": "one static page of packages that verify, with the packages, a JSON table and hashes beside it",
    "audit": "a whole results repository: verdicts, scores and what to ask, a row a submission",
    "rules": 'each "must" of MLPerf\'s training rules, with the checks that hold it, or none',
}
