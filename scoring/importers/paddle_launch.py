"""What Paddle's launcher and runtime print around any Paddle training log."""

from __future__ import annotations

import re

from scoring.importers.table import Table
from scoring.importers.text import Fact, first_group, integer

# paddle/distributed/launch (context/args, controllers), fleet/launch_utils.py, phi/backends/gpu/gpu_resources.cc
_FACT = re.compile(
    r"PADDLE_TRAINERS_NUM\s+(?P<trainers>\d{1,9})"
    r"|\bnnodes: (?P<nodes>\d{1,9})(?:\s|$)"
    r"|replicas (?P<replicas>\d{1,9}), status "
    r"|GPU Compute Capability: (?P<capability>\d{1,9})\.\d+, Driver API Version: [\d.]+, "
    r"Runtime API Version: (?P<cuda>[\d.]+)"
    r"|device: \d+, cuDNN Version: (?P<cudnn>\d+(?:\.\d+)*)"
    r"|nccl context nranks: (?P<nranks>\d{1,9}) local rank: \d+ gpu id: \d+ ring id: 0\b"
    r"|GPUs used: (?P<gpus>\d{1,9})"
    r"|PaddlePaddle: (?P<paddle>\d[\w.+-]*)"
    r"|train with paddle (?P<trained_with>\d[\w.+-]*)"
    r"|NVIDIA_TF32_OVERRIDE\W+(?P<tf32>[01])\b"
)
_CLUE = re.compile(r"PADDLE_TRAINERS_NUM|nranks|nnodes|replicas|API Version|cuDNN|GPUs used|addle|TF32")


class Launch(Table):
    """Gathers devices, nodes, versions and the math mode from the lines before training starts."""

    framework = "PaddlePaddle"

    def before(self, line: int, text: str) -> None:
        """Take what the line says."""
        super().before(line, text)
        if _CLUE.search(text) and (match := _FACT.search(text)):
            for name, value in first_group(match):
                self.state(name, value, line)

    def finish(self) -> None:
        """Hand over to the draft. FP32 products run as TF32 on devices of capability 8.0 or more, unless
        NVIDIA_TF32_OVERRIDE=0: that is how the CUDA libraries behind Paddle are set."""
        draft = self.draft
        nodes, pods = integer(self.text("nodes")), self.stated.get("replicas")  # processes of one node
        if pods is not None:
            pods = Fact(int(str(pods.value)) * nodes, pods.line) if nodes is not None else None
        places = {"PADDLE_TRAINERS_NUM": "trainers", "NCCL's nranks": "nranks", "GPUs used": "gpus"}
        counts = {place: self.stated[name] for place, name in places.items() if name in self.stated}
        ranks = {place: Fact(int(str(fact.value)) or None, fact.line) for place, fact in counts.items()}
        draft.agreed("devices", {"replicas x nnodes": pods, **ranks})
        name = "paddle" if "paddle" in self.stated else "trained_with"
        if version := self.text(name):
            draft.software["paddlepaddle"] = version
            self.fact("framework", name, f"PaddlePaddle {version}")
        draft.software |= {name: version for name in ("cudnn", "cuda") if (version := self.text(name))}
        super().finish()
        if (capability := self.text("capability")) and draft.value("precision") == "fp32":
            modern = int(capability) >= 8 and self.text("tf32") != "0"
            self.fact("math_mode", "capability", "tf32" if modern else "fp32")
