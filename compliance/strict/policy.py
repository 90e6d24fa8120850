"""The rules of a whole run, once its log has ended."""

from dataclasses import dataclass

from compliance import passports
from compliance.logged_run import COUNT, LoggedRun, has_type, is_number, own_metadata
from compliance.official.language import State, holds
from compliance.official.rule_files import read_check
from compliance.rules import Benchmark, Collected, Finding, Ruleset
from compliance.strict.accuracies import check_curve, check_samples, check_schedule, counts_batches, is_own_data
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
        """Collect what is against the run. Rules that do not hold for its benchmark and division are notes."""
        run = self.run
        name = run.text(schema.SUBMISSION_BENCHMARK)
        division = run.text(schema.SUBMISSION_DIVISION)
        benchmark = self.ruleset.benchmarks.get(name)
        if benchmark_asked and name and name != benchmark_asked:
            line = run.of(schema.SUBMISSION_BENCHMARK).line
            self._breach("benchmark-asked", line, printable(name), f"benchmark {benchmark_asked}")
        self._check_status(ours=benchmark is not None)
        self._check_summary()
        self._check_caches()
        self._check_seeds()
        if benchmark is not None:
            self._check_benchmark(benchmark, division)
        if run.is_project_log:  # before rules of other benchmarks are dropped: its writer is the same for each
            self._check_own_log(benchmark)
        self.collected.keep_applicable(name if benchmark is not None else "", division)
        if division == "closed":
            self._note_data()

    def _breach(self, rule: str, line: int | None, actual: str, expected: str | None = None) -> None:
        self.collected.breach(rule, line, actual, expected)

    # --- rules of every benchmark ---

    def _check_status(self, *, ours: bool) -> None:
        run = self.run
        status = run.status
        if run.stop is None or status == "success":
            return
        if not ours and status != "aborted":  # others have words of their own for success
            return
        reason = run.of(schema.ABORT_REASON)
        why = f": {printable(reason.value)}" if reason.line else ""
        self._breach("run-status", run.stop.line, f"status {printable(status)}{why}")

    def _check_summary(self) -> None:
        """Check what run_summary says of the run; others' logs have none."""
        summary = self.run.summary
        line = self.run.of(schema.RUN_SUMMARY).line
        if summary is None:
            self.collected.note("run-mode", "not applied: the log has no run_summary that says so")
            return
        for name, wanted in _OF_A_WHOLE_RUN.items():
            value = getattr(summary, name)
            if value != wanted:
                said = f"run_summary's {name} is"
                self._breach("run-mode", line, f"{said} {printable(value)}", f"{said} {printable(wanted)}")

    def _check_caches(self) -> None:
        """Find caches that were kept, or cleared after the start alone; nodes have clocks of their own."""
        cleared: list[Event] = []
        for event in self.run.kept[schema.CACHE_CLEAR.key]:
            said = str(event.value).strip().lower()
            if said in _NOT_CLEARED and event.value is not None:
                self._breach("cache-cleared", event.line, f"not cleared: the value is {printable(event.value)}")
            elif event.metadata.get("status", "done") != "done":
                actual = f"not cleared: {printable(own_metadata(event.metadata))}"
                self._breach("cache-cleared", event.line, actual)
            else:
                cleared.append(event)
        if not cleared or self.run.start_ms is None:
            return
        first = min(cleared, key=lambda event: event.time_ms)
        late_ms = first.time_ms - self.run.start_ms
        if late_ms > self.collected.strict["cache-cleared"].bounds["late_ms"]:
            self._breach("cache-cleared", first.line, f"{late_ms:.0f} ms after run_start")

    def _check_seeds(self) -> None:
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
        self.order.measured.finish()
        for evaluation in self.run.evaluations:
            if not 0 <= evaluation.value <= 1:
                actual = f"eval_accuracy is {evaluation.value!r}"
                self._breach("value-type", evaluation.line, actual, "eval_accuracy is a share, 0 to 1")
        check_pace(self.run, self.order, benchmark, self.collected)
        self._check_target(benchmark, division)
        closed = division == "closed"
        resnet = benchmark.name == "resnet"
        on_own_data = is_own_data(self.run, benchmark)
        if self.run.is_project_log and on_own_data:
            self._check_distributed(benchmark)
        if closed and resnet:
            self.collected.found += self._written_findings()
        if closed and not on_own_data:
            on_own_data = self._check_closed_data(benchmark)
        if closed and on_own_data and resnet:
            # "at least as frequently" in version 0.7 of the rules, "at the same frequency" from 1.0 on
            exact = self.ruleset.version > "0.7.0"
            check_schedule(self.run, self.order, exact=exact, collected=self.collected)
            check_samples(self.run, benchmark.eval_samples, self.collected)
            check_curve(self.run.evaluations, benchmark.targets["closed"], self.collected)
        elif self.run.is_project_log and resnet and has_type(self.run.of(schema.EVAL_SAMPLES).value, COUNT):
            check_samples(self.run, int(self.run.count(schema.EVAL_SAMPLES)), self.collected)

    def _check_distributed(self, benchmark: Benchmark) -> None:
        """Find files that the benchmark's data set cannot have, by the sums of their bytes in the header."""
        if benchmark.distributed is None:
            return
        stated = passports.bytes_of_parts(self.run.section(schema.DATASET))
        for difference in passports.differences(stated, benchmark.distributed):
            self._breach("data-distributed", None, difference)

    def _check_closed_data(self, benchmark: Benchmark) -> bool:
        """Refuse a closed run on other data. Returns whether it is on the benchmark's all the same."""
        train = self.run.of(schema.TRAIN_SAMPLES)
        evaluation = self.run.of(schema.EVAL_SAMPLES)
        if benchmark.name == "resnet" and counts_batches(self.run, benchmark):
            of = f"the accuracies are whole numbers of {benchmark.eval_samples}"
            actual = f"eval_samples is {evaluation.value}; {of}"
            self.collected.breach("eval-samples", evaluation.line, actual, severity="warning")
            return True
        wanted = f"train_samples {benchmark.train_samples} and eval_samples {benchmark.eval_samples}"
        blamed = train if train.value != benchmark.train_samples else evaluation
        actual = f"{printable(train.value, 30)} and {printable(evaluation.value, 30)}"
        self._breach("closed-data", blamed.line or None, actual, wanted)
        return False

    def _note_data(self) -> None:
        """Note the rules of the benchmark's data set where a closed run is on another."""
        collected = {finding.rule: finding for finding in self.collected.found}
        if "closed-data" in collected and collected["closed-data"].severity == "error":
            for rule in _OF_OWN_DATA:
                if rule not in collected:
                    self.collected.note(rule, "not applied: not the benchmark's data set")

    def _check_target(self, benchmark: Benchmark, division: str) -> None:
        run = self.run
        target = benchmark.targets.get(division, run.recipe_target)
        if target is None:
            why = f"the {printable(division, 20)} division fixes no target, nor does the log's header"
            self.collected.note("target-status", f"not applied: {why}")
            return
        if not run.evaluations or run.stop is None:
            return
        last = run.evaluations[-1]
        first = next((one for one in run.evaluations if one.value >= target), None)
        if first is None:
            if run.status == "success":
                actual = f"status success; the last evaluation gave {last.value:.6g}, the target is {target}"
                self._breach("target-status", last.line, actual)
            return

        reached = f"epoch {first.epoch} reached {first.value:.6g}"
        late_ms = first.time_ms - run.stop.time_ms
        if run.status != "success":
            self._breach("target-status", first.line, f"status {printable(run.status)}, although {reached}")
        elif late_ms > self.collected.strict["target-status"].bounds["after_stop_ms"]:
            self._breach("target-status", first.line, f"{reached} {late_ms:.10g} ms after run_stop")
        elif division == "closed" and first is not last:
            self.collected.note("target-status", f"{reached} already and the run went on, as it may")

    # --- the written rules of single values ---

    def _written_findings(self) -> list[Finding]:
        """The written rules that the first event of their key breaks; what is no number is judged by log-form."""
        first_values = State(self.run.values.items())
        first_values["epochs_trained"] = self.order.epochs_counted
        findings = []
        for rule in self.ruleset.written:
            event = self.run.first.get(rule.key)
            if event is None or rule.opt_name not in (None, self.run.text(schema.OPT_NAME)):
                continue
            check = read_check("written.yaml", rule.key, rule.check)
            of_value = check.aspect == "value"
            if (of_value and not is_number(event.value)) or holds(check.code, event, first_values):
                continue
            finding = Finding(
                rule=f"{rule.key}.{check.aspect}",
                severity=rule.severity,
                line=event.line,
                expected=f"{rule.key}: {check.words}",
                actual=printable(event.value if of_value else own_metadata(event.metadata)),
                fix=f"make {rule.key} {check.words}",
                source=rule.source,
            )
            findings.append(finding)
        return findings

    # --- a log of this project ---

    def _check_own_log(self, benchmark: Benchmark | None) -> None:
        """A log of this project is whole, and in the form in which its writer writes it."""
        for fault in ProjectLog(run=self.run, order=self.order, benchmark=benchmark).faults():
            self._breach("own-log", fault.line, fault.what)
        for finding in list(self.collected.found):
            if finding.kind == "form" and finding.severity != "info":
                self._breach("own-log", finding.line, f"{finding.rule}: {finding.actual}")
