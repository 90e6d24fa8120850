"""The rules of a whole run, once its log has ended."""

from dataclasses import dataclass

from compliance import passports
from compliance.logged_run import COUNT, Evaluation, LoggedRun, has_type, is_number, own_metadata
from compliance.official.language import State, holds
from compliance.official.rule_files import read_check
from compliance.rules import Benchmark, Collected, Finding, Ruleset, WrittenRule
from compliance.strict.accuracies import (
    check_curve,
    check_samples,
    check_schedule,
    counts_batches,
    is_own_data,
    place_of_target,
)
from compliance.strict.copies import whole_seed
from compliance.strict.pace import check_pace
from compliance.strict.project_log import ProjectLog
from compliance.strict.run_order import RunOrder
from runlog import schema
from runlog.reader import Event
from runlog.text import printable

_NOT_CLEARED = frozenset({"false", "no", "n", "off", "0", "none", "skipped", "failed"})
_OF_A_WHOLE_RUN = {"mode": "train", "data": "real", "resumed": False, "profiled": False}  # fields of run_summary
_OF_OWN_DATA = ("eval-schedule", "eval-samples", "accuracy-curve", "rcp-hyperparameters", "rcp-convergence")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A run that has ended, and what is collected of it."""

    ruleset: Ruleset
    run: LoggedRun
    order: RunOrder
    collected: Collected

    def check(self, benchmark_asked: str | None) -> None:
        """Collect the breaches of the rules about the run as a whole, after those of its single events.

        `benchmark_asked` is the benchmark that the log must be of; None allows any. At the end, the breaches of rules
        that do not hold for the run's benchmark and division are dropped, those of single events as well. A note that
        the rule was not applied takes their place.
        """
        run = self.run
        name = run.text(schema.SUBMISSION_BENCHMARK)
        division = run.text(schema.SUBMISSION_DIVISION)
        benchmark = self.ruleset.benchmarks.get(name)  # None: it is none of this project's
        self._check_benchmark_asked(benchmark_asked)
        self._check_status(ours=benchmark is not None)
        self._check_summary()
        self._check_caches()
        self._check_seeds()
        if benchmark is not None:
            self._check_benchmark(benchmark, division)
        if run.is_project_log:
            # Our writer logs every benchmark in one form, so this looks at all breaches of form before any is dropped.
            self._check_own_log(benchmark)
        self.collected.keep_applicable("" if benchmark is None else name, division)
        if division == "closed":
            self._note_data()

    def _breach(self, rule: str, line: int | None, actual: str, expected: str | None = None) -> None:
        self.collected.breach(rule, line, actual, expected)

    # --- rules of every benchmark ---

    def _check_benchmark_asked(self, asked: str | None) -> None:
        name = self.run.text(schema.SUBMISSION_BENCHMARK)
        if asked and name and name != asked:
            line = self.run.of(schema.SUBMISSION_BENCHMARK).line
            self._breach("benchmark-asked", line, printable(name), f"benchmark {asked}")

    def _check_status(self, *, ours: bool) -> None:
        """Collect a run that did not end with success; others than `ours` have words of their own for success."""
        run = self.run
        status = run.status
        if run.stop is None or status == "success":
            return
        if not ours and status != "aborted":
            return
        reason = run.of(schema.ABORT_REASON)
        why = f": {printable(reason.value)}" if reason.line else ""
        self._breach("run-status", run.stop.line, f"status {printable(status)}{why}")

    def _check_summary(self) -> None:
        """Collect what a log's run_summary says against a whole training on real data.

        It may say that the run only measured throughput, or was on synthetic data, resumed or profiled. Others' logs
        have no run_summary, so for them it is noted that the rule was not applied.
        """
        summary = self.run.summary
        line = self.run.of(schema.RUN_SUMMARY).line
        if summary is None:
            self.collected.note("run-mode", "not applied: the log has no run_summary that says so")
            return
        for field, wanted in _OF_A_WHOLE_RUN.items():
            value = getattr(summary, field)
            if value != wanted:
                name = f"run_summary's {field} is"
                self._breach("run-mode", line, f"{name} {printable(value)}", f"{name} {printable(wanted)}")

    def _check_caches(self) -> None:
        """Collect each cache_clear event that says that the cache was kept, and caches that were all cleared too late.

        Each node may log an event of its own, by its own clock, so it is enough that the first cache was cleared before
        run_start.
        """
        cleared: list[Event] = []
        for event in self.run.kept[schema.CACHE_CLEAR.key]:
            kept = _why_not_cleared(event)
            if kept:
                self._breach("cache-cleared", event.line, f"not cleared: {kept}")
            else:
                cleared.append(event)
        if not cleared or self.run.start_ms is None:
            return
        first = min(cleared, key=lambda event: event.time_ms)
        late_ms = first.time_ms - self.run.start_ms
        if late_ms > self.collected.strict["cache-cleared"].bounds["late_ms"]:
            self._breach("cache-cleared", first.line, f"{late_ms:.0f} ms after run_start")

    def _check_seeds(self) -> None:
        """Collect a log without a seed, and seeds that seed_checker does not take."""
        seeds = self.run.kept[schema.SEED.key]
        if not seeds:
            self._breach("seed-present", None, "no seed")
        for seed in seeds:
            if whole_seed(seed.value) is None:
                self._breach("seed-present", seed.line, f"seed {printable(seed.value)}")
            elif not {"file", "lineno"} <= seed.metadata.keys():
                self._breach("seed-present", seed.line, "a seed without file and lineno, which seed_checker needs")

    # --- rules of this project's benchmarks ---

    def _check_benchmark(self, benchmark: Benchmark, division: str) -> None:
        """Collect what is against a run of a benchmark of this project: its figures, its target and its data set."""
        run = self.run
        self.order.measured.finish()
        for evaluation in run.evaluations:
            if not 0 <= evaluation.value <= 1:
                actual = f"eval_accuracy is {evaluation.value!r}"
                self._breach("value-type", evaluation.line, actual, "eval_accuracy is a share, 0 to 1")
        check_pace(run, self.order, benchmark, self.collected)
        self._check_target(benchmark, division)

        is_closed = division == "closed"
        is_closed_resnet = is_closed and benchmark.name == "resnet"
        on_own_data = is_own_data(run, benchmark)  # the benchmark's own
        if run.is_project_log and on_own_data:
            self._check_distributed(benchmark)
        if is_closed_resnet:
            self.collected.found += self._written_findings()
        if is_closed and not on_own_data:
            on_own_data = self._check_closed_data(benchmark)
        if is_closed_resnet and on_own_data:
            self._check_closed_evaluations(benchmark)
        elif run.is_project_log and benchmark.name == "resnet" and has_type(run.of(schema.EVAL_SAMPLES).value, COUNT):
            check_samples(run, int(run.count(schema.EVAL_SAMPLES)), self.collected)

    def _check_closed_evaluations(self, benchmark: Benchmark) -> None:
        """Collect what is against the evaluations of a closed ResNet run: when, on how many samples, which curve."""
        # "at least as frequently" in version 0.7 of the rules, "at the same frequency" from 1.0 on
        exact = self.ruleset.version > "0.7.0"
        check_schedule(self.run, self.order, exact=exact, collected=self.collected)
        check_samples(self.run, benchmark.eval_samples, self.collected)
        check_curve(self.run.evaluations, benchmark.targets["closed"], self.collected)

    def _check_distributed(self, benchmark: Benchmark) -> None:
        """Collect files that the benchmark's data set cannot have, by the sums of their bytes in the header."""
        if benchmark.distributed is None:
            return
        stated = passports.bytes_of_parts(self.run.section(schema.DATASET))
        for difference in passports.differences(stated, benchmark.distributed):
            self._breach("data-distributed", None, difference)

    def _check_closed_data(self, benchmark: Benchmark) -> bool:
        """Collect that a closed run states another data set than the benchmark's; return whether it used that one.

        It did, and the finding only warns, if the accuracies show that just the number of evaluation samples was logged
        wrong. Otherwise the finding is an error.
        """
        train = self.run.of(schema.TRAIN_SAMPLES)
        evaluation = self.run.of(schema.EVAL_SAMPLES)
        if benchmark.name == "resnet" and counts_batches(self.run, benchmark):
            whole = f"the accuracies are whole numbers of {benchmark.eval_samples}"
            actual = f"eval_samples is {evaluation.value}; {whole}"
            self.collected.breach("eval-samples", evaluation.line, actual, severity="warning")
            return True
        wanted = f"train_samples {benchmark.train_samples} and eval_samples {benchmark.eval_samples}"
        blamed = train if train.value != benchmark.train_samples else evaluation
        actual = f"{printable(train.value, 30)} and {printable(evaluation.value, 30)}"
        self._breach("closed-data", blamed.line or None, actual, wanted)
        return False

    def _note_data(self) -> None:
        """Note that the rules of the benchmark's data set were not applied where a closed run is on another."""
        rules_found = {finding.rule for finding in self.collected.found}
        if not any(finding.rule == "closed-data" and finding.severity == "error" for finding in self.collected.found):
            return
        for rule in _OF_OWN_DATA:
            if rule not in rules_found:
                self.collected.note(rule, "not applied: not the benchmark's data set")

    def _check_target(self, benchmark: Benchmark, division: str) -> None:
        """Collect a status that the accuracies deny: it is success if and only if one reached the target by run_stop.

        The target is the benchmark's for the division, else the recipe's, which the log's header states.
        """
        run = self.run
        target = benchmark.targets.get(division, run.recipe_target)
        if target is None:
            why = f"the {printable(division, 20)} division fixes no target, nor does the log's header"
            self.collected.note("target-status", f"not applied: {why}")
            return
        if not run.evaluations or run.stop is None:
            return
        place = place_of_target(run.evaluations, target)
        if place is not None:
            self._check_reached(run.evaluations[place], division)
        elif run.status == "success":
            last = run.evaluations[-1]
            actual = f"status success; the last evaluation gave {last.value:.6g}, the target is {target}"
            self._breach("target-status", last.line, actual)

    def _check_reached(self, first: Evaluation, division: str) -> None:
        """Collect that a run is no success although its evaluation `first` reached the target, or reached it too late.

        A closed run may go on after it has reached the target: that is only noted.
        """
        run = self.run
        assert run.stop is not None
        reached = f"epoch {first.epoch} reached {first.value:.6g}"
        late_ms = first.time_ms - run.stop.time_ms
        if run.status != "success":
            self._breach("target-status", first.line, f"status {printable(run.status)}, although {reached}")
        elif late_ms > self.collected.strict["target-status"].bounds["after_stop_ms"]:
            self._breach("target-status", first.line, f"{reached} {late_ms:.10g} ms after run_stop")
        elif division == "closed" and first is not run.evaluations[-1]:
            self.collected.note("target-status", f"{reached} already and the run went on, as it may")

    # --- the written rules of single values ---

    def _written_findings(self) -> list[Finding]:
        """Return a finding for each check of written.yaml that the run does not meet: rules of the texts for one value.

        A check looks at the first event of its key. It is passed over where the log has no such event, and where it is
        for another optimizer than the run's.
        """
        state = State(self.run.values.items())  # the first value of each key, which a check may name
        state["epochs_trained"] = self.order.epochs_counted
        findings = []
        for rule in self.ruleset.written:
            event = self.run.first.get(rule.key)
            is_of_optimizer = rule.opt_name in (None, self.run.text(schema.OPT_NAME))
            if event is None or not is_of_optimizer:
                continue
            finding = _written_finding(rule, event, state)
            if finding is not None:
                findings.append(finding)
        return findings

    # --- a log of this project ---

    def _check_own_log(self, benchmark: Benchmark | None) -> None:
        """Collect what a log of this project cannot hold: it is whole, and in the form that its writer gives it."""
        for fault in ProjectLog(run=self.run, order=self.order, benchmark=benchmark).faults():
            self._breach("own-log", fault.line, fault.what)
        for finding in list(self.collected.found):
            if finding.kind == "form" and finding.severity != "info":
                self._breach("own-log", finding.line, f"{finding.rule}: {finding.actual}")


def _written_finding(rule: WrittenRule, event: Event, state: State) -> Finding | None:
    """Return the breach of a rule of written.yaml by an event; None where it meets the rule.

    None, too, for a value that is no number, which `log-form` and `value-type` judge.
    """
    check = read_check("written.yaml", rule.key, rule.check)
    is_of_value = check.aspect == "value"
    if is_of_value and not is_number(event.value):
        return None
    if holds(check.code, event, state):
        return None
    return Finding(
        rule=f"{rule.key}.{check.aspect}",
        severity=rule.severity,
        line=event.line,
        expected=f"{rule.key}: {check.words}",
        actual=printable(event.value if is_of_value else own_metadata(event.metadata)),
        fix=f"make {rule.key} {check.words}",
        source=rule.source,
    )


def _why_not_cleared(event: Event) -> str:
    """Return what a cache_clear event says against a cleared cache, its value or its metadata; empty for nothing."""
    is_value_negative = str(event.value).strip().lower() in _NOT_CLEARED
    if is_value_negative and event.value is not None:
        return f"the value is {printable(event.value)}"
    if event.metadata.get("status", "done") != "done":
        return printable(own_metadata(event.metadata))
    return ""
