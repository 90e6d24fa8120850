"""Several logs together: which files, the rules between runs, the system description, the official checker."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compliance.check import NOTHING, LoggedRun, check_file
from compliance.findings import FINDINGS_PER_RULE, FileReport, Finding, breach, note
from compliance.first_values import COUNT, has_type
from compliance.official import convergence
from compliance.official.rule_files import benchmarks
from compliance.rules import Benchmark, Ruleset, StrictRule
from compliance.submission.copies import alike, of_its_own
from compliance.submission.description import compare_description, hardware_nodes, read_description
from runlog import schema
from runlog.reader import open_log
from runlog.text import printable

# Fields of the header that must be the same in all runs of a submission.
SAME_SECTIONS = tuple(s.name for s in (schema.SOURCE, schema.PACKAGES, schema.HARDWARE, schema.DATASET))
_SUBMISSION = (
    *(schema.SUBMISSION_BENCHMARK, schema.SUBMISSION_DIVISION, schema.SUBMISSION_ORG, schema.SUBMISSION_PLATFORM),
)
OWN_OF_A_RUN = frozenset(
    {
        *("SEED", "RESULT_FILE", "NEXP", "ON_FAILURE", "LOGDIR", "PROGRESS"),
        *("CACHE_CLEARED", "NODE_RANK", "HOSTS", "GLOO_PORT"),
    }
)
_OF_A_CONFIGURATION = {event.key for event in (schema.TRAIN_SAMPLES, schema.EVAL_SAMPLES, schema.RUN_SUMMARY)}


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A log, its findings so far and its run."""

    path: Path
    findings: tuple[Finding, ...]
    run: LoggedRun


def expand(paths: Sequence[Path]) -> list[Path]:
    """The logs that `paths` name: files as they are, folders as their result_*.txt in the order of their numbers.

    Raises ValueError for a path that is not there, a folder without logs and a file named twice.
    """
    logs: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = list(path.glob("result_*.txt"))
            if not inside:
                raise ValueError(f"{path}: no result_*.txt in this folder; name its logs, or give `audit` the tree")
            logs += sorted(inside, key=lambda log: (len(log.name), log.name))
        elif path.exists() or path.is_symlink():
            logs.append(path)
        else:
            raise ValueError(f"{path}: no such file")
    for index, log in enumerate(logs):
        if any(log.resolve() == other.resolve() for other in logs[:index]):
            raise ValueError(f"{log}: named twice")
    return logs


def check_logs(
    logs: Sequence[Path],
    ruleset: Ruleset,
    *,
    benchmark: str | None = None,
    system: Path | None = None,
    official: Callable[[Path, str, str], tuple[bool, list[str]]] | None = None,
    receipt: bool = False,
    hashed: bool = False,
    verdict: str | None = None,
) -> list[FileReport]:
    """The report of each log, the rules between runs included. Raises ValueError for wrong use.

    `official` runs mlperf-logging's checker on a log, by ruleset and benchmark: its verdict and messages stand beside.
    `verdict` is the one that counts; None: strict for logs of this project, official for others.
    """
    if benchmark is not None and benchmark not in benchmarks(ruleset.version):
        known = ", ".join(benchmarks(ruleset.version))
        raise ValueError(f"benchmark {benchmark}: ruleset {ruleset.version} has no rules for it; it has {known}")
    description = read_description(system) if system else None
    checked = [Checked(path=log, findings=(), run=NOTHING) for log in logs]
    for index, log in enumerate(logs):
        found, run = check_file(log, ruleset, benchmark)
        checked[index] = Checked(path=log, findings=found, run=run)
    between = check_between(checked, ruleset)
    reports = []
    for index, one in enumerate(checked):
        found = one.findings + tuple(between[index])
        if description is not None:
            found += tuple(compare_description(one.run, description, ruleset.strict["system-description"]))
        answer = None
        if official:
            answer, disagreement = _beside(one, found, ruleset, official)
            found += disagreement
        digest = sha256(one.path) if receipt or hashed else None
        by = verdict or ("strict" if one.run.is_project_log else "official")
        report = FileReport(file=str(one.path), findings=found, by=by, sha256=digest, mlperf_logging=answer)
        if receipt:
            write_receipt(one.path, report, ruleset)
        reports.append(report)
    return reports


# --- rules between runs ---


def submission_of(run: LoggedRun) -> tuple[str, ...]:
    """What the runs of one submission have in common by name."""
    return tuple(str(run.first_value(event)) for event in _SUBMISSION)


def check_between(checked: Sequence[Checked], ruleset: Ruleset) -> list[list[Finding]]:
    """Findings of the rules that compare runs, for each log.

    Compared are runs of one benchmark that lie in one folder or say the same of their submission, blanks and case left
    out: a text that differs makes no other submission of a run.
    """
    found: list[list[Finding]] = [[] for _ in checked]
    groups: dict[int, list[int]] = {}
    by_folder: dict[tuple[Any, ...], int] = {}
    by_text: dict[tuple[str, ...], int] = {}
    for index, one in enumerate(checked):
        text = tuple(" ".join(name.casefold().split()) for name in submission_of(one.run))
        folder = (text[0], one.path.parent)
        group = by_text.get(text, by_folder.get(folder, index))
        by_text.setdefault(text, group)
        by_folder.setdefault(folder, group)
        groups.setdefault(group, []).append(index)
    for members in groups.values():
        _copies(checked, members, ruleset, found)
        _configurations(checked, members, ruleset, found)
        _convergence(checked, members, ruleset, found)
    return found


def _copies(checked: Sequence[Checked], members: Sequence[int], ruleset: Ruleset, found: list[list[Finding]]) -> None:
    """What no two runs share: a seed, run_start, a series of accuracies."""
    first: dict[str, int] = {}
    for index in members:
        run, counts = checked[index].run, dict.fromkeys(("seeds-differ", "runs-differ"), 0)
        for rule, what, value, line in of_its_own(run):
            other = first.setdefault(f"{what}{json.dumps(value)}", index)
            counts[rule] += other != index
            if other != index and counts[rule] <= FINDINGS_PER_RULE:
                where = printable(checked[other].path.name)
                actual = f"{what} {printable(value, 60)} is that of {where} too"
                found[index].append(breach(ruleset.strict[rule], actual, line=line))
        if counts["runs-differ"]:
            continue
        for other in members[: members.index(index)]:
            if equal := alike(run, checked[other].run) or _at_once(run, checked[other].run):
                actual = f"{equal} {printable(checked[other].path.name)}"
                line = run.evaluations[0].line if run.evaluations else None
                found[index].append(breach(ruleset.strict["runs-differ"], actual, line=line))
                break


def _at_once(run: LoggedRun, other: LoggedRun) -> str:
    """On which host of their headers two runs trained at the same time; others' logs name no host."""
    hosts = [{str(node.get("host")) for node in hardware_nodes(one)} for one in (run, other)]
    times = (run.start_ms, run.stop_ms, other.start_ms, other.stop_ms)
    if None in times or not (shared := sorted(hosts[0] & hosts[1])):
        return ""
    start, stop, other_start, other_stop = (float(ms or 0) for ms in times)
    return f"it ran on {printable(shared[0])} while that trained:" if start < other_stop and other_start < stop else ""


def configuration(run: LoggedRun) -> dict[str, Any]:
    """What must be the same in all runs of a submission, by name."""
    facts: dict[str, Any] = {f"header {section}": run.headers.get(section) for section in SAME_SECTIONS}
    nodes = hardware_nodes(run)
    if nodes:  # any nodes of the same kind will do
        facts["header hardware"] = [{name: node[name] for name in node if name != "host"} for node in nodes]
    config = run.headers.get("config")
    for name, value in (config if isinstance(config, dict) else {}).items():
        if name not in OWN_OF_A_RUN:
            facts[f"config {name}"] = value.get("value") if isinstance(value, dict) else value
    for key, value in run.values.items():
        if key.startswith("submission_") or key in _OF_A_CONFIGURATION or _is_hyperparameter(key):
            facts[key] = value
    return dict(sorted(facts.items(), key=lambda fact: not _is_hyperparameter(fact[0])))


def _configurations(
    checked: Sequence[Checked], members: Sequence[int], ruleset: Ruleset, found: list[list[Finding]]
) -> None:
    first = checked[members[0]].run
    base = configuration(first)
    division = schema.SUBMISSION_DIVISION.key
    for index in members[1:]:
        other = configuration(checked[index].run)
        names = [name for name in {**base, **other} if base.get(name) != other.get(name)]
        if names:
            where = printable(checked[members[0]].path.name)
            shown = [
                f"{printable(name)} is {one}, in {where} {two}"
                for name in names[:3]
                for one, two in [[printable(json.dumps(of.get(name)), 60) for of in (other, base)]]  # blanks show
            ]
            more = f"; and {len(names) - 3} more" if len(names) > 3 else ""
            line = checked[index].run.lines.get(names[0])
            tuned = any(map(_is_hyperparameter, names)) and base.get(division) == other.get(division) == "closed"
            rule = ruleset.strict["same-hyperparameters" if tuned else "same-configuration"]
            found[index].append(breach(rule, "; ".join(shown) + more, line=line))


def _is_hyperparameter(name: str) -> bool:
    return name.startswith(("sgd_", "lars_", "opt_", "model_")) or name in (
        schema.GLOBAL_BATCH_SIZE.key,
        schema.GRADIENT_ACCUMULATION_STEPS.key,
    )


def benchmark_of(run: LoggedRun, ruleset: Ruleset) -> Benchmark | None:
    name = run.values.get("submission_benchmark")
    return ruleset.benchmarks.get(name) if isinstance(name, str) else None


def global_batch(run: LoggedRun) -> int | None:
    """Its images of a step; None where it says no whole number."""
    batch = run.first_value(schema.GLOBAL_BATCH_SIZE)
    return int(batch) if has_type(batch, COUNT) else None


def reference_applies(run: LoggedRun, ruleset: Ruleset) -> bool:
    """Whether the reference convergence points are for this run: closed."""
    benchmark = benchmark_of(run, ruleset)
    return (
        benchmark is not None
        and benchmark.reference_points is not None
        and run.first_value(schema.SUBMISSION_DIVISION) == "closed"
    )


def epochs_to_target(run: LoggedRun) -> float:
    """Epoch of the last evaluation of a run with success, as rcp_checker counts."""
    if run.status != "success" or not run.evaluations:
        return convergence.NOT_CONVERGED
    return run.evaluations[-1].epoch


def _convergence(
    checked: Sequence[Checked], members: Sequence[int], ruleset: Ruleset, found: list[list[Finding]]
) -> None:
    run = checked[members[0]].run
    if not reference_applies(run, ruleset):
        return  # check says so for each log
    benchmark = benchmark_of(run, ruleset)
    assert benchmark is not None
    assert benchmark.reference_points is not None
    points = convergence.reference_points(benchmark.reference_points, ruleset.version, benchmark.runs)
    rule = ruleset.strict["rcp-hyperparameters"]
    for index in members:
        found[index] += _hyperparameters(checked[index].run, points, rule)
    rule = ruleset.strict["rcp-convergence"]
    batch = global_batch(run)
    if len(members) != benchmark.runs:
        actual = f"not applied: it takes {benchmark.runs} runs of one submission, {len(members)} given"
        for index in members:
            found[index].append(note(rule, actual))
    elif batch is None:
        for index in members:
            found[index].append(breach(rule, "no global_batch_size to take a reference point for"))
    else:
        epochs = [epochs_to_target(checked[index].run) for index in members]
        verdict = convergence.against_points(epochs, batch, points, benchmark.runs)
        if not verdict.passed:
            actual = verdict.reason
            if verdict.point and verdict.mean_epochs is not None:
                least = verdict.point.least_epochs
                actual = f"{verdict.mean_epochs:.2f} epochs; {least:.2f} is the least ({verdict.reason})"
            for index in members:
                found[index].append(breach(rule, actual))


def _hyperparameters(run: LoggedRun, points: Sequence[Any], rule: StrictRule) -> list[Finding]:
    batch, name = run.values.get("global_batch_size"), run.values.get("opt_name")
    exact = [point for point in points if point.global_batch == batch and point.hyperparameters]
    if not exact:
        return [note(rule, f"not applied: no reference point at a global batch of {printable(batch, 30)}")]
    point = exact[0]
    if point.hyperparameters.get("optimizer") != name:
        return [note(rule, f"not applied: the reference point is of {point.hyperparameters.get('optimizer')}")]
    found = []
    for name_of_point, wanted in point.hyperparameters.items():
        key = f"{name}_{name_of_point}"
        # the references count decay steps in iterations, logs in iterations or epochs; bn_span is a batch
        if key not in run.values or name_of_point.endswith("decay_steps"):
            continue
        value = run.values[key]
        if value != wanted:
            actual = f"{key} is {printable(value, 30)}; the reference point has {wanted}"
            found.append(breach(rule, actual, line=run.lines.get(key)))
    return found


# --- the official checker ---


def _beside(
    one: Checked,
    found: Sequence[Finding],
    ruleset: Ruleset,
    official: Callable[[Path, str, str], tuple[bool, list[str]]],
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    name = one.run.values.get("submission_benchmark")
    passed, messages = official(one.path, ruleset.version, name if isinstance(name, str) else "")
    answer = {"verdict": "pass" if passed else "fail", "messages": messages}
    rule = ruleset.strict["official-disagrees"]
    if refused := sorted({f.rule for f in found if f.official}) if passed else ():
        return answer, (breach(rule, f"it passes the log; this one says that it does not, by {', '.join(refused)}"),)
    if not passed and not any(f.official for f in found):
        found_ = breach(rule, f"it rejects the log: {'; '.join(messages[:2]) or 'no message'}")
        return answer, (replace(found_, official=True),)
    return answer, ()


# --- receipts ---


def receipt_path(log: Path) -> Path:
    return log.with_name(f"{log.name}.checked")


def sha256(path: Path) -> str:
    import hashlib  # loads OpenSSL, which most checks do without

    digest = hashlib.sha256()
    with open_log(path) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_receipt(log: Path, report: FileReport, ruleset: Ruleset) -> None:
    """Writes what was checked beside the log, so that `package` can tell a log that changed since."""
    receipt = {
        "sha256": report.sha256,
        "verdict": "pass" if report.passed else "fail",
        "ruleset": ruleset.version,
    }
    receipt_path(log).write_text(json.dumps(receipt) + "\n", encoding="utf-8")
