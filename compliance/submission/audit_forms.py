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
class EnvelopeTest:
    """A second convergence test of a submission, against only the reference points on their lower convex envelope.

    The first test is that of MLCommons' rcp_checker, which may keep other points as well. That is a question to the
    working group (mlcommons/logging #368).
    """

    passed: bool
    scaling: float  # the factor on the score by this test
    held_to: float  # the mean of the reference with which this test compares the runs, in `unit`
    held_to_by_tool: float  # the mean with which rcp_checker compares them
    unit: str  # such as "epochs"
    differs: bool  # whether the two means differ

    def in_words(self, scaling_by_tool: float | None) -> str:
        """Return a phrase that compares this test with that of rcp_checker, such as

            lower convex envelope: held to 4.2 epochs, x 1.012000; by rcp_checker to 4.5, x 1.000000 (a question to ...)

        Each test compares the runs with a reference point. "Held to" gives the mean epochs (or samples) of this point,
        and "x" the factor by which the test multiplies the score. If both tests take the same mean, the phrase says
        only "lower convex envelope: the same reference point".

        Args:
            scaling_by_tool: The factor by rcp_checker's test; None if it is not known.
        """
        if not self.differs:
            return "lower convex envelope: the same reference point"
        factor_by_tool = "not known" if scaling_by_tool is None else f"{scaling_by_tool:.6f}"
        this_test = f"held to {self.held_to:.6g} {self.unit}, x {self.scaling:.6f}"
        test_of_tool = f"by rcp_checker to {six_digits(self.held_to_by_tool)}, x {factor_by_tool}"  # in the same unit
        open_question = "a question to the working group, mlcommons/logging #368"
        return f"lower convex envelope: {this_test}; {test_of_tool} ({open_question})"


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
    envelope: EnvelopeTest | None = None  # only with the option --envelope
    problem: str
    questions: tuple[Question, ...]

    @property
    def scaling_in_words(self) -> str:
        """Return the factor of the convergence test, such as `, x 1.012000`; empty if none is known."""
        if self.scaling is None or self.rcp == "not applied":
            return ""
        return f", x {self.scaling:.6f}"

    @property
    def result(self) -> str:
        """Return the kind of the result in a word or two, such as `unverified`."""
        if self.standing is None:
            return "not known"
        return self.standing.status

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
        row: JsonObject = {field.name: getattr(self, field.name) for field in fields(self)}
        # Three fields are not values of JSON yet.
        row["standing"] = None if self.standing is None else self.standing.as_dict()
        row["envelope"] = None if self.envelope is None else asdict(self.envelope)
        row["questions"] = [asdict(question) for question in self.questions]
        return row


_FIELDS_THAT_ARE_NO_COLUMNS = ("questions", "standing", "envelope")
_FIELDS_THAT_ARE_COLUMNS = [field.name for field in fields(Submission) if field.name not in _FIELDS_THAT_ARE_NO_COLUMNS]
_COLUMNS_OF_STANDING = ["result", "name", "dataset", "target"]  # properties of a submission


def as_csv(submissions: Sequence[Submission]) -> str:
    """Return the audit of a results repository as a table in CSV, a row for each submission.

    Args:
        submissions: Rows of the audit. Without any, the text is the head of the table.
    """
    columns = [*_FIELDS_THAT_ARE_COLUMNS, *_COLUMNS_OF_STANDING]
    rows = []
    for submission in submissions:
        row = {name: getattr(submission, name) for name in columns}
        row["errors"] = _rules_broken(submission, "error")
        row["warnings"] = _rules_broken(submission, "warning")
        rows.append(row)
    return csv_text([*columns, "errors", "warnings"], rows)


def _rules_broken(submission: Submission, severity: str) -> str:
    """Return the rules that a submission breaks, by one severity, with blanks between: `run-mode seeds-differ`.

    Args:
        submission: Row of the audit.
        severity: "error" or "warning".
    """
    rules = [question.rule for question in submission.questions if question.severity == severity]
    return " ".join(rules)


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
    lines.append(_line_of_totals(submissions))
    lines += footnotes(submissions)
    return "\n".join(lines) + "\n"


def _line_of_totals(submissions: Sequence[Submission]) -> str:
    """Return how many submissions and logs were audited, and how many logs pass."""
    logs = sum(submission.logs for submission in submissions)
    official = sum(submission.official_passes for submission in submissions)
    strict = sum(submission.strict_passes for submission in submissions)
    not_judged = sum(submission.not_judged for submission in submissions)
    audited = f"{counted(len(submissions), 'submission')}, {counted(logs, 'log')}"
    return f"{audited}: official passes {official}, strict {strict}; {not_judged} not judged"


def _lines_of_submission(submission: Submission) -> list[str]:
    """Return the lines about a submission in the audit: its name and verdicts, and indented lines with details.

    The details are the second convergence test, if the audit made one, and a line for each rule that is broken.

    v1.1 Dell node resnet: official 5/5, ...
      lower convex envelope: the same reference point
      warning: run-elsewhere, 1 log, result_0.txt:-: the times of ...
    """
    name = f"{submission.round or '-'} {submission.submitter} {submission.system} {submission.benchmark}"
    is_any_log_judged = submission.not_judged < submission.logs
    # Such as "official 5/5, 28.3000 min (unverified); strict 3/5, no score; RCP pass, x 1.012000".
    verdicts = _verdicts(submission) if is_any_log_judged else "not judged"
    lines = [f"{name}: {verdicts}"]
    # The second test takes only the reference points on their lower convex envelope.
    if submission.envelope is not None:
        factor_of_first_test = submission.scaling  # on the score, by rcp_checker's test; None if it is not known
        lines.append(f"  {submission.envelope.in_words(factor_of_first_test)}")
    for question in submission.questions:  # one for each rule that is broken
        first_breach = f"{question.file}:{question.line or '-'}"  # such as "result_0.txt:12"; "-" for no single line
        logs = f"{counted(question.logs, 'log')}, {first_breach}"
        lines.append(f"  {question.severity}: {question.rule}, {logs}: {question.actual}")
    return lines


def _verdicts(submission: Submission) -> str:
    """Return one line with the verdicts and scores of a submission, for instance:

        official 5/5, 28.3000 min (unverified); strict 3/5, no score; RCP pass, x 1.012000 (PROBLEM)

    "5/5" are the logs that pass, of all logs. "RCP" has the outcome of rcp_checker's test of convergence, and the
    test's factor on the score. After it comes the name of the result, if it is known not to be an MLPerf result, and in
    parentheses the problem of the submission, if it has one.
    """
    # "28.3000 min", with "(unverified)" if the result uses the name of MLPerf; "no score" if there are no minutes.
    official_minutes = submission.minutes_in_words(submission.official_minutes)
    strict_minutes = submission.minutes_in_words(submission.strict_minutes)
    parts = [
        f"official {submission.official_passes}/{submission.logs}, {official_minutes}",
        f"strict {submission.strict_passes}/{submission.logs}, {strict_minutes}",
        f"RCP {submission.rcp}{submission.scaling_in_words}",  # no factor after "not applied" or "not known"
    ]
    standing = submission.standing  # None if no log can be read
    # `is_mlperf` is True, False, or None if it is not known: only False adds a part.
    is_known_as_no_mlperf_result = standing is not None and standing.is_mlperf is False
    if is_known_as_no_mlperf_result:
        parts.append(submission.name)  # says "no MLPerf result", with the reasons in parentheses
    verdicts = "; ".join(parts)
    if submission.problem:  # such as "4 logs; a submission has 5"
        verdicts += f" ({submission.problem})"
    return verdicts


def footnotes(submissions: Sequence[Submission]) -> list[str]:
    """Return the notes that must stand with the scores of these submissions."""
    return mlperf.notes_on(one.standing for one in submissions if one.standing is not None)


def as_html(submissions: Sequence[Submission]) -> str:
    """Return the audit as a page in HTML."""
    return rendered("audit.html", submissions=submissions, footnotes=footnotes(submissions))
