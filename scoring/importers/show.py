"""A record as lines of text, as `python -m scoring import` prints it."""

from runlog.digits import counted, six_digits
from runlog.text import visible
from scoring.record import FACTS, Check, Record


def record_lines(record: Record) -> list[str]:
    """Return what a training log says as lines of text: a heading, and then a name and a value on each line.

        run.log  (paddleclas_dygraph, 480 lines, sha256 0123456789ab)
          model            ResNet50  (line 7)
          devices          not said

    The fields in FACTS, such as the devices, the status and the windows (rows of training figures) always have a line.
    Other lines, such as those of `quality`, `truncated` or `problem`, are there only if they apply to the log.

    Args:
        record: What the log says.
    """
    lines = [f"{record.file}  ({record.format}, {counted(record.lines, 'line')}, sha256 {record.sha256[:12]})"]

    def add(name: str, text: str) -> None:
        lines.append(f"  {name:17}{text}")

    if record.segment is not None:
        first_line, last_line = record.segment
        add("this run", f"lines {first_line} to {last_line}")
    for name in (*FACTS, "status"):
        add(name, _fact_text(record, name))  # the value with its source, or `not said`
    add("windows", _windows_text(record))
    if record.run_time_s is not None:
        add("run time", f"{record.run_time_s / 60:.3f} min")
    if record.quality:
        last = record.quality[-1]
        add("quality", f"{last.name} {six_digits(last.value)}  (line {last.line})")
    for check in record.checks:
        add(_check_result(check), str(check))
    if record.truncated:
        add("truncated", "the log ends before its run does")
    for problem in record.problems:
        add("problem", visible(problem))
    return lines


def _fact_text(record: Record, name: str) -> str:
    """Return one field of a record as text, with its source: `8  (line 12)`.

    Args:
        record: What the log says.
        name: Name of the field, such as "devices".

    Returns:
        The text. The source is a line of the log, the options of the command line, or else the format of the log. If
        the field is None, the whole text is `not said`.
    """
    value = getattr(record, name)
    if value is None:
        return "not said"

    source = "by its format"  # neither the command line nor a line of the log states it
    if name in record.from_options:
        source = "from the options"
    elif name in record.field_lines:
        source = f"line {record.field_lines[name]}"
    return f"{visible(value)}  ({source})"


def _windows_text(record: Record) -> str:
    """Return in words how many rows of training figures a log has, on which lines, and what their rates are.

    The text is such as `240, lines 12 to 480; each of its own steps; rates of all devices`.

    Args:
        record: What the log says.
    """
    count = str(len(record.windows))
    if record.windows:
        count += f", lines {record.windows[0].line} to {record.windows[-1].line}"
    averages = "running averages of the epoch" if record.cumulative else "each of its own steps"
    devices = "one device" if record.rate_scope == "device" else "all devices"
    return f"{count}; {averages}; rates of {devices}"


def _check_result(check: Check) -> str:
    """Return the word for the result of a check: `checked`, `DISAGREE`, or `NOT CHECKED` if nothing was compared.

    Args:
        check: The check.
    """
    if check.one_sided:
        return "NOT CHECKED"
    return "checked" if check.agree else "DISAGREE"
