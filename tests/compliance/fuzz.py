"""Coverage-guided fuzzing of the reader and the checker:  python tests/compliance/fuzz.py [libFuzzer options] FOLDER...

An input that begins with FRAGMENTS is a list of fragments of logs, a byte each, else it is the log itself. New inputs
that reach more code go to the first FOLDER; tests/compliance/corpus holds the ones found so far, and test_safety.py
runs them all.
"""

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

FRAGMENTS = b"\xff"
KEYS = (
    *("submission_org", "submission_platform", "submission_division", "submission_status", "submission_benchmark"),
    *("cache_clear", "init_start", "init_stop", "run_start", "run_stop", "block_start", "block_stop", "epoch_start"),
    *("epoch_stop", "eval_start", "eval_stop", "eval_accuracy", "train_samples", "eval_samples", "opt_name", "seed"),
    *("global_batch_size", "gradient_accumulation_steps", "lars_epsilon", "lars_opt_weight_decay", "sgd_opt_momentum"),
    *("run_summary", "abort_reason", "step_window", "epoch_throughput", "throughput", "tracked_stats"),
)
HUGE = "9" * 4000
VALUES = (
    *(HUGE, f'{{"devices": {HUGE}, "batch_per_device": {HUGE}, "nodes": {HUGE}}}'),
    f'{{"images": {HUGE}, "time_s": 1, "images_per_s": {HUGE}}}',
    *("null", "true", "1", "0.76", "-1", "1e999", '""', '"x"', '"\\ud800\\u001b[2J"', '"closed"', '"open"', '"resnet"'),
    *('"hrnet"', '"lars"', '"cloud"', "1281167", "50000", "3264", "5e-05", "[]", "NaN", '{"images": 1, "time_s": 1}'),
    *('{"images": 1, "time_s": 1e-320, "images_per_s": 1}', '{"throughput": 5}', '{"resumed": true, "devices": 1e9}'),
)
METADATA = (
    *("{}", '{"epoch_num": 1}', '{"epoch_num": 2}', '{"epoch_num": 1e400}', '{"first_epoch_num": 1, "epoch_count": 2}'),
    *('{"first_epoch_num": 1}', '{"status": "success"}', '{"status": "aborted"}', '{"status": []}', '{"rank": 2}'),
    "[]",
    *('{"samples_count": 5}', '{"epoch_num": 1, "epoch_num": 1}', '{"epoch_count": "x", "first_epoch_num": null}'),
)
TIMES = ("0", "1", "1000", "3000000", "-5", "1.5", "9223372036854775808", '"1"', "1e400", "null")
BETWEEN = (
    *("\n", "\n\n", "\r\n", "\r", "", "\x1b[0m\n", " x\n", "\0\n", "\n[1,3]<stdout>:", '\n# {"config": {"A": {}}}\n'),
    '\n# {"hardware": {"nodes": [{"gpus": 3}, {"gpus": [1]}, 2]}}\n',
    *('\n# {"hardware": []}\n', '\n# {"source": 1}\n'),
)


def fragments(data: bytes) -> bytes:
    """A log made of events whose parts the bytes choose: key, value, metadata, time, event type and line end."""
    kinds = ("INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME", "x")
    events = []
    for at in range(0, len(data) - 3, 4):
        key, value, two, three = data[at : at + 4]
        parts = (KEYS[key % len(KEYS)], VALUES[value % len(VALUES)], METADATA[two % len(METADATA)])
        time_ms, kind = TIMES[three % len(TIMES)], kinds[key // len(KEYS) % 4]
        events.append(
            f':::MLLOG {{"time_ms": {time_ms}, "event_type": "{kind}", "key": "{parts[0]}", "value": {parts[1]}, '
            f'"metadata": {parts[2]}}}{BETWEEN[two // len(METADATA) % len(BETWEEN)]}'
        )
    return "".join(events).encode()


RULESETS: dict[str, Any] = {}
EXPLAINED: set[tuple[str, str]] = set()  # rule and ruleset, once each: it takes a tenth of a second


def run_one(data: bytes) -> None:
    """Checks one input under each ruleset; whatever it holds, the outputs are sound and safe to print."""
    from dataclasses import replace

    from compliance import explained, forms, junit, rules
    from compliance.check import check_file
    from compliance.submission.description import compare_description
    from compliance.submission.runs import check_between_runs
    from runlog import reader

    text = fragments(data[1:]) if data.startswith(FRAGMENTS) else data
    for version in ("2.1.0", "4.0.0", "6.1.0"):
        ruleset = RULESETS.get(version) or RULESETS.setdefault(version, rules.load(version))
        log = reader.HeldLog("log")
        log.data = text
        one = replace(check_file(log, ruleset), asked="strict")
        [compared, _] = check_between_runs([one, one], ruleset)
        described = compare_description(one.run, {"status": "x"}, ruleset.strict["system-description"])
        report = replace(compared, findings=(*compared.findings, *described))
        shown = forms.as_text([report])
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\ud800-\udfff]", shown), "raw control characters"
        assert json.loads(forms.as_json([report]))["files"][0]["verdict"] in ("pass", "fail")
        assert all(line.startswith(("::", "log: ")) for line in forms.as_github([report]).splitlines())
        ElementTree.fromstring(junit.as_junit([report]))
        assert len(report.findings) < 3000
        for rule in {finding.rule for finding in one.findings if finding.severity != "info"}:
            if (rule, ruleset.version) not in EXPLAINED:
                assert explained.explain(rule, ruleset)
                EXPLAINED.add((rule, ruleset.version))


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["compliance", "runlog"]):
        run_one(b"")  # which imports what it checks
    atheris.Setup(sys.argv, run_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
