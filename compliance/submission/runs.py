"""Several logs together: which files, the rules between runs, the system description, the official checker."""

import itertools
import json
import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compliance.check import LoggedRun, Report, check_file
from compliance.official import convergence
from compliance.official.rule_files import benchmarks
from compliance.rules import FINDINGS_PER_RULE, Finding, Ruleset, StrictRule, breach, note, verdict
from compliance.submission.description import compare_description, hardware_nodes, read_description
from compliance.submission.group import NOT_KNOWN, PASSED, convergence_test, submission_of
from runlog import schema
from runlog.reader import open_log
from runlog.text import printable

# Fields of the header that must be the same in all runs of a submission.
SAME_SECTIONS = tuple(s.name for s in (schema.SOURCE, schema.PACKAGES, schema.HARDWARE, schema.DATASET))
OWN_OF_A_RUN = (
    *("SEED", "RESULT_FILE", "NEXP", "ON_FAILURE", "LOGDIR", "PROGRESS"),
    *("CACHE_CLEARED", "NODE_RANK", "HOSTS", "GLOO_PORT"),
)
_OF_A_CONFIGURATION = {event.key for event in (schema.TRAIN_SAMPLES, schema.EVAL_SAMPLES, schema.RUN_SUMMARY)}
LEAST_POWER = 9  # of ten: equal intervals of a lower chance are no accident
LEAST_POWER_SCALED = 12  # the same of scaled ones; of 2,050 pairs of published runs the least likely has 1 in 10^8.7
MOST_OFF = 4  # images, of a count that was altered a little
LEAST_DISTINCT = 10  # values of the same intervals in another order; of those pairs, 3 but in the one copy
_TICKS = {"step_window": 1e-6}  # of the clock: seconds; other kinds are in milliseconds
LEAST_SERIES = 3  # shorter series of accuracies may be equal by chance


def expand(paths: Sequence[Path]) -> list[Path]:
    """The logs that `paths` name: files as they are, folders as their result_*.txt in the order of their numbers.

    Raises ValueError for a path that is not there, a folder without logs and a file named twice.
    """
    logs: dict[Path, Path] = {}
    for path in paths:
        if not path.exists() and not path.is_symlink():
            raise ValueError(f"{path}: no such file: check the path")
        inside = (
            sorted(path.glob("result_*.txt"), key=lambda log: (len(log.name), log.name)) if path.is_dir() else [path]
        )
        if not inside:
            raise ValueError(f"{path}: no result_*.txt in this folder; name its logs, or give `audit` the tree")
        for log in inside:
            if logs.setdefault(log.resolve(), log) is not log:
                raise ValueError(f"{log}: named twice")
    return list(logs.values())


def check_logs(
    logs: Sequence[Path],
    ruleset: Ruleset,
    *,
    benchmark: str | None = None,
    system: Path | None = None,
    official: Callable[[Path, str, str], tuple[bool, list[str]]] | None = None,
    receipt: bool = False,
    hashed: bool = False,
    by: str | None = None,
) -> list[Report]:
    """The report of each log, the rules between runs included. Raises ValueError for wrong use.

    `official` runs mlperf-logging's checker on a log, by ruleset and benchmark: its verdict and messages stand beside.
    `by` is the verdict that counts; None: strict for logs of this project, official for others.
    """
    if benchmark is not None and benchmark not in (known := benchmarks(ruleset.version)):
        raise ValueError(
            f"benchmark {benchmark}: ruleset {ruleset.version} has no rules for it; it has {', '.join(known)}"
        )
    description = read_description(system) if system else None
    checked = [replace(check_file(log, ruleset, benchmark), asked=by) for log in logs]
    reports = []
    for report in check_between(checked, ruleset):
        if description is not None:
            differs = compare_description(report.run, description, ruleset.strict["system-description"])
            report = replace(report, findings=(*report.findings, *differs))
        if official:
            report = _beside(report, ruleset, official)
        if receipt or hashed:
            report = replace(report, sha256=sha256(report.path))
        if receipt:  # `package` can tell by it a log that changed since
            said = {"sha256": report.sha256, "verdict": verdict(report.passed), "ruleset": ruleset.version}
            receipt_path(report.path).write_text(json.dumps(said) + "\n", encoding="utf-8")
        reports.append(report)
    return reports


# --- rules between runs ---

Found = Iterator[tuple[Report, Finding]]  # of the run to blame


def check_between(checked: Sequence[Report], ruleset: Ruleset) -> list[Report]:
    """The reports with the findings of the rules that compare runs, after their own.

    Compared are runs of one benchmark that lie in one folder or say the same of their submission, blanks and case left
    out: a text that differs makes no other submission of a run.
    """
    groups: dict[int, list[Report]] = {}
    known: dict[tuple[Any, ...], int] = {}  # the group of a submission's texts, and of a folder
    for index, one in enumerate(checked):
        text = tuple(" ".join(name.casefold().split()) for name in submission_of(one.run))
        folder = (text[0], one.path.parent)
        group = known.get(text, known.get(folder, index))
        known = {text: group, folder: group} | known
        groups.setdefault(group, []).append(one)
    found: dict[int, list[Finding]] = {id(one): [] for one in checked}
    for members in groups.values():
        for compare in (_copies, _configurations, _convergence):
            for one, finding in compare(members, ruleset):
                found[id(one)].append(finding)
    return [replace(one, findings=(*one.findings, *found[id(one)])) for one in checked]


def _copies(members: Sequence[Report], ruleset: Ruleset) -> Found:
    """What no two runs share: a seed, run_start, a series of accuracies."""
    first: dict[str, Report] = {}
    for position, one in enumerate(members):
        counts: Counter[str] = Counter()
        for rule, what, value, line in of_its_own(one.run):
            other = first.setdefault(f"{what}{json.dumps(value)}", one)
            counts[rule] += other is not one
            if other is not one and counts[rule] <= FINDINGS_PER_RULE:
                actual = f"{what} {printable(value, 60)} is that of {printable(other.path.name)} too"
                yield one, breach(ruleset.strict[rule], actual, line=line)
        for other in members[:position] if not counts["runs-differ"] else ():
            if equal := alike(one.run, other.run) or _at_once(one.run, other.run):
                line = one.run.evaluations[0].line if one.run.evaluations else None
                yield one, breach(ruleset.strict["runs-differ"], f"{equal} {printable(other.path.name)}", line=line)
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
    if nodes := hardware_nodes(run):  # any nodes of the same kind will do
        facts["header hardware"] = [{name: node[name] for name in node if name != "host"} for node in nodes]
    for name, value in run.section(schema.CONFIG).items():
        if name not in OWN_OF_A_RUN:
            facts[f"config {name}"] = value.get("value") if isinstance(value, dict) else value
    for key, value in run.values.items():
        if key.startswith("submission_") or key in _OF_A_CONFIGURATION or _is_hyperparameter(key):
            facts[key] = value
    return dict(sorted(facts.items(), key=lambda fact: not _is_hyperparameter(fact[0])))


def _configurations(members: Sequence[Report], ruleset: Ruleset) -> Found:
    first, base = printable(members[0].path.name), configuration(members[0].run)
    division = schema.SUBMISSION_DIVISION.key
    for one in members[1:]:
        other = configuration(one.run)
        if names := [name for name in {**base, **other} if base.get(name) != other.get(name)]:
            shown = []
            for name in names[:3]:
                mine, others = (printable(json.dumps(of.get(name)), 60) for of in (other, base))  # blanks show
                shown.append(f"{printable(name)} is {mine}, in {first} {others}")
            shown += [f"and {len(names) - 3} more"] if len(names) > 3 else []
            tuned = any(map(_is_hyperparameter, names)) and base.get(division) == other.get(division) == "closed"
            rule = ruleset.strict["same-hyperparameters" if tuned else "same-configuration"]
            yield one, breach(rule, "; ".join(shown), line=one.run.lines.get(names[0]))


def _is_hyperparameter(name: str) -> bool:
    whole = (schema.GLOBAL_BATCH_SIZE.key, schema.GRADIENT_ACCUMULATION_STEPS.key)
    return name.startswith(("sgd_", "lars_", "opt_", "model_")) or name in whole


def _convergence(members: Sequence[Report], ruleset: Ruleset) -> Found:
    """The test against the reference convergence points, for the benchmarks whose runs strict knows more of."""
    run = members[0].run
    benchmark = ruleset.benchmarks.get(run.text(schema.SUBMISSION_BENCHMARK))
    closed = run.of(schema.SUBMISSION_DIVISION).value == "closed"
    if benchmark is None or not benchmark.reference_points or not closed:
        return  # check says so for each log
    test = convergence_test(members, ruleset)
    if test.reference is not None:
        points = test.reference.points
        for one in members:
            yield from ((one, f) for f in _hyperparameters(one.run, points, ruleset.strict["rcp-hyperparameters"]))
    rule = ruleset.strict["rcp-convergence"]
    if len(members) != benchmark.runs:
        actual = f"not applied: it takes {benchmark.runs} runs of one submission, {len(members)} given"
        of_all = note(rule, actual)
    elif test.status == NOT_KNOWN:
        of_all = note(rule, f"not applied: {test.reason}")
    elif test.status == PASSED:
        return
    else:
        of_all = breach(rule, test.in_words())
    yield from ((one, of_all) for one in members)


def _hyperparameters(run: LoggedRun, points: Sequence[convergence.ReferencePoint], rule: StrictRule) -> list[Finding]:
    batch, name = run.values.get("global_batch_size"), run.values.get("opt_name")
    of_point = next((point.hyperparameters for point in points if point.global_batch == batch), None)
    if of_point is None:
        return [note(rule, f"not applied: no reference point at a global batch of {printable(batch, 30)}")]
    if of_point["optimizer"] != name:
        return [note(rule, f"not applied: the reference point is of {of_point['optimizer']}")]
    found = []
    for name_of_point, wanted in of_point.items():
        key = f"{name}_{name_of_point}"
        # the references count decay steps in iterations, logs in iterations or epochs
        if run.values.get(key, wanted) != wanted and not name_of_point.endswith("decay_steps"):
            actual = f"{key} is {printable(run.values[key], 30)}; the reference point has {wanted}"
            found.append(breach(rule, actual, line=run.lines.get(key)))
    return found


# --- whether two runs are one ---


def alike(run: LoggedRun, other: LoggedRun) -> str:
    """What is equal at more places of two runs than chance explains; empty if nothing is.

    Two counts of right images, of N at accuracy a, differ with a variance of N a (1 - a) / 2 or more, a quarter of that
    of independent errors. So one place is equal by a chance of 1 / sqrt(pi N a (1 - a)) at most: 0.006 of 50,000 images
    at 0.76. (Of 13,332 pairs of places in 140 published submissions 16 are equal, 0.0012, and no two runs have two.)
    A value counts once: a run that diverged always finds the same images. A curve that was moved has the same rises;
    where some images are added or taken away, so many more counts are equal by chance.
    """
    samples = run.count(schema.EVAL_SAMPLES)
    pairs = [(one.value, two.value) for one, two in zip(run.evaluations, other.evaluations, strict=False)]
    shares = bool(pairs) and all(0 <= value <= 1 for pair in pairs for value in pair)
    if shares and run.text(schema.SUBMISSION_BENCHMARK) == "resnet" and samples:
        mean = sum(map(sum, pairs)) / len(pairs) / 2
        variance = math.pi * samples * mean * (1 - mean)
        counts = [[round(value * samples) for value in values] for values in zip(*pairs, strict=True)]
        rises = [[after - before for before, after in itertools.pairwise(series)] for series in counts]
        for off, how in ((0, ""), (MOST_OFF, f", to {MOST_OFF} images,")):
            for (mine, others), what in ((counts, "counts of right images"), (rises, "rises of right images")):
                same = {one for one, two in zip(mine, others, strict=True) if abs(one - two) <= off}
                if variance > 1 and len(same) >= _most_by_chance(len(mine), (2 * off + 1) * variance**-0.5):
                    return f"{len(same)} of {len(mine)} {what}{how} are those of"
    if times := _same_intervals(run.intervals, other.intervals):
        return times
    losses = list(zip(run.losses, other.losses, strict=False))
    same = {one for one, two in losses if one == two and one is not None}
    if len(same) >= LEAST_SERIES:  # of 24 bits each
        return f"{len(same)} of {len(losses)} losses of step_windows are those of"
    return ""


def _same_intervals(one: Mapping[tuple[str, int], float], two: Mapping[tuple[str, int], float]) -> str:
    """Intervals of two runs, of one place and kind, that are equal to the clock's tick, where chance explains no such.

    The chance that two are equal is counted: the share of equal ones among intervals of a kind at different places.
    How many equal ones it gives is bounded by Chernoff's bound of the binomial tail. (Of 2,050 pairs of published runs
    the least likely has 1 in 10^6; the one copy has 1 in 10^78.) The same is asked of intervals times a factor.
    """
    kinds = sorted({name for name, _ in one})
    series = {kind: [[ms for (name, _), ms in run.items() if name == kind] for run in (one, two)] for kind in kinds}
    for mine, others in series.values():
        if mine != others and sorted(mine) == sorted(others) and len(set(mine)) >= LEAST_DISTINCT:
            return f"{len(mine)} intervals, in another order, are those of"
    for least, how in ((LEAST_POWER, ""), (LEAST_POWER_SCALED, ", times a factor")):
        places = equal = 0
        log_chance = 0.0
        for kind, (mine, others) in series.items():
            same, count, chance = _equal(mine, others, tick=_TICKS.get(kind, 1.0) if how else 0.0)
            if same > count * chance:
                log_chance += _log_tail(same, count, chance)
                places, equal = places + count, equal + same
        if equal >= LEAST_SERIES and log_chance >= least * math.log(10):
            by_chance = f"by chance in 1 of 10^{math.floor(log_chance / math.log(10))} pairs of runs"
            return f"{equal} of {places} intervals{how}, to the clock's tick ({by_chance}), are those of"
    return ""


def _equal(mine: Sequence[float], others: Sequence[float], *, tick: float) -> tuple[int, int, float]:
    """How many are equal, of how many, and by which chance one is; with a `tick` to it, by the factor of the sums."""
    count = min(len(mine), len(others))
    if tick and (total := sum(others[:count])) > 0:
        others = [sum(mine[:count]) / total * value for value in others]
    same = sum(abs(one - two) <= tick for one, two in zip(mine, others, strict=False))
    ordered = sorted(others)
    near = sum(bisect_right(ordered, one + tick) - bisect_left(ordered, one - tick) for one in mine)
    return same, count, (max(near - same, 0) + 1) / (len(mine) * len(others) - count + 1) if count else 1.0


def _log_tail(same: int, count: int, chance: float) -> float:
    """Minus the logarithm of the chance of `same` equal ones of `count` or more, by Chernoff's bound."""
    share = same / count
    log = same * math.log(share / chance)
    return log + (count - same) * math.log((1 - share) / (1 - chance)) if same < count else log


def _most_by_chance(places: int, chance: float) -> int:
    """So many equal places, 3 at least, one submission of a thousand has by chance: of 5 runs, which are 10 pairs."""
    counts = range(LEAST_SERIES, places + 1)
    return next((n for n in counts if 10 * math.comb(places, n) * chance**n < 1e-3), places + 1)


def of_its_own(run: LoggedRun) -> Iterator[tuple[str, str, Any, int | None]]:
    """Rule, name, value and line of what is a run's own."""
    for seed in run.kept[schema.SEED.key]:
        value = seed.value
        whole = value.is_integer() if isinstance(value, float) else re.fullmatch(r"\s*\d{1,19}\s*", str(value))
        yield "seeds-differ", "seed", int(value) if whole else value, seed.line
    if run.start_ms is not None:
        yield "runs-differ", "run_start", run.start_ms, run.lines.get(schema.RUN_START.key)
    if len(run.evaluations) >= LEAST_SERIES:
        accuracies = [evaluation.value for evaluation in run.evaluations]
        yield "runs-differ", "the series of accuracies", accuracies, run.evaluations[0].line


# --- the official checker ---


def _beside(report: Report, ruleset: Ruleset, official: Callable[[Path, str, str], tuple[bool, list[str]]]) -> Report:
    passed, messages = official(report.path, ruleset.version, report.run.text(schema.SUBMISSION_BENCHMARK))
    found = list(report.findings)
    if passed and not report.official:
        refused = ", ".join(sorted({f.rule for f in found if f.official}))
        actual = f"it passes the log; this one says that it does not, by {refused}"
        found.append(breach(ruleset.strict["official-disagrees"], actual))
    elif not passed and report.official:
        actual = f"it rejects the log: {'; '.join(messages[:2]) or 'no message'}"
        found.append(replace(breach(ruleset.strict["official-disagrees"], actual), official=True))
    answer = {"verdict": verdict(passed), "messages": messages}
    return replace(report, findings=tuple(found), mlperf_logging=answer)


def receipt_path(log: Path) -> Path:
    return log.with_name(f"{log.name}.checked")


def sha256(path: Path) -> str:
    import hashlib  # loads OpenSSL, which most checks do without

    digest = hashlib.sha256()
    with open_log(path) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
