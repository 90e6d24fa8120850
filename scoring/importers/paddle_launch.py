"""What Paddle's launcher and runtime print around any Paddle training log."""

from __future__ import annotations

import re

from scoring.importers.text import Builder

# paddle/distributed/launch (context/args, controllers), fleet/launch_utils.py, phi/backends/gpu/gpu_resources.cc
_FACT = re.compile(
    r"PADDLE_TRAINERS_NUM\s+(?P<trainers>\d{1,9})"
    r"|\bnnodes: (?P<nodes>\d{1,9})(?:\s|$)"
    r"|replicas (?P<replicas>\d{1,9}), status "
    r"|GPU Compute Capability: (?P<capability>\d{1,9})\.\d+, Driver API Version: [\d.]+, "
    r"Runtime API Version: (?P<cuda>[\d.]+)"
    r"|device: \d+, cuDNN Version: (?P<cudnn>\d+(?:\.\d+)*)"
    r"|GPUs used: (?P<gpus>\d{1,9})"
    r"|PaddlePaddle: (?P<paddle>\d[\w.+-]*)"
    r"|train with paddle (?P<trained_with>\d[\w.+-]*)"
    r"|NVIDIA_TF32_OVERRIDE\W+(?P<tf32>[01])\b"
)
_CLUE = re.compile(r"PADDLE_TRAINERS_NUM|nnodes|replicas|API Version|cuDNN|GPUs used|addle|TF32")


class Launch:
    """Gathers devices, nodes, versions and the math mode from the lines before training starts."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._seen: dict[str, tuple[str, int]] = {}

    def read(self, line: int, text: str) -> None:
        """Take what the line says."""
        if _CLUE.search(text) and (match := _FACT.search(text)):
            for name, value in match.groupdict().items():
                if value is not None:
                    self._seen.setdefault(name, (value, line))

    def finish(self) -> None:
        """Hand over to the builder. FP32 products run as TF32 on devices of capability 8.0 or more, unless
        NVIDIA_TF32_OVERRIDE=0: that is how the CUDA libraries behind Paddle are set."""
        build, seen = self._builder, self._seen
        nodes = int(seen["nodes"][0]) if "nodes" in seen else None
        if nodes is not None:
            build.count("nodes", *seen["nodes"])
        if "trainers" in seen:
            build.count("devices", *seen["trainers"])
        elif "replicas" in seen and nodes is not None:
            build.count("devices", str(int(seen["replicas"][0]) * nodes), seen["replicas"][1])
        elif "gpus" in seen:  # of one node
            build.count("devices", str(int(seen["gpus"][0]) * (nodes or 1)), seen["gpus"][1])
        version = seen.get("paddle") or seen.get("trained_with")
        if version:
            build.software["paddlepaddle"] = version[0]
            build.fact("framework", f"PaddlePaddle {version[0]}", version[1])
        if "cudnn" in seen:
            build.software["cudnn"] = seen["cudnn"][0]
        if "cuda" in seen:
            build.software["cuda"] = seen["cuda"][0]
        build.fact("framework", "PaddlePaddle", 0)
        if "capability" in seen and build.facts.get("precision") == "fp32":
            modern = int(seen["capability"][0]) >= 8
            off = "tf32" in seen and seen["tf32"][0] == "0"
            build.fact("math_mode", "tf32" if modern and not off else "fp32", seen["capability"][1])
