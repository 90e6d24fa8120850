"""Whether a result is an MLPerf result, and how its figures must be named: decided here for every output.

The wording follows MLCommons' MLPerf_Results_Messaging_Guidelines.adoc (mlcommons/policies at c0d89de8): "unverified"
next to each score; suite, version, division and benchmark in the footnote; "Result not verified by MLCommons
Association."; the trademark legend; and one more sentence where an unverified result stands next to a verified one.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from compliance.logged_run import LoggedRun, is_number
from compliance.official import rounds
from compliance.official.rounds import SubmissionRuns
from compliance.passports import PartBytes, PublishedSizes, bytes_of_parts, differences
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
NOT_COMPARABLE = "MLPerf results may not be compared against results that are not MLPerf results."
IN_THE_FORM = "in the form of MLPerf logs"
NO_RESULT = f"{IN_THE_FORM}; no MLPerf result"
NOT_STATED = "not stated"
OWN_RULESET = "4.0.0"  # by which this project's logs are read: of the last round with ResNet
DERIVED_METRIC = "is derived from the logs and is not a metric of MLPerf."

_MAX_ROUNDING_SHARE = 0.01  # by which others' numbers of samples may differ, as they are rounded to whole batches
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


class ResultFacts(NamedTuple):
    """The facts that decide whether a result is an MLPerf result. None: the log does not state it."""

    benchmark: str | None
    division: str | None
    ruleset: str | None  # of the round that the result is of, such as 4.0.0
    dataset: str | None = None  # its name, as this project's logs have one
    train_samples: int | None = None
    eval_samples: int | None = None
    bytes_of_parts: tuple[PartBytes, ...] = ()  # of the files, if a log of this project states them
    has_exact_counts: bool = False  # whether both numbers count samples exactly, as in this project's logs
    synthetic: bool | None = None
    quality_target: float | None = None  # at which the run was to end
    throughput_only: bool = False  # a run of MODE=throughput, which trains to no quality


class Standing(NamedTuple):
    """The facts that decide whether a result is an MLPerf result, and what follows for its name."""

    facts: ResultFacts
    is_mlperf: bool | None  # None: it is not known
    contradictions: tuple[str, ...]  # why it is not an MLPerf result
    unknown: tuple[str, ...]  # what decides it and is not known

    @property
    def name(self) -> str:
        """Return the name of the result as it must stand in a table or a footnote.

        Returns:
            The name, such as "Unverified MLPerf(R) v4.0 Training Closed ResNet". If the result is not an MLPerf result
            or of MLPerf HPC, or if the log states no benchmark or division, the text says this instead, with the
            reasons.
        """
        if self.is_mlperf is False:
            return f"{NO_RESULT} ({'; '.join(self.contradictions)})"
        if _is_of_hpc(self.facts):
            return f"{IN_THE_FORM}; {printable(self.facts.benchmark, 60)} is of MLPerf HPC, whose rules are not read"
        if self.facts.benchmark is None or self.facts.division is None:
            return f"{IN_THE_FORM}; not known whether an MLPerf result (not stated: {', '.join(self.unknown)})"
        round_name = f" v{rounds.round_of(self.facts.ruleset)}" if self.facts.ruleset else ""
        division = self.facts.division.capitalize()
        return f"Unverified MLPerf(R){round_name} Training {division} {model_name(self.facts.benchmark)}"

    @property
    def status(self) -> str:
        """Return the text for a column: "no MLPerf result", "unverified" or "not known"."""
        if self.is_mlperf is False:
            return "no MLPerf result"
        return UNVERIFIED if self.uses_the_name else "not known"

    @property
    def uses_the_name(self) -> bool:
        """Whether `name` calls it a result of MLPerf, so that notes and the trademark's legend must accompany it."""
        if self.is_mlperf is False or _is_of_hpc(self.facts):
            return False
        return None not in (self.facts.benchmark, self.facts.division)

    @property
    def dataset_in_words(self) -> str:
        """Return the data set's name and its numbers of training and evaluation samples, for instance:

        name and both numbers -> ImageNet, 1281167 + 50000 samples
        one number            -> 1281167 + not stated samples
        name                  -> ImageNet
        nothing               -> not stated
        synthetic data        -> synthetic, 1281167 samples an epoch
        """
        train = self.facts.train_samples
        if self.facts.synthetic is True:  # the data set that the log names was not read
            return f"synthetic, {_count_in_words(train)} samples an epoch"
        name = self.facts.dataset
        evaluation = self.facts.eval_samples
        if train is None and evaluation is None:
            return name or NOT_STATED
        samples = f"{_count_in_words(train)} + {_count_in_words(evaluation)} samples"
        return f"{name}, {samples}" if name else samples

    @property
    def target_in_words(self) -> str:
        """Return the quality at which the run was to end; "not stated" if it is not known.

        This is the target that the log states. For a closed run that states none, it is the one in benchmarks.yaml.
        """
        if self.facts.quality_target is not None:
            return six_digits(self.facts.quality_target)
        expected = _row_of_benchmark(self.facts)
        if expected is None or self.facts.division != "closed":
            return NOT_STATED
        return six_digits(expected["targets"]["closed"])

    def unit(self, unit: str) -> str:
        """Return the unit of a figure of this result, with the word that must stand next to each score.

        Args:
            unit: The unit, such as "min", to which "(unverified)" is added if the result uses the name of MLPerf.
        """
        return f"{unit} ({UNVERIFIED})" if self.uses_the_name else unit

    def footnotes(self, *, derived_metric: str = "", next_to_verified: bool = False) -> list[str]:
        """Return the notes that must be shown with a figure of this result: a paragraph, and the trademark's legend.

        Args:
            derived_metric: The name of a metric that MLPerf does not have, such as "images/s", if the figure is one;
                else "".
            next_to_verified: Whether the figure stands in a table that shows verified results, too.

        Returns:
            The two notes; none if the result does not use the name of MLPerf.
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
        """Return for JSON whether the result is an MLPerf result, its name, and the facts that decide it."""
        return {
            "is_mlperf": self.is_mlperf,
            "status": self.status,
            "name": self.name,
            "not_mlperf_because": list(self.contradictions),  # empty unless `is_mlperf` is False
            "not_stated": list(self.unknown),  # the facts that decide it and are not known
            "dataset": self.dataset_in_words,
            "target": self.facts.quality_target,  # None: not stated; `target_in_words` may have the benchmark's
            "target_in_words": self.target_in_words,
        }


def _count_in_words(count: int | None) -> str:
    return NOT_STATED if count is None else str(count)


def model_name(benchmark: str) -> str:
    """Return the name of a benchmark's model in text, such as "ResNet".

    Args:
        benchmark: The benchmark, such as "resnet". An unknown one keeps the name that its log gives.
    """
    return _NAMES.get(benchmark, printable(benchmark, 60))


def submission_runs(benchmark: str, ruleset: str) -> SubmissionRuns | None:
    """Return how many runs a result takes, and how many are dropped at each end.

    Args:
        benchmark: The benchmark, one of MLPerf or of this project, such as "hrnet".
        ruleset: The version of the rules of the round, such as 4.0.0.

    Returns:
        The numbers; None if the round does not have the benchmark.
    """
    if is_mlperf_benchmark(benchmark):
        return rounds.submission_runs(benchmark, ruleset)  # from mlperf-logging's tables
    row = _rows_of_benchmarks_yaml().get(benchmark)
    if row is None or ruleset not in row["rulesets"]:
        return None
    return SubmissionRuns(runs=row["runs"], dropped=rounds.DROPPED_RUNS_OF_OTHERS)


def submission_runs_by_round(benchmark: str) -> dict[str, SubmissionRuns]:
    """Return how many runs a result of a benchmark takes, by the ruleset of each round that has it.

    Args:
        benchmark: The benchmark, such as "resnet".

    Returns:
        The numbers by the ruleset, such as 4.0.0, oldest first.
    """
    runs_by_ruleset = {}
    for ruleset in rounds.rulesets():
        runs = submission_runs(benchmark, ruleset)
        if runs is not None:
            runs_by_ruleset[ruleset] = runs
    return runs_by_ruleset


def scored(ruleset: str) -> list[str]:
    """Return the benchmarks of a round: the benchmarks of MLPerf, then this project's own.

    Args:
        ruleset: The version of the rules of the round, such as 4.0.0.
    """
    rows = _rows_of_benchmarks_yaml()
    own = [name for name in rows if not is_mlperf_benchmark(name) and submission_runs(name, ruleset)]
    return [*rounds.benchmarks(ruleset), *own]


def is_mlperf_benchmark(benchmark: str) -> bool:
    """Return whether some round of MLPerf Training has the benchmark.

    Args:
        benchmark: The benchmark, such as "resnet".
    """
    return any(benchmark in rounds.benchmarks(ruleset) for ruleset in rounds.rulesets())


def standing(facts: ResultFacts) -> Standing:
    """Decide whether a result is an MLPerf result: True, False, or None if it is not known.

    It is False if any fact contradicts it, such as another data set, whether or not the other facts are stated. If none
    does, it is None if the benchmark, the division or the round is not stated.

    Args:
        facts: The facts that a log states of the result.

    Returns:
        The decision with its reasons, from which the name of the result follows.
    """
    contradictions = [*_against_benchmark(facts), *_against_dataset(facts), *_against_target(facts)]
    if facts.throughput_only:
        contradictions.append("a throughput run trains to no quality target")
    unknown = _not_stated(facts)
    is_mlperf: bool | None
    if contradictions:
        is_mlperf = False
    elif _is_of_hpc(facts) or any(fact in unknown for fact in ("benchmark", "division", "round")):
        is_mlperf = None  # an unknown data set is only noted
    else:
        is_mlperf = True
    return Standing(facts=facts, is_mlperf=is_mlperf, contradictions=tuple(contradictions), unknown=tuple(unknown))


def standing_of_all(standings: Sequence[Standing]) -> Standing:
    """Decide whether a figure of several runs is an MLPerf result, from the decisions on the single runs.

    Args:
        standings: The decision on each run, at least one.

    Returns:
        The decision, with the contradictions and unknown facts of all runs, and the facts of the first run. The
        division is None if the runs state different ones.
    """
    assert standings, "a figure is made of one run at least"
    contradictions = _distinct(itertools.chain.from_iterable(run.contradictions for run in standings))
    unknown = _distinct(itertools.chain.from_iterable(run.unknown for run in standings))
    facts = standings[0].facts
    divisions = sorted({run.facts.division for run in standings if run.facts.division is not None})
    are_divisions_mixed = len(divisions) > 1
    if are_divisions_mixed:
        facts = facts._replace(division=None)
        unknown = (*unknown, f"which division ({', '.join(divisions)})")
    is_mlperf: bool | None
    if any(run.is_mlperf is False for run in standings):  # the contradictions say why
        is_mlperf = False
    elif are_divisions_mixed or any(run.is_mlperf is None for run in standings):
        is_mlperf = None  # not known
    else:
        is_mlperf = True
    return Standing(facts=facts, is_mlperf=is_mlperf, contradictions=contradictions, unknown=unknown)


def notes_on(standings: Iterable[Standing], *, derived_metric: str = "", next_to_verified: bool = False) -> list[str]:
    """Return the notes that must stand below a table of results: each different paragraph once, then one legend.

    A paragraph says what a result is called, and that MLCommons has not verified it. The legend says whose trademark
    the name MLPerf is.

    Args:
        standings: For each result, whether it is an MLPerf result and what it is called.
        derived_metric: The name of a metric of the table that MLPerf does not have, such as "images/s"; "" if there is
            none.
        next_to_verified: Whether the table shows verified results, too, which adds a sentence to each paragraph.

    Returns:
        The notes; none if no result uses the name of MLPerf.
    """
    paragraphs = []
    for one in standings:
        # A paragraph and the legend; empty if the result does not use the name of MLPerf.
        footnotes = one.footnotes(derived_metric=derived_metric, next_to_verified=next_to_verified)
        paragraphs += footnotes[:1]
    return notes_in_order(paragraphs)  # each different paragraph once, then the legend


def notes_in_order(notes: Iterable[str]) -> list[str]:
    """Return notes on several results, each once, with the trademark's legend last; empty if there are no notes.

    Args:
        notes: The notes of all results, with or without the legend.
    """
    distinct = [note for note in _distinct(notes) if note != TRADEMARK]
    return [*distinct, TRADEMARK] if distinct else []


def facts_of_run(run: LoggedRun, ruleset: str | None) -> ResultFacts:
    """Return the facts of a log that decide whether its result is an MLPerf result; None for what it does not state.

    The numbers of samples in the log's header count first, then the numbers in its events.

    Args:
        run: The facts that the log states of the run.
        ruleset: The version of the rules of the round by which the log is judged, such as 4.0.0; None if it is not
            known.
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
        has_exact_counts=run.is_project_log,
        synthetic=dataset.get("synthetic"),
        quality_target=run.recipe_target,
        throughput_only=summary is not None and summary.mode == "throughput",
    )


def dataset_name(section: JsonObject) -> str | None:
    """Return the name of the data set of a log; None if it is missing or empty.

    Args:
        section: The section `dataset` of the log's header.
    """
    name = section.get("name")
    return printable(name, 60) if isinstance(name, str) and name else None


def _against_benchmark(facts: ResultFacts) -> Iterable[str]:
    """Yield why the benchmark or the division is not one of MLPerf; nothing if no benchmark is stated.

    Args:
        facts: The facts that a log states of the result.
    """
    if facts.benchmark is None:
        return
    is_of_training = is_mlperf_benchmark(facts.benchmark)
    if not is_of_training and not _is_of_hpc(facts):
        yield f"{model_name(facts.benchmark)} is not an MLPerf benchmark"
    if is_of_training and facts.ruleset is not None and facts.benchmark not in rounds.benchmarks(facts.ruleset):
        yield f"round v{rounds.round_of(facts.ruleset)} has no benchmark {printable(facts.benchmark, 60)}"
    if facts.division is not None and facts.division not in _DIVISIONS:
        yield f"division {printable(facts.division, 60)} is neither closed nor open"


def _is_of_hpc(facts: ResultFacts) -> bool:
    """Return whether the benchmark is one of MLPerf HPC, such as deepcam. Only rules of MLPerf Training are read."""
    return facts.benchmark is not None and rounds.is_of_hpc(facts.benchmark)


def _against_dataset(facts: ResultFacts) -> Iterable[str]:
    """Yield how the data set differs from the benchmark's data set.

    If the data is synthetic, only this is yielded. Otherwise the numbers of samples and the bytes are compared, if the
    benchmark is one of MLPerf and has a row in benchmarks.yaml.

    Args:
        facts: The facts that a log states of the result.
    """
    if facts.synthetic is True:
        yield "synthetic data"
        return
    row = _row_of_benchmark(facts)
    if row is None or facts.benchmark is None or not is_mlperf_benchmark(facts.benchmark):
        return
    prefix = f"data set {facts.dataset}: " if facts.dataset else ""
    for difference in itertools.chain(_against_sample_counts(facts, row), _against_published_bytes(facts, row)):
        yield f"{prefix}{difference}"


def _against_sample_counts(facts: ResultFacts, row: JsonObject) -> Iterable[str]:
    """Yield how the stated numbers of samples differ from the numbers of the benchmark's data set.

    In logs of other projects, the training samples may be rounded to whole batches. Their evaluation samples are not
    compared, because some count batches or padding instead (390 to 65,536 in published ResNet logs).

    Args:
        facts: The facts that a log states of the result. A number that it does not state does not differ.
        row: The benchmark's row of benchmarks.yaml, with the right numbers.
    """
    train = facts.train_samples
    right_train = row["train_samples"]
    if train is not None and not _can_be_count(train, right_train, exact=facts.has_exact_counts):
        yield f"{train} training samples, the benchmark's data set has {right_train}"
    evaluation = facts.eval_samples
    right_evaluation = row["eval_samples"]
    if facts.has_exact_counts and evaluation is not None and evaluation != right_evaluation:
        yield f"{evaluation} evaluation samples, the benchmark's data set has {right_evaluation}"


def _against_published_bytes(facts: ResultFacts, row: JsonObject) -> Iterable[str]:
    """Yield how the bytes of a run's data files differ from those of the published data set.

    Args:
        facts: The facts that a log states of the result.
        row: The benchmark's row of benchmarks.yaml.
    """
    has_right_counts = facts.train_samples == row["train_samples"] and facts.eval_samples == row["eval_samples"]
    if not has_right_counts:  # other samples have other bytes
        return
    published_sizes = row.get("published_sizes")
    if published_sizes is not None:
        yield from differences(facts.bytes_of_parts, PublishedSizes(**published_sizes))


def _can_be_count(count: int, wanted: int, *, exact: bool) -> bool:
    """Return whether a log's number of samples can be the number of the data set.

    Other projects round to whole batches, so 1 % of difference is allowed there. (Of 1,015 published ResNet logs the
    least training samples are 1,277,952 of 1,281,167.)

    Args:
        count: The number that the log states.
        wanted: The number of the data set.
        exact: Whether both must be equal, as in a log of this project.
    """
    if exact:
        return count == wanted
    return abs(count - wanted) <= _MAX_ROUNDING_SHARE * wanted


def _against_target(facts: ResultFacts) -> Iterable[str]:
    """Yield that the quality target of a closed run is lower than the benchmark's.

    An open run may stop at any quality (training_rules.adoc from version 1.0 on, section Quality measure).

    Args:
        facts: The facts that a log states of the result. Nothing is compared if it states no target.
    """
    expected = _row_of_benchmark(facts)
    if expected is None or facts.quality_target is None or facts.division != "closed":
        return
    wanted = expected["targets"].get("closed")
    if wanted is not None and facts.quality_target < wanted:
        yield f"quality target {six_digits(facts.quality_target)}, the benchmark's is {six_digits(wanted)}"


def _not_stated(facts: ResultFacts) -> list[str]:
    """Return the names of the facts that are not known: "benchmark", "division", "round" or "data set".

    Args:
        facts: The facts that a log states of the result. The data set is known if the numbers of samples show that it
            is the benchmark's.
    """
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
    """Return whether both numbers of samples can be the numbers of the benchmark's data set.

    Also False if the log does not state both, or if this project does not know the benchmark's numbers.

    Args:
        facts: The facts that a log states of the result.
    """
    expected = _row_of_benchmark(facts)
    if expected is None or facts.train_samples is None or facts.eval_samples is None:
        return False
    pairs = ((facts.train_samples, expected["train_samples"]), (facts.eval_samples, expected["eval_samples"]))
    return all(_can_be_count(count, wanted, exact=facts.has_exact_counts) for count, wanted in pairs)


def _row_of_benchmark(facts: ResultFacts) -> JsonObject | None:
    """Return the benchmark's row in benchmarks.yaml, with its samples and targets; None if it has no row.

    Args:
        facts: The facts that a log states of the result, with its benchmark.
    """
    return _rows_of_benchmarks_yaml().get(facts.benchmark or "")


@functools.cache
def _rows_of_benchmarks_yaml() -> dict[str, JsonObject]:
    """Return the rows of compliance/rules/benchmarks.yaml: what this project knows of some benchmarks, by name."""
    return dict(read_rules("benchmarks.yaml"))


def _first_sample_count(*stated: Any) -> int | None:
    """Return the first of the stated values that is a whole number above 0; None if none is.

    Args:
        *stated: The values that a log has for one number of samples, of any type.
    """
    for value in stated:
        if is_number(value) and value > 0 and value == int(value):
            return int(value)
    return None


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
