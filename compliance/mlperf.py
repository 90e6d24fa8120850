"""Whether a result is an MLPerf result, and how its figures must be named: decided here for every output.

The wording follows MLCommons' MLPerf_Results_Messaging_Guidelines.adoc (mlcommons/policies at c0d89de8): "unverified"
next to each score; suite, version, division and benchmark in the footnote; "Result not verified by MLCommons
Association."; the trademark legend; and one more sentence where an unverified result stands next to a verified one.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from compliance.logged_run import LoggedRun, is_number
from compliance.official import rounds
from compliance.official.rounds import SubmissionRuns
from compliance.passports import Distributed, PartBytes, bytes_of_parts, differences
from compliance.rules import read_rules
from runlog import schema
from runlog.digits import six_digits
from runlog.json_types import JsonObject
from runlog.text import printable

UNVERIFIED = "unverified"
NOT_VERIFIED = "Result not verified by MLCommons Association."
TRADEMARK = (
    "The MLPerf name and logo are registered and unregistered trademarks of MLCommons Association in the United States "
    "and other countries. All rights reserved. Unauthorized use strictly prohibited. See www.mlcommons.org for more "
    "information."
)
NEXT_TO_VERIFIED = (
    "Unverified results have not been through an MLPerf(R) review and may use measurement methodologies and/or "
    "workload implementations that are inconsistent with the MLPerf specification for verified results."
)
NOT_COMPARABLE = "MLPerf results may not be compared against results that are no MLPerf results."
IN_THE_FORM = "in the form of MLPerf logs"
NO_RESULT = f"{IN_THE_FORM}; no MLPerf result"
NOT_STATED = "not stated"
OWN_RULESET = "4.0.0"  # by which this project's logs are read: of the last round with ResNet
DERIVED_METRIC = "is derived from the logs and is no metric of MLPerf."

_ROUNDING_SHARE = 0.01
_DIVISIONS = ("closed", "open")
_NAMES = {  # of the benchmarks of mlperf-logging, as their model is written
    **{"resnet": "ResNet", "ssd": "SSD", "maskrcnn": "Mask R-CNN", "gnmt": "GNMT", "transformer": "Transformer"},
    **{"ncf": "NCF", "minigo": "Minigo", "bert": "BERT", "dlrm": "DLRM", "rnnt": "RNN-T", "unet3d": "3D U-Net"},
    **{"dlrm_dcnv2": "DLRM-DCNv2", "gpt3": "GPT-3", "stable_diffusion": "Stable Diffusion", "gnn": "GNN"},
    **{"rgat": "R-GAT", "retinanet": "RetinaNet", "llama2_70b_lora": "Llama 2 70B LoRA", "flux1": "FLUX.1"},
    **{"llama31_405b": "Llama 3.1 405B", "llama31_8b": "Llama 3.1 8B", "gpt_oss_20b": "GPT-OSS 20B"},
    **{"deepseekv3_671b": "DeepSeek-V3 671B", "qwen35_397b_grpo": "Qwen3.5 397B GRPO", "dlrmv4": "DLRMv4"},
    **{"hrnet": "FCN-HRNetW18"},
}


@dataclass(frozen=True, kw_only=True)
class ResultFacts:
    """The facts that decide whether a result is an MLPerf result. None: the log does not say."""

    benchmark: str | None
    division: str | None
    ruleset: str | None  # of the round that the result is of, such as 4.0.0
    dataset: str | None = None  # its name, as this project's logs have one
    train_samples: int | None = None
    eval_samples: int | None = None
    bytes_of_parts: tuple[PartBytes, ...] = ()  # of the files, where a log of this project states them
    counts_samples: bool = False  # whether both numbers are known to count samples, as in this project's logs
    synthetic: bool | None = None
    quality_target: float | None = None  # at which the run was to end
    throughput_only: bool = False  # a run of MODE=throughput, which trains to no quality


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The facts that decide whether a result is an MLPerf result, and what follows for its name.

    `is_mlperf` is True, False, or None where that is not known.
    """

    facts: ResultFacts
    is_mlperf: bool | None
    contradictions: tuple[str, ...]  # why it is none
    unknown: tuple[str, ...]  # what decides it and is not known

    @property
    def name(self) -> str:
        """Return the name of the result as it must stand in a table or a footnote."""
        if self.is_mlperf is False:
            return f"{NO_RESULT} ({'; '.join(self.contradictions)})"
        if self.facts.benchmark is None or self.facts.division is None:
            return f"{IN_THE_FORM}; not known whether an MLPerf result (not stated: {', '.join(self.unknown)})"
        round_name = f" v{rounds.round_of(self.facts.ruleset)}" if self.facts.ruleset else ""
        division = self.facts.division.capitalize()
        return f"Unverified MLPerf(R){round_name} Training {division} {model_name(self.facts.benchmark)}"

    @property
    def status(self) -> str:
        """Return a word for a column: unverified, "no MLPerf result" or "not known"."""
        if self.is_mlperf is False:
            return "no MLPerf result"
        return UNVERIFIED if self.uses_the_name else "not known"

    @property
    def uses_the_name(self) -> bool:
        """Whether `name` calls it a result of MLPerf, so that notes and the trademark's legend must accompany it."""
        return self.is_mlperf is not False and None not in (self.facts.benchmark, self.facts.division)

    @property
    def dataset_in_words(self) -> str:
        """Return the data set's name and its numbers of samples, as far as the log states them."""
        samples = (self.facts.train_samples, self.facts.eval_samples)
        counts = " + ".join(NOT_STATED if count is None else str(count) for count in samples)
        if samples == (None, None):
            return self.facts.dataset or NOT_STATED
        return f"{self.facts.dataset}, {counts} samples" if self.facts.dataset else f"{counts} samples"

    @property
    def target_in_words(self) -> str:
        """Return the quality at which the run was to end: its own, else the one that the closed division fixes."""
        if self.facts.quality_target is not None:
            return six_digits(self.facts.quality_target)
        expected = _row_of_benchmark(self.facts)
        if expected is None or self.facts.division != "closed":
            return NOT_STATED
        return six_digits(expected["targets"]["closed"])

    def unit(self, unit: str) -> str:
        """Return the unit of a figure of this result, with the word that must stand next to each score."""
        return f"{unit} ({UNVERIFIED})" if self.uses_the_name else unit

    def footnotes(self, *, derived_metric: str = "", next_to_verified: bool = False) -> list[str]:
        """Return the notes that must be shown with a figure of this result: a paragraph about it, and the legend.

        The paragraph has the result's name, what the logs do not state, and that MLCommons did not verify it. The list
        is empty where the result is not called one of MLPerf. `derived_metric` names the figure's metric where it is
        not the time to train, such as images/s; the paragraph then says that MLPerf has no such metric.
        `next_to_verified` says whether the same table has results that MLCommons verified, which adds a sentence.
        """
        if not self.uses_the_name:
            return []
        sentences = [f"{self.name}."]
        if self.unknown:
            sentences.append(f"Not stated by the logs: {', '.join(self.unknown)}.")
        if derived_metric:
            sentences.append(f"{derived_metric} {DERIVED_METRIC}")
        sentences.append(NOT_VERIFIED)
        if next_to_verified:
            sentences.append(NEXT_TO_VERIFIED)
        return [" ".join(sentences), TRADEMARK]

    def as_dict(self) -> JsonObject:
        """Return for JSON whether the result is one of MLPerf, its name, and what decides it."""
        return {
            "is_mlperf": self.is_mlperf,
            "status": self.status,
            "name": self.name,
            "not_mlperf_because": list(self.contradictions),
            "not_stated": list(self.unknown),
            "dataset": self.dataset_in_words,
            "target": self.facts.quality_target,
            "target_in_words": self.target_in_words,
        }


def model_name(benchmark: str) -> str:
    """Return the name of a benchmark's model in text; an unknown benchmark keeps the name that its log gives."""
    return _NAMES.get(benchmark, printable(benchmark, 60))


def submission_runs(benchmark: str, ruleset: str) -> SubmissionRuns | None:
    """Return how many runs a result takes, and how many of the fastest and of the slowest are dropped each.

    None where the round of `ruleset` does not have the benchmark. Of an MLPerf benchmark, such as resnet, the tables of
    mlperf-logging say all this, of a benchmark of this project's own, such as hrnet, its row in benchmarks.yaml.
    """
    if is_mlperf_benchmark(benchmark):
        return rounds.submission_runs(benchmark, ruleset)
    row = _rows_of_benchmarks_yaml().get(benchmark)
    if row is None or ruleset not in row["rulesets"]:
        return None
    return SubmissionRuns(runs=row["runs"], dropped=rounds.DROPPED_RUNS_OF_OTHERS)


def submission_runs_by_round(benchmark: str) -> dict[str, SubmissionRuns]:
    """Return the runs of a result of `benchmark` by the ruleset of each round that has it, oldest first."""
    by_round = {}
    for ruleset in rounds.rulesets():
        wanted = submission_runs(benchmark, ruleset)
        if wanted is not None:
            by_round[ruleset] = wanted
    return by_round


def scored(ruleset: str) -> list[str]:
    """Return the benchmarks of which `ruleset` has results: the MLPerf benchmarks of that round, and our own."""
    rows = _rows_of_benchmarks_yaml()
    own = [name for name in rows if not is_mlperf_benchmark(name) and submission_runs(name, ruleset)]
    return [*rounds.benchmarks(ruleset), *own]


def is_mlperf_benchmark(benchmark: str) -> bool:
    """Return whether some round of MLPerf Training has the benchmark."""
    return any(benchmark in rounds.benchmarks(ruleset) for ruleset in rounds.rulesets())


def standing(facts: ResultFacts) -> Standing:
    """Decide whether the result with these facts is an MLPerf result.

    It is not (False) if one thing contradicts it: a benchmark that the round has not, another data set, a closed run to
    a lower quality target, a run that only measured throughput. Otherwise it is (True) if benchmark, division and round
    are known, and None if one of them is not. The data set is compared only where this project knows its numbers of
    samples (ResNet's). For other benchmarks it is named among what is not stated.
    """
    contradictions = [*_against_benchmark(facts), *_against_dataset(facts), *_against_target(facts)]
    if facts.throughput_only:
        contradictions.append("a throughput run trains to no quality target")
    unknown = _not_stated(facts)
    is_mlperf: bool | None = True
    if contradictions:
        is_mlperf = False
    elif any(name in unknown for name in ("benchmark", "division", "round")):
        is_mlperf = None
    return Standing(facts=facts, is_mlperf=is_mlperf, contradictions=tuple(contradictions), unknown=tuple(unknown))


def standing_of_all(standings: Sequence[Standing]) -> Standing:
    """Decide whether a figure that is made of several runs is an MLPerf result; `standings` are those of the runs.

    It is not (False) if anything contradicts one of the runs. Otherwise that is not known (None) if it is not known of
    one of them. The figure has the contradictions and what is not stated of all runs, and the facts of the first one.
    """
    assert standings, "a figure is made of one run at least"
    contradictions = _distinct(itertools.chain.from_iterable(one.contradictions for one in standings))
    unknown = _distinct(itertools.chain.from_iterable(one.unknown for one in standings))
    is_mlperf: bool | None = True
    if contradictions:
        is_mlperf = False
    elif any(one.is_mlperf is None for one in standings):
        is_mlperf = None
    return Standing(facts=standings[0].facts, is_mlperf=is_mlperf, contradictions=contradictions, unknown=unknown)


def notes_on(standings: Iterable[Standing], *, derived_metric: str = "", next_to_verified: bool = False) -> list[str]:
    """Return the notes that must stand below a table of results; none where no row is called an MLPerf result."""
    notes = [one.footnotes(derived_metric=derived_metric, next_to_verified=next_to_verified)[:1] for one in standings]
    return notes_in_order(itertools.chain.from_iterable(notes))


def notes_in_order(notes: Iterable[str]) -> list[str]:
    """Return notes on several results, each once, with the legend of the trademark last; none where there are none."""
    distinct = [note for note in _distinct(notes) if note != TRADEMARK]
    return [*distinct, TRADEMARK] if distinct else []


def facts_of_run(run: LoggedRun, ruleset: str | None) -> ResultFacts:
    """Return the facts in a log that decide whether its result is one of MLPerf; what it does not state is None.

    `ruleset` is that of the round by whose rules the log is read. The numbers of samples are those in the header's
    section `dataset`; where that has none, the values of the events train_samples and eval_samples.
    """
    dataset = run.header_section(schema.DATASET)
    summary = run.summary
    return ResultFacts(
        benchmark=run.stated_text(schema.SUBMISSION_BENCHMARK) or None,  # an empty text states nothing
        division=run.stated_text(schema.SUBMISSION_DIVISION) or None,
        ruleset=ruleset,
        dataset=dataset_name(dataset),
        train_samples=_first_sample_count(dataset.get("train_samples"), run.first_event(schema.TRAIN_SAMPLES).value),
        eval_samples=_first_sample_count(dataset.get("eval_samples"), run.first_event(schema.EVAL_SAMPLES).value),
        bytes_of_parts=bytes_of_parts(dataset),
        counts_samples=run.is_project_log,
        synthetic=dataset.get("synthetic"),
        quality_target=run.recipe_target,
        throughput_only=summary is not None and summary.mode == "throughput",
    )


def dataset_name(section: JsonObject) -> str | None:
    """Return the name in a header's `dataset` section; None where it has none."""
    name = section.get("name")
    return printable(name, 60) if isinstance(name, str) and name else None


def _against_benchmark(facts: ResultFacts) -> Iterable[str]:
    """Yield that MLPerf, or the round, has no such benchmark, and that the division is neither closed nor open."""
    if facts.benchmark is None:
        return
    if not is_mlperf_benchmark(facts.benchmark):
        yield f"{model_name(facts.benchmark)} is no MLPerf benchmark"
    elif facts.ruleset is not None and facts.benchmark not in rounds.benchmarks(facts.ruleset):
        yield f"round v{rounds.round_of(facts.ruleset)} has no benchmark {printable(facts.benchmark, 60)}"
    if facts.division is not None and facts.division not in _DIVISIONS:
        yield f"division {printable(facts.division, 60)} is neither closed nor open"


def _against_dataset(facts: ResultFacts) -> Iterable[str]:
    """Yield how the data set differs from the benchmark's: it is synthetic, or has other numbers of samples or bytes.

    Synthetic data is a difference for any benchmark, and then the only one. The numbers are compared only for MLPerf
    benchmarks of whose data set this project knows them. The evaluation samples are compared only in this project's
    logs, as others count something else by them, and bytes only where both numbers of samples are right.
    """
    if facts.synthetic is True:
        yield "synthetic data"
        return
    expected = _row_of_benchmark(facts)
    if expected is None or not is_mlperf_benchmark(facts.benchmark or ""):
        return
    named = f"data set {facts.dataset}: " if facts.dataset else ""
    train = expected["train_samples"]
    evaluation = expected["eval_samples"]
    if facts.train_samples is not None and not _can_be_count(facts.train_samples, train, exact=facts.counts_samples):
        yield f"{named}{facts.train_samples} training samples, the benchmark's data set has {train}"
    if facts.counts_samples and facts.eval_samples not in (None, evaluation):
        yield f"{named}{facts.eval_samples} evaluation samples, the benchmark's data set has {evaluation}"
    if (facts.train_samples, facts.eval_samples) == (train, evaluation) and "distributed" in expected:
        for difference in differences(facts.bytes_of_parts, Distributed(**expected["distributed"])):
            yield f"{named}{difference}"


def _can_be_count(count: int, wanted: int, *, exact: bool) -> bool:
    """Return whether a log's number of samples can be that of the data set: within 1 %, or equal if `exact` is true.

    Logs of others round to whole batches: of 1,015 published ResNet logs the least is 1,277,952 of 1,281,167. (Their
    number of evaluation samples is no evidence: it counts images, padded images or batches, 390 to 65,536.)
    """
    return count == wanted if exact else abs(count - wanted) <= _ROUNDING_SHARE * wanted


def _against_target(facts: ResultFacts) -> Iterable[str]:
    """Yield a quality target of a closed run that is lower than the benchmark's.

    An open run may stop where it likes (training_rules.adoc from version 1.0 on, section Quality measure).
    """
    expected = _row_of_benchmark(facts)
    if expected is None or facts.quality_target is None or facts.division != "closed":
        return
    wanted = expected["targets"].get("closed")
    if wanted is not None and facts.quality_target < wanted:
        yield f"quality target {six_digits(facts.quality_target)}, the benchmark's is {six_digits(wanted)}"


def _not_stated(facts: ResultFacts) -> list[str]:
    """Return what decides whether a result is one of MLPerf and the facts do not say, such as "round"."""
    unknown = []
    if facts.benchmark is None:
        unknown.append("benchmark")
    if facts.division is None:
        unknown.append("division")
    if facts.ruleset is None:
        unknown.append("round")
    if not _shows_dataset(facts):
        unknown.append("data set")
    return unknown


def _shows_dataset(facts: ResultFacts) -> bool:
    """Return whether the numbers of samples show that the data set is the benchmark's."""
    expected = _row_of_benchmark(facts)
    if expected is None or facts.train_samples is None or facts.eval_samples is None:
        return False
    pairs = ((facts.train_samples, expected["train_samples"]), (facts.eval_samples, expected["eval_samples"]))
    return all(_can_be_count(count, wanted, exact=facts.counts_samples) for count, wanted in pairs)


def _row_of_benchmark(facts: ResultFacts) -> JsonObject | None:
    """Return the benchmark's row in benchmarks.yaml, with its samples and targets; None where it has none."""
    return _rows_of_benchmarks_yaml().get(facts.benchmark or "")


@functools.cache
def _rows_of_benchmarks_yaml() -> dict[str, JsonObject]:
    """Return the rows of compliance/rules/benchmarks.yaml: what this project knows of some benchmarks, by name."""
    return dict(read_rules("benchmarks.yaml"))


def _first_sample_count(*stated: Any) -> int | None:
    """Return the first of the stated values that is a number of samples; None where none is."""
    for value in stated:
        if is_number(value) and value > 0 and value == int(value):
            return int(value)
    return None


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
