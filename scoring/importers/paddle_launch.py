"""What Paddle's launcher and runtime print around any Paddle training log."""

from __future__ import annotations

import re

from scoring.importers.table import Fact, Table
from scoring.importers.text import integer

# paddle/distributed/launch (context/args, controllers), fleet/launch_utils.py, phi/backends/gpu/gpu_resources.cc
_FACTS = re.compile(
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


class Launch(Table):
    """Gathers devices, nodes, versions and the math mode from the lines before training starts."""

    framework = "PaddlePaddle"
    facts_around = _FACTS

    def finish(self) -> None:
        """FP32 products run as TF32 on devices of capability 8.0 or more, unless NVIDIA_TF32_OVERRIDE=0: that is how
        the CUDA libraries behind Paddle are set."""
        places = {"PADDLE_TRAINERS_NUM": "trainers", "NCCL's nranks": "nranks", "GPUs used": "gpus"}
        ranks = {
            place: Fact(int(self.value(name)) or None, self.said[name].line)
            for place, name in places.items()
            if name in self.said
        }
        nodes, pods = integer(self.value("nodes")), self.said.get("replicas")  # processes of one node
        if pods and nodes is not None:
            ranks = {"replicas x nnodes": Fact(int(pods.value) * nodes, pods.line), **ranks}
        self.agreed("devices", ranks)
        name = "paddle" if "paddle" in self.said else "trained_with"
        if version := self.value(name):
            self.software["paddlepaddle"] = version
            self.derive("framework", name, f"PaddlePaddle {version}")
        self.software |= {name: version for name in ("cudnn", "cuda") if (version := self.value(name))}
        super().finish()
        if (capability := self.value("capability")) and self.value("precision") == "fp32":
            modern = int(capability) >= 8 and self.value("tf32") != "0"
            self.derive("math_mode", "capability", "tf32" if modern else "fp32")
