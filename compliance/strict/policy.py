"""The rules of a whole run, once its log has ended."""

from dataclasses import dataclass

from compliance import passports
from compliance.logged_run import COUNT, Evaluation, LoggedRun, has_type, is_number, own_metadata
from compliance.official.language import State, holds
from compliance.official.rule_files import read_check
from compliance.rules import Benchmark, Finding, FindingCollector, Ruleset, WrittenRule
from compliance.strict.accuracies import (
    check_curve,
    check_samples,
    check_schedule,
    index_of_target,
    states_benchmark_data,
    states_wrong_eval_samples,
)
from compliance.strict.copies import whole_seed
from compliance.strict.pace import check_pace
from compliance.strict.project_log import ProjectLog
from compliance.strict.run_order import RunOrder
from runlog import schema
from runlog.digits import significant, six_digits
from runlog.reader import Event
from runlog.text import printable

_NOT_CLEARED = frozenset({"false", "no", "n", "off", "0", "none", "skipped", "failed"})
_SUMMARY_OF_A_WHOLE_RUN = {"mode": "train", "data": "real", "resumed": False, "profiled": False}
_RULES_FOR_BENCHMARK_DATA = (
    "eval-schedule",
    "eval-samples",
    "accuracy-curve",
    "rcp-hyperparameters",
    "rcp-convergence",
)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The rules about a run as a whole, for a run whose log was read to its end.

    `order` has followed its events, and `collector` gets the findings.
    """

    ruleset: Ruleset
    run: LoggedRun
    order: RunOrder
    collector: FindingCollector

    def check(self, benchmark_asked: str | None) -> None:
        """Collect the breaches of the rules about the run as a whole. Call it after those of its events were collected.

        `benchmark_asked` is the benchmark that the log must be of; None allows any. At the end, the breaches of rules
        that do not hold for the run's benchmark and division are dropped, also those by single events. For each such
        rule there is a note that it was not applied.
        """
        run = self.run
        name = run.stated_text(schema.SUBMISSION_BENCHMARK)
        division = run.stated_text(schema.SUBMISSION_DIVISION)
        benchmark = self.ruleset.benchmarks.get(name)  # None: it is none of this project's
        self._check_benchmark_asked(benchmark_asked)
        self._check_status(ours=benchmark is not None)
        self._check_summary()
        self._check_caches()
        self._check_seeds()
        if benchmark is not None:
            self._check_benchmark(benchmark, division)
        if run.is_project_log:
            # This must see all breaches of form before some are dropped below: our writer breaks none of these rules,
            # whatever the benchmark.
            self._check_project_log(benchmark)
        # By the empty name no rule of certain benchmarks holds, not even one of resnet in a round without it.
        self.collector.drop_inapplicable_rules("" if benchmark is None else name, division)
        if division == "closed":
            self._note_rules_for_benchmark_data()

    def _add_breach(self, rule: str, line: int | None, actual: str, expected: str | None = None) -> None:
        self.collector.add_breach(rule, line, actual, expected)

    # --- rules of every benchmark ---

    def _check_benchmark_asked(self, asked: str | None) -> None:
        """Collect that the log is of another benchmark than the user asked for; None allows any."""
        name = self.run.stated_text(schema.SUBMISSION_BENCHMARK)
        if asked and name and name != asked:
            line = self.run.first_event(schema.SUBMISSION_BENCHMARK).line
            self._add_breach("benchmark-asked", line, printable(name), f"benchmark {asked}")

    def _check_status(self, *, ours: bool) -> None:
        """Collect a run that did not end with success; others than `ours` have words of their own for success."""
        run = self.run
        status = run.status
        if run.stop is None or status == "success":
            return
        if not ours and status != "aborted":
            return
        reason = run.first_event(schema.ABORT_REASON)
        why = f": {printable(reason.value)}" if reason.line else ""
        self._add_breach("run-status", run.stop.line, f"status {printable(status)}{why}")

    def _check_summary(self) -> None:
        """Collect each field of the log's run_summary that says that this was no whole training on real data.

        Such a run only measured throughput, or was on synthetic data, resumed or profiled. Logs of other projects have
        no run_summary, so for them it is noted that the rule was not applied.
        """
        summary = self.run.summary
        line = self.run.first_event(schema.RUN_SUMMARY).line
        if summary is None:
            self.collector.add_note("run-mode", "not applied: the log has no run_summary that says so")
            return
        for field, wanted in _SUMMARY_OF_A_WHOLE_RUN.items():
            value = getattr(summary, field)
            if value != wanted:
                field_is = f"run_summary's {field} is"
                self._add_breach("run-mode", line, f"{field_is} {printable(value)}", f"{field_is} {printable(wanted)}")

    def _check_caches(self) -> None:
        """Collect each cache_clear event that says that the cache was not cleared, and caches all cleared too late.

        Each node may log such an event by a clock of its own, so it is enough that the earliest one is before
        run_start. A log without any event is another rule's.
        """
        cleared: list[Event] = []
        for event in self.run.all_events[schema.CACHE_CLEAR.key]:
            reason = _why_not_cleared(event)
            if reason:
                self._add_breach("cache-cleared", event.line, f"not cleared: {reason}")
            else:
                cleared.append(event)
        if not cleared or self.run.start_ms is None:
            return
        earliest = min(cleared, key=lambda event: event.time_ms)
        late_ms = earliest.time_ms - self.run.start_ms
        if late_ms > self.collector.strict_rules["cache-cleared"].bounds["late_ms"]:
            self._add_breach("cache-cleared", earliest.line, f"{late_ms:.0f} ms after run_start")

    def _check_seeds(self) -> None:
        """Collect a log without a seed, and seeds that seed_checker does not take."""
        seeds = self.run.all_events[schema.SEED.key]
        if not seeds:
            self._add_breach("seed-present", None, "no seed")
        for seed in seeds:
            if whole_seed(seed.value) is None:
                self._add_breach("seed-present", seed.line, f"seed {printable(seed.value)}")
            elif not {"file", "lineno"} <= seed.metadata.keys():
                self._add_breach("seed-present", seed.line, "a seed without file and lineno, which seed_checker needs")

    # --- rules of this project's benchmarks ---

    def _check_benchmark(self, benchmark: Benchmark, division: str) -> None:
        """Collect what is wrong with a run of one of this project's benchmarks.

        These are throughputs, accuracies that are no share, the pace and the target; then, as far as they hold for the
        division and the benchmark, the data set, the rules of written.yaml, and how and when it was evaluated. Where a
        ResNet run of this project is open, or on other data, its accuracies need only fit the eval_samples it states.
        """
        run = self.run
        self.order.measured.judge_short_throughputs()
        for evaluation in run.evaluations:
            if not 0 <= evaluation.value <= 1:
                actual = f"eval_accuracy is {evaluation.value!r}"
                self._add_breach("value-type", evaluation.line, actual, "eval_accuracy is a share, 0 to 1")
        check_pace(run, self.order, benchmark, self.collector)
        self._check_target(benchmark, division)

        is_closed = division == "closed"
        is_resnet = benchmark.name == "resnet"
        has_benchmark_data = states_benchmark_data(run, benchmark)
        if run.is_project_log and has_benchmark_data:
            self._check_bytes_of_data_set(benchmark)
        if is_closed and is_resnet:
            self.collector.findings += self._written_findings()
        if is_closed and not has_benchmark_data:
            has_benchmark_data = self._check_closed_data(benchmark)  # it may have just logged a wrong number
        if is_closed and is_resnet and has_benchmark_data:
            self._check_closed_evaluations(benchmark)
        elif run.is_project_log and is_resnet and has_type(run.first_event(schema.EVAL_SAMPLES).value, COUNT):
            check_samples(run, int(run.stated_count(schema.EVAL_SAMPLES)), self.collector)

    def _check_closed_evaluations(self, benchmark: Benchmark) -> None:
        """Collect what is against the evaluations of a closed ResNet run: when, on how many samples, which curve."""
        # "at least as frequently" in version 0.7 of the rules, "at the same frequency" from 1.0 on
        exact = self.ruleset.version > "0.7.0"
        check_schedule(self.run, self.order, exact=exact, collector=self.collector)
        check_samples(self.run, benchmark.eval_samples, self.collector)
        check_curve(self.run.evaluations, benchmark.targets["closed"], self.collector)

    def _check_bytes_of_data_set(self, benchmark: Benchmark) -> None:
        """Collect files that the benchmark's data set cannot have, by the sums of their bytes in the header."""
        if benchmark.distributed is None:
            return
        stated = passports.bytes_of_parts(self.run.header_section(schema.DATASET))
        for difference in passports.differences(stated, benchmark.distributed):
            self._add_breach("data-distributed", None, difference)

    def _check_closed_data(self, benchmark: Benchmark) -> bool:
        """Collect that a closed run states other numbers of samples than the benchmark's data set has.

        Return whether it used this data set all the same. It did if the accuracies show that only the number of
        evaluation samples was logged wrong, as that of batches: the finding is then a warning. Otherwise it is an
        error.
        """
        train = self.run.first_event(schema.TRAIN_SAMPLES)
        evaluation = self.run.first_event(schema.EVAL_SAMPLES)
        if benchmark.name == "resnet" and states_wrong_eval_samples(self.run, benchmark):
            by_accuracies = f"the accuracies are whole numbers of {benchmark.eval_samples}"
            actual = f"eval_samples is {evaluation.value}; {by_accuracies}"
            self.collector.add_breach("eval-samples", evaluation.line, actual, severity="warning")
            return True
        wanted = f"train_samples {benchmark.train_samples} and eval_samples {benchmark.eval_samples}"
        blamed_event = train if train.value != benchmark.train_samples else evaluation
        actual = f"{printable(train.value, 30)} and {printable(evaluation.value, 30)}"
        self._add_breach("closed-data", blamed_event.line or None, actual, wanted)  # the line of a missing event is 0
        return False

    def _note_rules_for_benchmark_data(self) -> None:
        """Note that the rules of the benchmark's data set were not applied where a closed run is on another."""
        rules_found = {finding.rule for finding in self.collector.findings}
        if not any(
            finding.rule == "closed-data" and finding.severity == "error" for finding in self.collector.findings
        ):
            return
        for rule in _RULES_FOR_BENCHMARK_DATA:
            if rule not in rules_found:
                self.collector.add_note(rule, "not applied: not the benchmark's data set")

    def _check_target(self, benchmark: Benchmark, division: str) -> None:
        """Collect a status that the accuracies contradict.

        The status must be success if an accuracy reached the target by run_stop, and must not be otherwise. The target
        is the benchmark's for the division, else that of the recipe, which the log's header states. Without any target
        it is noted that the rule was not applied. A run without evaluations or run_stop is not looked at.
        """
        run = self.run
        target = benchmark.targets.get(division, run.recipe_target)
        if target is None:
            why = f"the {printable(division, 20)} division fixes no target, nor does the log's header"
            self.collector.add_note("target-status", f"not applied: {why}")
            return
        if not run.evaluations or run.stop is None:
            return
        index = index_of_target(run.evaluations, target)
        if index is not None:
            self._check_reached(run.evaluations[index], division)
        elif run.status == "success":
            last = run.evaluations[-1]
            actual = f"status success; the last evaluation gave {six_digits(last.value)}, the target is {target}"
            self._add_breach("target-status", last.line, actual)

    def _check_reached(self, first: Evaluation, division: str) -> None:
        """Collect that a run which reached the target has another status than success, or reached it after run_stop.

        `first` is the first evaluation that reached it. A closed run may go on after that, which is only noted.
        """
        run = self.run
        assert run.stop is not None
        reached = f"epoch {first.epoch} reached {six_digits(first.value)}"
        late_ms = first.time_ms - run.stop.time_ms
        if run.status != "success":
            self._add_breach("target-status", first.line, f"status {printable(run.status)}, although {reached}")
        elif late_ms > self.collector.strict_rules["target-status"].bounds["after_stop_ms"]:
            self._add_breach(
                "target-status", first.line, f"{reached} {significant(late_ms, digits=10)} ms after run_stop"
            )
        elif division == "closed" and first is not run.evaluations[-1]:
            self.collector.add_note("target-status", f"{reached} already and the run went on, as it may")

    # --- the written rules of single values ---

    def _written_findings(self) -> list[Finding]:
        """Return a finding for each check of written.yaml that the run does not meet.

        These are demands of the written rules that mlperf-logging's checker does not make. A check looks at the first
        event of its key, and may compare it with the first values of other keys and the number of epochs trained. It is
        passed over where the log has no such event, and where it is for another optimizer than the run's.
        """
        state = State(self.run.first_values.items())  # the first value of each key, as `s` of a check
        state["epochs_trained"] = self.order.epochs_counted
        findings = []
        for rule in self.ruleset.written:
            event = self.run.first_events.get(rule.key)
            is_for_optimizer = rule.opt_name in (None, self.run.stated_text(schema.OPT_NAME))  # None: for any
            if event is None or not is_for_optimizer:
                continue
            finding = _written_finding(rule, event, state)
            if finding is not None:
                findings.append(finding)
        return findings

    # --- a log of this project ---

    def _check_project_log(self, benchmark: Benchmark | None) -> None:
        """Collect what a log of this project cannot hold: it is whole, and in the form that its writer gives it."""
        for fault in ProjectLog(run=self.run, order=self.order, benchmark=benchmark).faults():
            self._add_breach("own-log", fault.line, fault.what)
        for finding in list(self.collector.findings):
            if finding.kind == "form" and finding.severity != "info":
                self._add_breach("own-log", finding.line, f"{finding.rule}: {finding.actual}")


def _written_finding(rule: WrittenRule, event: Event, state: State) -> Finding | None:
    """Return the breach of a rule of written.yaml by an event; None where it meets the rule.

    The event's value or its metadata is looked at, as the rule's check says. None, too, for a check of a value that is
    no number: that is for the rules `log-form` and `value-type`. `state` has the values of other events.
    """
    check = read_check("written.yaml", rule.key, rule.check)
    is_about_value = check.aspect == "value"
    if is_about_value and not is_number(event.value):
        return None
    if holds(check.code, event, state):
        return None
    return Finding(
        rule=f"{rule.key}.{check.aspect}",
        severity=rule.severity,
        line=event.line,
        expected=f"{rule.key}: {check.words}",
        actual=printable(event.value if is_about_value else own_metadata(event.metadata)),
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
