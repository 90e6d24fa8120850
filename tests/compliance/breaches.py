"""Alterations of a log, each with the rule that it breaks and the line that is blamed."""

import json
from collections.abc import Callable

from tests import make_log
from tests.compliance import altered as by
from tests.compliance.altered import TOKEN, Altered

Alter = Callable[[Altered], Altered]


# What breaks a rule of the official checker too: rule, start, alteration, key of the blamed line (None: no line).
OFFICIAL: list[tuple[str, Callable[[], str], Alter, str | None]] = [
    ("submission_org.count", make_log.run, lambda log: log.drop("submission_org"), None),
    ("submission_org.value", make_log.run, lambda log: log.value("submission_org", ""), "submission_org"),
    ("init_start.order", make_log.run, lambda log: log.move_after("init_start", "run_start"), "init_start"),
    ("init_stop.order", make_log.run, lambda log: log.drop("init_start"), "init_stop"),
    ("init_stop.time", make_log.closed_run, lambda log: log.later("init_start", -1.8e6), "init_stop"),
    ("init_stop.time", make_log.run, lambda log: log.move_after("submission_division", "run_stop"), "init_stop"),
    ("run_stop.metadata", make_log.run, lambda log: log.without_metadata("run_stop", "status"), "run_stop"),
    ("epoch_stop.metadata", make_log.run, lambda log: log.without_metadata("epoch_stop", "epoch_num"), "epoch_stop"),
    ("epoch_start.count", make_log.run, lambda log: log.drop_all("epoch_start", "block_start"), None),
    ("eval_accuracy.value", make_log.closed_run, lambda log: log.value("eval_accuracy", 0.758, -1), "eval_accuracy"),
    ("train_samples.count", make_log.run, lambda log: log.repeat("train_samples").value("train_samples", 1438), "*"),
    ("eval_accuracy.value", make_log.closed_hrnet_run, lambda log: log.value("eval_accuracy", 0.7896, -1), "*"),
]

ONLY_WARNS = ("event-type", "line-encoding")
# What only this checker rejects, or warns of.
OURS: list[tuple[str, Callable[[], str], Alter, str | None]] = [
    ("line-json", make_log.run, lambda log: log.line("step_window", lambda line: line.replace("18.0", "NaN")), "*"),
    ("event-type", make_log.run, lambda log: log.line("seed", lambda line: line.replace("POINT", "point")), "*"),
    ("line-fields", make_log.run, lambda log: log.line("seed", lambda line: line.replace('"key"', '"no"')), "*"),
    ("line-duplicate-key", make_log.run, lambda log: log.line("seed", lambda s: s.replace("{", '{"key": 1, ', 1)), "*"),
    ("line-encoding", make_log.run, lambda log: log.line("seed", lambda s: s.replace("make_log", "\udcff")), "*"),
    ("line-trailing-text", make_log.run, lambda log: log.line("seed", lambda line: line + "\x1b[0m"), "*"),
    ("line-several-events", make_log.run, lambda log: log.line("seed", lambda line: line * 2), "*"),
    ("line-oversized", make_log.run, lambda log: log.value("seed", "1" * 2**20), "*"),
    ("line-nul", make_log.run, lambda log: log.add_after("seed", "\0\0"), "*"),
    ("exactly-once", make_log.run, lambda log: log.repeat("run_start"), "run_start"),
    ("value-type", make_log.run, lambda log: log.value("train_samples", 1437.5), "train_samples"),
    ("label-type", make_log.run, lambda log: log.value("submission_org", None), "submission_org"),
    ("label-type", make_log.closed_run, lambda log: log.value("lars_epsilon", False), "lars_epsilon"),
    ("event-type", make_log.run, lambda log: log.change(
        "run_start", lambda fields: fields.update(event_type="POINT_IN_TIME")), "run_start"),
    ("known-benchmark", make_log.run, lambda log: log.value("submission_benchmark", "vgg"), "submission_benchmark"),
    ("after-run-stop", make_log.run, lambda log: log.move_after("eval_accuracy", "run_stop", -1), "eval_accuracy"),
    ("after-run-stop", make_log.run, lambda log: log.move_after("run_stop", "eval_start"), "eval_accuracy"),
    ("open-at-stop", make_log.run, lambda log: log.move_after("run_stop", "eval_start"), "eval_stop"),
    ("line-order", make_log.run, lambda log: log.later("eval_accuracy", -101, 1), "eval_accuracy"),
    ("time-order", make_log.run, lambda log: log.later("eval_accuracy", -102, 1), "eval_accuracy"),
    ("label-time", make_log.run, lambda log: log.move_after("seed", "run_start"), "seed"),
    ("run-time", make_log.run, lambda log: log.later("run_stop", -1e6), "run_stop"),
    ("epoch-order", make_log.run, lambda log: log.metadata("epoch_start", 1, epoch_num=7), "*"),
    ("open-at-stop", make_log.run, lambda log: log.drop("epoch_stop", -1), "run_stop"),
    ("epoch-order", make_log.run, lambda log: log.repeat("epoch_start", 1), "*"),
    ("epoch-order", make_log.run, lambda log: log.metadata("epoch_start", epoch_num="1"), "epoch_start"),
    ("block-order", make_log.run, lambda log: log.drop("block_stop", -1), "run_stop"),
    ("block-order", make_log.run, lambda log: log.metadata("block_start", 1, first_epoch_num=3), "*"),
    ("block-order", make_log.run, lambda log: log.drop("block_start", 1), "*"),
    ("block-order", make_log.run, lambda log: log.metadata("block_start", 2, epoch_count=2), "block_stop"),
    ("eval-order", make_log.run, lambda log: log.metadata("eval_accuracy", 1, epoch_num=3), "*"),
    ("open-at-stop", make_log.run, lambda log: log.drop("eval_stop", -1), "run_stop"),
    ("eval-order", make_log.run, lambda log: log.repeat("eval_accuracy"), "*"),
    ("eval-order", make_log.run, lambda log: log.drop_all(
        "eval_start", "eval_stop", "block_start", "block_stop"), "*"),
    ("eval-order", make_log.run, lambda log: log.drop_all("eval_start", "eval_stop").metadata(
        "eval_accuracy", -1, epoch_num=5), "eval_accuracy"),
    ("eval-schedule", make_log.closed_run, lambda log: log.drop("eval_start", 2).drop("eval_stop", 2).drop(
        "eval_accuracy", 2), "*"),
    ("eval-schedule", lambda: make_log.closed_run(epochs=35, eval_every=5), lambda log: log, "*"),
    ("eval-means", make_log.closed_run, lambda log: log.value("eval_accuracy", 0.123456, 0), "eval_accuracy"),
    ("eval-means", make_log.run, lambda log: log.value("eval_accuracy", 0.3125, 0), "eval_accuracy"),
    ("eval-samples", make_log.run, lambda log: log.value("eval_samples", 361.0), "eval_accuracy"),
    ("eval-samples", make_log.closed_run, lambda log: by.curve(
        lambda v: [(round(x * 49_500) + 1) / 49_500 for x in v])(log, log), "eval_accuracy"),
    ("value-type", make_log.hrnet_run, lambda log: log.value("eval_accuracy", -0.1, 0), "eval_accuracy"),
    ("value-type", make_log.run, lambda log: log.value("eval_accuracy", 5.0, -1), "eval_accuracy"),
    ("eval-late", make_log.closed_run, lambda log: log.metadata(
        "eval_start", -1, epoch_num=34).metadata("eval_stop", -1, epoch_num=34).metadata(
        "eval_accuracy", -1, epoch_num=34), "eval_start"),
    ("accuracy-curve", make_log.closed_run, lambda log: log.value("eval_accuracy", 0.4, 7), "eval_accuracy"),
    ("eval-padding", make_log.closed_run, lambda log: padded(log), "eval_accuracy"),
    ("closed-data", lambda: make_log.closed_run(samples=(1281000, 50_000)), lambda log: log, "train_samples"),
    ("data-label", lambda: make_log.closed_run(samples=(1281167, 49_984)), lambda log: log, "eval_samples"),
    ("target-status", make_log.closed_run, lambda log: log.metadata("run_stop", status="aborted"), "*"),
    ("target-status", make_log.closed_run, lambda log: log.value("eval_accuracy", 0.7, -1), "*"),
    ("target-status", lambda: make_log.run(status="aborted"), lambda log: log, "*"),
    ("run-status", make_log.run, lambda log: log.metadata("run_stop", status="aborted"), "run_stop"),
    ("rank-zero", make_log.run, lambda log: log.line("epoch_stop", lambda line: f"[1,3]<stdout>:{line}"), "epoch_stop"),
    ("rank-zero", make_log.run, lambda log: log.metadata("epoch_stop", rank=1), "epoch_stop"),
    ("cache-cleared", make_log.closed_run, lambda log: log.metadata("cache_clear", status="skipped"), "cache_clear"),
    ("cache-cleared", make_log.closed_run, lambda log: log.value("cache_clear", False), "cache_clear"),
    ("throughput-agrees", make_log.run, lambda log: log.inside("epoch_throughput", images_per_s=40.0), "*"),
    ("throughput-agrees", make_log.run, lambda log: log.inside(
        "epoch_throughput", time_s=35.2, images_per_s=40.0), "*"),
    ("epoch-images", make_log.run, lambda log: log.inside(
        "epoch_throughput", images=1344, images_per_s=37.333), "*"),
    ("before-run-start", make_log.run, lambda log: log.move_after("run_start", "epoch_start"), "*"),
    ("epoch-time", make_log.run, lambda log: by.intervals(log, lambda took: [0, *took[1:]]), "*"),
    ("run-status", make_log.run, lambda log: log.repeat("run_stop").metadata(
        "run_stop", -1, status="aborted"), "run_stop"),
    ("own-log", make_log.run, lambda log: log.repeat("seed").value("seed", 7, -1), "seed"),
    ("own-log", make_log.run, lambda log: log.repeat("run_summary"), "run_summary"),
    ("own-log", make_log.run, lambda log: _with_two_sources(log), "*"),
    ("own-log", make_log.run, lambda log: log.change(
        "run_summary", lambda fields: fields["value"].pop("resumed")), "run_summary"),
    *(
        ("own-log", make_log.run, lambda log, key=key, value=value: log.value(key, value), key)
        for key, value in (
            *(("submission_org", "Other"), ("submission_platform", "DGX"), ("submission_status", "cloud")),
            *(("submission_division", "closed"), ("global_batch_size", 64), ("train_samples", 1440), ("seed", 7)),
            *(("eval_samples", 720), ("opt_name", "adam"), ("telemetry_summary", {"samples": 1})),
        )
    ),
    *(
        ("own-log", make_log.run, lambda log, old=old, new=new: by.replaced(log, (old, new)), key)
        for old, new, key in (
            ('"WORKLOAD": {"value": "rn50"', '"WORKLOAD": {"value": "hrnet"', "submission_benchmark"),
            ('"DATA": {"value": "real"', '"DATA": {"value": "synthetic"', "run_summary"),
            ('"BATCHSIZE": {"value": 16', '"BATCHSIZE": {"value": 8', "run_summary"),
            ('"DGXNGPU": {"value": 2', '"DGXNGPU": {"value": [2]', "run_summary"),
            ('"TELEMETRY_S": {"value": 1', '"TELEMETRY_S": {"value": 0', "telemetry_summary"),
            ('"PRINT_STEPS": {"value": 22', '"PRINT_STEPS": {"value": 11', "step_window"),
            ('"SEED": {"value": 1', '"SEED": {"value": 2', "seed"),
            ('"math_mode": "fp32"', '"math_mode": "tf32"', "run_summary"),
            ('"device": "cpu"', '"device": "gpu"', "run_summary"),
            ('"synthetic": false', '"synthetic": true', "run_summary"),
            ('"commit": "0', '"commit": "g', None),
            ('"image_digest": null', '"image_digest": "latest"', None),
            ('"DGXSYSTEM": {', '"SYSTEM": {', None),
        )
    ),
    *(
        ("own-log", make_log.run, alter, key)
        for alter, key in (
            (lambda log: log.move_after("telemetry_summary", "run_start"), "telemetry_summary"),
            (lambda log: log.inside("run_summary", resumed=True), "run_summary"),
            (lambda log: log.inside("run_summary", devices=0), "*"),
            (lambda log: log.repeat("seed").change(
                "seed", lambda fields: fields.update(key="abort_reason", value="killed")), "abort_reason"),
            (lambda log: log.inside("step_window", 1, steps=44), "step_window"),
            (lambda log: log.inside("step_window", 1, time_s=17.9), "epoch_throughput"),
            (lambda log: log.inside("step_window", 1, time_s=-18.0), "step_window"),
            (lambda log: log.inside("step_window", 1, data_wait_s=18.1), "step_window"),
            (lambda log: log.inside("step_window", 1, data_wait_s=0.02), "epoch_throughput"),
            (lambda log: log.inside("step_window", 1, loss=-0.1), "step_window"),
            (lambda log: log.metadata("step_window", 1, step="44"), "step_window"),
            (lambda log: log.metadata("step_window", 1, epoch_num=2), "step_window"),
            (lambda log: log.metadata("step_window", 1, phase="measured"), "step_window"),
            (lambda log: log.later("step_window", -400), "step_window"),
            (lambda log: log.add_after("step_window", checkpoint(log, step=23), 0), "checkpoint"),
        )
    ),
    ("cache-cleared", make_log.closed_run, lambda log: log.later("cache_clear", 3e4), "cache_clear"),
    ("cache-order", make_log.closed_run, lambda log: log.later("cache_clear", -3.7e6), "cache_clear"),
    ("cache-order", make_log.closed_run, lambda log: log.move_after("cache_clear", "run_start"), "cache_clear"),
    ("run-resumed", lambda: make_log.run(summary={"resumed": True}), lambda log: log, "run_summary"),
    ("run-profiled", lambda: make_log.run(summary={"profiled": True}), lambda log: log, "run_summary"),
    ("null-gpu", make_log.run, lambda log: by.replaced(log, ('"gpus": []', '"gpus": [{"name": "Null GPU"}]')), "*"),
    ("run-mode", lambda: make_log.run(summary={"mode": "throughput"}), lambda log: log, "run_summary"),
    ("run-mode", lambda: make_log.run(summary={"data": "synthetic"}), lambda log: log, "run_summary"),
]  # fmt: skip


def _with_two_sources(log: Altered) -> Altered:
    log.lines.insert(3, log.lines[1].replace("0" * 40, "1" * 40))
    return log


def padded(log: Altered) -> Altered:
    """1,200 images of padding count as right in each evaluation."""
    return by.curve(lambda v: [(round(x * 50_000) + 1200) / 51_200 for x in v])(log, log)


def checkpoint(log: Altered, *, step: int, number: int = 0) -> str:
    """The event of one that took 1 s of the training, with the time of a window."""
    value = {"step": step, "file": "x", "mib": 97.5, "blocked_s": 1.0, "write_s": 2.5}
    fields = log.fields(log.at("step_window", number))
    return TOKEN + json.dumps(fields | {"key": "checkpoint", "value": value})
