"""The rows of an audit, and their forms: text, CSV, JSON and HTML."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from compliance import mlperf
from compliance.mlperf import Standing
from compliance.submission.templates import rendered
from runlog.digits import counted, six_digits
from runlog.json_types import JsonObject
from runlog.text import csv_text


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question to ask about a submission: a rule that its logs break, and the first line that does."""

    rule: str
    kind: str  # class of the rule
    official: bool
    severity: str
    logs: int
    file: str
    line: int | None
    actual: str


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """The second reading of the reference points (mlcommons/logging #368): a question to the working group."""

    passed: bool
    scaling: float
    held_to: float  # the reference's mean by the lower convex envelope
    held_to_by_tool: float  # and by rcp_checker's pruning
    unit: str
    differs: bool


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One system's runs of one benchmark. Minutes are None if there is no score; `problem` then says why."""

    round: str
    submitter: str
    system: str
    benchmark: str
    division: str
    ruleset: str
    logs: int
    not_judged: int  # logs of a benchmark that the ruleset has no rules for, or of a form that is not read
    global_batch: int | None = None
    official_passes: int
    strict_passes: int
    official_minutes: float | None
    strict_minutes: float | None
    rcp: str  # pass, fail, not applied or not known
    scaling: float | None  # by the test; None: not known
    scaling_file: float | None = None  # of scaling.json, which the official minutes are multiplied by
    convergence: str = ""
    standing: Standing | None  # None: no log can be read
    envelope: Envelope | None = None  # only with the option --envelope
    problem: str
    questions: tuple[Question, ...]

    @property
    def scaling_in_words(self) -> str:
        """Return the factor of the convergence test, as `, x 1.012000`; empty if it was not applied or is not known."""
        return "" if self.scaling is None or self.rcp == "not applied" else f", x {self.scaling:.6f}"

    @property
    def result(self) -> str:
        """Return the kind of the result in a word or two, such as `unverified`."""
        return "not known" if self.standing is None else self.standing.status

    @property
    def name(self) -> str:
        """Return the name of the result as it must be written; empty if no log can be read."""
        return "" if self.standing is None else self.standing.name

    @property
    def dataset(self) -> str:
        """Return the data set, as far as the logs state it."""
        return "" if self.standing is None else self.standing.dataset_in_words

    @property
    def target(self) -> str:
        """Return the quality target, as far as it is known."""
        return "" if self.standing is None else self.standing.target_in_words

    @property
    def envelope_in_words(self) -> str:
        """Return what the two convergence tests hold the submission to; empty if the second was not made."""
        second = self.envelope
        if second is None:
            return ""
        if not second.differs:
            return "lower convex envelope: the same reference point"
        tool = "not known" if self.scaling is None else f"{self.scaling:.6f}"
        envelope = f"lower convex envelope: held to {second.held_to:.6g} {second.unit}, x {second.scaling:.6f}"
        pruning = f"by rcp_checker to {six_digits(second.held_to_by_tool)}, x {tool}"
        return f"{envelope}; {pruning} (a question to the working group, mlcommons/logging #368)"

    def minutes_in_words(self, minutes: float | None) -> str:
        """Return a score with its unit and the word that must stand next to it, such as `28.3000 min (unverified)`.

        Args:
            minutes: The score; None if there is none, which gives `no score`.
        """
        if minutes is None:
            return "no score"
        unit = "min" if self.standing is None else self.standing.unit("min")
        return f"{minutes:.4f} {unit}"

    def as_dict(self) -> JsonObject:
        """Return the row as a dict for JSON."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return plain | {
            "standing": None if self.standing is None else self.standing.as_dict(),
            "envelope": None if self.envelope is None else asdict(self.envelope),
            "questions": [asdict(question) for question in self.questions],
        }


_NOT_COLUMNS = ("questions", "standing", "envelope")
_COLUMNS = [one.name for one in fields(Submission) if one.name not in _NOT_COLUMNS]
_OF_STANDING = ["result", "name", "dataset", "target"]


def as_csv(submissions: Sequence[Submission]) -> str:
    """Return the audit of a results repository as a table in CSV, a row for each submission.

    Args:
        submissions: Rows of the audit. Without any, the text is the head of the table.
    """
    columns = [*_COLUMNS, *_OF_STANDING]
    rows = []
    for submission in submissions:
        row = {name: getattr(submission, name) for name in columns}
        for severity in ("error", "warning"):
            rules = [question.rule for question in submission.questions if question.severity == severity]
            row[f"{severity}s"] = " ".join(rules)
        rows.append(row)
    return csv_text([*columns, "errors", "warnings"], rows)


def as_text(submissions: Sequence[Submission]) -> str:
    """Format the audit of an MLPerf results repository as text for a terminal.

    Args:
        submissions: The audited submissions, each with one system's runs of one benchmark: verdicts, scores, and the
            questions that a reviewer should ask.

    Returns:
        A line for each submission with its questions indented below it, then a line of totals, such as "2 submissions,
        10 logs: official passes 10, strict 8; 0 not judged". Passes are counted in logs: official ones are by
        MLCommons' checker, strict ones also by this project's additional rules. The text ends with the notes that must
        accompany results that use the name MLPerf, if there are any.
    """
    lines: list[str] = []
    for submission in submissions:
        lines += _lines_of_submission(submission)
    logs = sum(submission.logs for submission in submissions)
    official = sum(submission.official_passes for submission in submissions)
    strict = sum(submission.strict_passes for submission in submissions)
    not_judged = sum(submission.not_judged for submission in submissions)
    totals = f"official passes {official}, strict {strict}; {not_judged} not judged"
    lines.append(f"{counted(len(submissions), 'submission')}, {counted(logs, 'log')}: {totals}")
    return "\n".join([*lines, *footnotes(submissions)]) + "\n"


def _lines_of_submission(submission: Submission) -> list[str]:
    """Return a submission's line with its verdicts; below it the envelope test, if it was made, and each question."""
    name = f"{submission.round or '-'} {submission.submitter} {submission.system} {submission.benchmark}"
    verdicts = "not judged" if submission.not_judged == submission.logs else _verdicts(submission)
    lines = [f"{name}: {verdicts}"]
    if submission.envelope_in_words:
        lines.append(f"  {submission.envelope_in_words}")
    for question in submission.questions:
        logs = f"{counted(question.logs, 'log')}, {question.file}:{question.line or '-'}"
        lines.append(f"  {question.severity}: {question.rule}, {logs}: {question.actual}")
    return lines


def _verdicts(one: Submission) -> str:
    official = f"official {one.official_passes}/{one.logs}, {one.minutes_in_words(one.official_minutes)}"
    strict = f"strict {one.strict_passes}/{one.logs}, {one.minutes_in_words(one.strict_minutes)}"
    problem = f" ({one.problem})" if one.problem else ""
    result = ""
    if one.standing is not None and one.standing.is_mlperf is False:
        result = f"; {one.standing.name}"
    return f"{official}; {strict}; RCP {one.rcp}{one.scaling_in_words}{result}{problem}"


def footnotes(submissions: Sequence[Submission]) -> list[str]:
    """Return the notes that must stand with the scores of these submissions."""
    return mlperf.notes_on(one.standing for one in submissions if one.standing is not None)


def as_html(submissions: Sequence[Submission]) -> str:
    """Return the audit as a page in HTML."""
    return rendered("audit.html", submissions=submissions, footnotes=footnotes(submissions))
