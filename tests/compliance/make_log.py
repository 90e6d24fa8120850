"""Well-formed logs, written with mlperf-logging's own mllog: the checker must pass them, tests alter them."""

import io
import json
import logging
from typing import Any

from mlperf_logging.mllog.mllog import MLLogger

CLOCK_START_MS = 1_700_000_000_000


class Log:
    """A log that is being written; `now_ms` is its clock."""

    def __init__(self) -> None:
        self.text = io.StringIO()
        handler = logging.StreamHandler(self.text)
        logger = logging.Logger("a log of its own")  # not from getLogger: loggers of that kind are never freed
        logger.addHandler(handler)
        self.mllog = MLLogger(logger)
        self.now_ms = CLOCK_START_MS

    def header(self, section: str, value: Any) -> None:
        self.text.write(f"# {json.dumps({section: value})}\n")

    def say(self, line: str) -> None:
        self.text.write(line + "\n")

    def event(self, key: str, value: Any = None, **metadata: Any) -> None:
        write = self.mllog.event
        if key.endswith("_start"):
            write = self.mllog.start
        elif key.endswith("_stop"):
            write = self.mllog.end
        write(key, value, metadata=metadata or None, time_ms=self.now_ms)
        self.now_ms += 1


def _header(
    log: Log, *, dataset: str, samples: tuple[int, int], seed: int, batch: int, model: str, target: float
) -> None:
    log.header("log", {"format": "paddle-reference-log", "version": 1})
    source = {"commit": "0" * 40, "dirty": False, "lock_sha256": "1" * 64, "image_digest": None}
    log.header("source", source)
    config = {
        "BATCHSIZE": {"value": batch, "origin": "config_CPU.sh"},
        "SEED": {"value": seed, "origin": "environment"},
        "RECIPE.target_top1": {"value": target, "origin": f"paddle_{model}/config.py"},
        "RECIPE.base_learning_rate": {"value": 0.1, "origin": f"paddle_{model}/config.py"},
    }
    log.header("config", config)
    log.header("packages", {"paddlepaddle-gpu": "2.6.2", "mlperf-logging": "4.1.68"})
    node = {"host": "node0", "cpu": "Example CPU 9000", "cores": 2, "memory_gib": 23.4, "gpus": []}
    log.header("hardware", {"nodes": [node], "math_mode": "fp32", "device": "cpu"})
    data = {"name": dataset, "train_samples": samples[0], "eval_samples": samples[1], "synthetic": False}
    log.header("dataset", data)


def run(
    *,
    benchmark: str = "resnet",
    division: str = "open",
    seed: int = 1,
    samples: tuple[int, int] = (1437, 360),
    epochs: int = 3,
    eval_every: int = 1,
    accuracies: tuple[float, ...] | None = None,
    status: str = "success",
    batch: int = 16,
    devices: int = 2,
    epoch_ms: int = 36_000,
    hyperparameters: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    platform: str = "CPU",
    org: str = "Example",
    target: float | None = 0.9,
) -> str:
    """A log as the training side writes it; the default is a run on the embedded digits."""
    log = Log()
    folder = "rn50" if benchmark == "resnet" else "hrnet"
    _header(log, dataset="uci-digits-64", samples=samples, seed=seed, batch=batch, model=folder, target=target)
    log.event("submission_benchmark", benchmark)
    log.event("submission_org", org)
    log.event("submission_division", division)
    log.event("submission_status", "research")
    log.event("submission_platform", platform)
    log.event("cache_clear", True, node="node0", status="done", by="rank")
    log.event("init_start")
    log.event("seed", seed)
    log.event("global_batch_size", batch * devices)
    log.event("gradient_accumulation_steps", 1)
    for key, value in (hyperparameters or {"opt_name": "sgd", "sgd_opt_base_learning_rate": 0.1}).items():
        log.event(key, value)
    log.event("train_samples", samples[0])
    log.event("eval_samples", samples[1])
    log.now_ms += 20_000
    log.event("init_stop")
    facts = {
        **{"devices": devices, "nodes": 1, "batch_per_device": batch, "precision": "fp32", "math_mode": "fp32"},
        **{"mode": "train", "data": "real", "resumed": False, "profiled": False},
        **{"framework": "paddlepaddle 2.6.2", "model": "resnet50_v1.5"},
    }
    log.event("run_summary", {**facts, **(summary or {})})
    log.event("run_start")
    step, first, score = 0, 1, iter(accuracies or _rising(epochs // eval_every, samples[1]))
    steps = samples[0] // (batch * devices)
    images = steps * batch * devices
    for epoch in range(1, epochs + 1):
        if epoch == first:
            count = min(eval_every, epochs + 1 - first)
            log.event("block_start", first_epoch_num=first, epoch_count=count)
        log.event("epoch_start", epoch_num=epoch)
        start_ms = log.now_ms - 1
        for _ in range(2):
            step += steps // 2
            log.now_ms += epoch_ms // 2
            window = {"steps": steps // 2, "images": images // 2, "time_s": epoch_ms / 2000, "data_wait_s": 0.01}
            log.event("step_window", window | {"loss": 1.5, "gpu_memory_mib": None}, step=step, epoch_num=epoch)
            log.say(f"epoch {epoch} step {step} loss 1.5")
        time_s = (log.now_ms - start_ms) / 1000
        rate = {"images": images, "time_s": time_s, "images_per_s": images / time_s, "data_wait_s": 0.02}
        log.event("epoch_throughput", rate, epoch_num=epoch)
        log.event("epoch_stop", epoch_num=epoch)
        if epoch % eval_every == 0:
            log.event("eval_start", epoch_num=epoch)
            log.now_ms += 2_000
            log.event("eval_stop", epoch_num=epoch)
            log.event("eval_accuracy", next(score), epoch_num=epoch)
        if epoch == first + eval_every - 1 or epoch == epochs:
            log.event("block_stop", first_epoch_num=first)
            first = epoch + 1
    log.event("run_stop", status=status)
    log.say("done")
    return log.text.getvalue()


def _rising(count: int, samples: int) -> list[float]:
    return [round(samples * 0.96 * (i + 1) / count) / samples for i in range(count)]


LARS = {
    "opt_name": "lars",
    "lars_epsilon": 0,
    "lars_opt_weight_decay": 5e-05,
    "lars_opt_momentum": 0.9,
    "lars_opt_base_learning_rate": 10.5,
    "lars_opt_end_learning_rate": 0.0001,
    "lars_opt_learning_rate_decay_poly_power": 2,
    "lars_opt_learning_rate_decay_steps": 14523,
    "lars_opt_learning_rate_warmup_epochs": 2,
    "model_bn_span": 204,
}
SGD = {
    "opt_name": "sgd",
    "sgd_opt_base_learning_rate": 0.1,
    "sgd_opt_end_learning_rate": 0.0001,
    "sgd_opt_learning_rate_decay_poly_power": 2,
    "sgd_opt_learning_rate_decay_steps": 100,
    "sgd_opt_weight_decay": 0.0001,
    "sgd_opt_momentum": 0.9,
    "model_bn_span": 32,
    "opt_learning_rate_warmup_epochs": 5,
}


def closed_run(**changes: Any) -> str:
    """A closed run on ImageNet: 36 epochs at the global batch of a reference point."""
    fields: dict[str, Any] = {
        "division": "closed",
        "samples": (1281167, 50000),
        "epochs": 36,
        "eval_every": 4,
        "accuracies": (0.3, 0.4, 0.5, 0.55, 0.6, 0.7, 0.73, 0.75, 0.7604),
        "batch": 408,
        "devices": 8,
        "hyperparameters": LARS,
    }
    return run(**{**fields, **changes})


def closed_hrnet_run(**changes: Any) -> str:
    """A closed run of FCN-HRNetW18 on Cityscapes."""
    recipe = {
        "opt_name": "sgd",
        "sgd_opt_base_learning_rate": 0.01,
        "sgd_opt_end_learning_rate": 0.0,
        "sgd_opt_learning_rate_decay_poly_power": 0.9,
        "sgd_opt_learning_rate_decay_steps": 80_000,
        "sgd_opt_weight_decay": 0.0005,
        "sgd_opt_momentum": 0.9,
    }
    fields: dict[str, Any] = {"division": "closed", "samples": (2975, 500), "accuracies": (0.6, 0.7, 0.79123)}
    return hrnet_run(**{**fields, "hyperparameters": recipe, **changes})


def hrnet_run(**changes: Any) -> str:
    """An open run of FCN-HRNetW18 on a small data set."""
    return run(**{"benchmark": "hrnet", "samples": (20, 50), "batch": 2, **changes})
