"""The commands of `python -m compliance`; `paddle-reference` has them too, but for its own `score`."""

COMMANDS = {  # name: what it does
    "check": "may these logs be published",
    "score": "minutes of a submission",
    "system": "write the system description",
    "package": "build the submission package",
    "verify": "re-check a published package",
    "audit": "a whole results repository",
}
