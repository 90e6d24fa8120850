"""The commands of `python -m scoring`; `paddle-reference` has them too."""

# Name: (module with `add_arguments(parser)` and `main(args) -> int`, what it does). A module is imported only when its
# command is called, so that `score` does not pay for the plots of `report`.
COMMANDS = {
    "score": ("scoring.figure.score_command", "the figure of one system's runs under a protocol"),
    "import": ("scoring.importers", "what a log says, as a record"),
    "compare": (
        "scoring.figure.compare_command",
        "two or more systems: ratio, speedup, and whether they really differ",
    ),
    "report": ("scoring.report", "one self-contained page from runs"),
    "reproduce": ("scoring.published.reproduce", "recompute published figures from published logs"),
    "history": ("scoring.figure.history", "runs kept in a file: their trend, and whether a new result is lower"),
    "export": ("scoring.export", "the runs of logs for other tools: Parquet, TensorBoard, MLflow"),
    "scale": ("scoring.predict.scale", "throughput and time to train at node counts not at hand"),
}
