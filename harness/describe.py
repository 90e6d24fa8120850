"""The command that prints a job for its launchers and its user: `python -m harness.describe`.

run_and_time.sh and the launchers call it by `load_job` of launch/common.sh. It says what is wrong with the job before
anything is started.
"""

import argparse
import difflib
import importlib.util
import json
import sys
from collections.abc import Collection, Mapping
from typing import NamedTuple

from harness import env, exports, refusals
from harness.job import PER_WORKLOAD, PRECISIONS, SETTINGS, Job, Origins, names, prefix_of
from runlog import workloads
from runlog.errors import one_line, print_to_reader
from runlog.options import Parser

SIMILARITY = 0.88  # by difflib's ratio
MIN_LETTERS = 6  # of a name for which others are taken as misspelt
FAMILIES = ("SUBMISSION_", "CHECKPOINT_")  # of settings: what begins so is hardly another program's
OF_THE_RECIPE = "the RECIPE has it"
# What other training programs, NVIDIA's MLPerf submissions among them, call settings, or what a recipe has.
NAMES_ELSEWHERE = {
    **dict.fromkeys(("EPOCHS", "NUM_EPOCHS", "NUMEPOCHS"), "MAX_EPOCHS is"),
    **dict.fromkeys(("LR", "BASE_LR", "LEARNING_RATE", "WARMUP_EPOCHS", "OPTIMIZER"), OF_THE_RECIPE),
    "MLPERF_SUBMISSION_ORG": "SUBMISSION_ORG is",
    "MLPERF_SUBMISSION_PLATFORM": "SUBMISSION_PLATFORM is",
}


def misspelt(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that looks like a setting and is none, as no other message would tell of it.

    Examples are "BATCHSZIE is read by nothing: is it BATCHSIZE?" and "EPOCHS is read by nothing: MAX_EPOCHS is". A
    warning leaves out the variable's value, which may be a secret.

    Args:
        environ: Environment variables.
    """
    settings = names()
    warnings = []
    for name in environ:
        if name in settings:
            continue
        similar_setting = _similar_setting(name, settings)
        what_is_read = f"is it {similar_setting}?" if similar_setting else _what_is_read_instead(name)
        if what_is_read:
            warnings.append(f"{name} is read by nothing: {what_is_read}")
    return warnings


def _similar_setting(name: str, settings: Collection[str]) -> str:
    """Return the setting that a variable's name is a misspelling of; an empty text if there is none.

    Args:
        name: The variable's name, such as "mode" or "BATCHSZIE".
        settings: Names of all settings.
    """
    if name.upper() in settings:
        return name.upper()
    # Not of shorter settings: MODEL, which is similar to MODE, may be another program's variable.
    long_settings = [setting for setting in settings if len(setting) >= MIN_LETTERS]
    most_similar = difflib.get_close_matches(name, long_settings, n=1, cutoff=SIMILARITY)
    return most_similar[0] if most_similar else ""


def _what_is_read_instead(name: str) -> str:
    """Return which settings are read in place of a variable that is none, such as "MAX_EPOCHS is" for EPOCHS.

    Args:
        name: Name of the variable.

    Returns:
        The end of the caller's warning, "EPOCHS is read by nothing: MAX_EPOCHS is". Empty for no warning.
    """
    if name in NAMES_ELSEWHERE:  # {"EPOCHS": "MAX_EPOCHS is", "LR": "the RECIPE has it", ...}
        return NAMES_ELSEWHERE[name]
    for family in FAMILIES:  # "SUBMISSION_", "CHECKPOINT_"
        if name.startswith(family):
            settings = [setting for setting in SETTINGS if setting.startswith(family)]
            return f"{', '.join(settings)} are"
    for workload in workloads.NAMES:
        prefix = f"{workload.upper()}_"  # as RN50_
        if name.startswith(prefix):
            return _what_is_read_of_workload(name, workload, prefix)
    return ""  # may be another program's variable, such as MODEL


def _what_is_read_of_workload(name: str, workload: str, prefix: str) -> str:
    """Return which variables are read for a workload alone, as the end of the warning on one that is not.

    Args:
        name: Name of the variable, such as "RN50_STRATEGY".
        workload: The workload, such as "rn50".
        prefix: Beginning of the names of its variables, such as "RN50_".

    Returns:
        The text; empty if jobs of one precision read the variable, such as RN50_FP32_STRATEGY.
    """
    prefixes_with_precision = tuple(prefix_of(workload, precision) for precision in PRECISIONS)  # as RN50_FP32_
    if name.startswith(prefixes_with_precision):
        return ""
    read_at_any_precision = " and ".join(f"{prefix}{setting}" for setting in PER_WORKLOAD)
    return f"{read_at_any_precision} are, and any setting with a precision, as {prefix}FP32_STRATEGY"


def _warnings_on_data(job: Job) -> list[str]:
    """Return a warning if two settings say where the images come from: synthetic ones, and a folder.

    Args:
        job: The settings of the job.
    """
    if job.data.is_synthetic and job.data.folder:
        return [f"DATA=synthetic: an epoch is as long as DATADIR={job.data.folder} says, and no image of it is read"]
    return []


def table() -> str:
    """Return the variables as the rows of a Markdown table, for docs/settings.md."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for setting in SETTINGS.values():
        default = "" if setting.default == "" else f"`{setting.default}`"
        unnamed_choices = [f"`{c}`" for c in setting.choices if c and c not in setting.doc]
        meaning = setting.doc
        if unnamed_choices:
            meaning += f": {', '.join(unnamed_choices)}"
        rows.append(f"| `{setting.variable}` | {default} | {meaning} |")
    return "\n".join(rows)


def _arguments() -> argparse.Namespace:
    """Read the command line, which must have exactly one of the options --json, --shell, --launch and --table.

    A wrong command line ends the process with status 2. Both --shell and --launch print variables as NAME=VALUE:
    --shell all those of the job, for run_and_time.sh, and --launch the few that a launcher needs to start the nodes.

    Returns:
        `json`, `shell`, `launch` and `table`, of which the given one is true and the others are false.
    """
    says = "Print the job that this environment and its system's config file describe."
    parser = Parser(prog="python -m harness.describe", description=says)
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--json", action="store_true", help="{NAME: {value, origin}}")
    form.add_argument(
        "--shell", action="store_true", help="NAME=VALUE with a NUL after each: what run_and_time.sh exports"
    )
    form.add_argument("--launch", action="store_true", help="the same for a launcher, whose host has Python alone")
    form.add_argument("--table", action="store_true", help="the variables as a Markdown table")
    return parser.parse_args()


def _refuse_result_file(environ: Mapping[str, str]) -> None:
    """Refuse an environment in which the user, and not the loop over the trials, has set RESULT_FILE.

    Args:
        environ: The user's environment.

    Raises:
        ValueError: RESULT_FILE is set and not empty.
    """
    if environ.get("RESULT_FILE"):
        raise ValueError(
            f"RESULT_FILE={environ['RESULT_FILE']!r}: the trial loop names each log: unset it, and set LOGDIR to the "
            "folder of the results"
        )


class _Described(NamedTuple):
    """The job that this process's environment describes."""

    job: Job
    origins: Origins  # of each of its values
    given: dict[str, str]  # the environment of this process
    environ: dict[str, str]  # the same with what `env.resolve` adds: variables of the system's config file and others

    def added(self) -> dict[str, str]:
        """Return the variables of `environ` that are not in `given`, or have another value there."""
        return {name: value for name, value in self.environ.items() if self.given.get(name) != value}


def _describe(given: dict[str, str]) -> _Described:
    """Return the job that an environment describes once its system's config file is applied.

    Args:
        given: The environment. DGXSYSTEM in it names the system, as DGX1 of the file config_DGX1.sh.

    Returns:
        The job, who set each of its values, and the environment before and after the config file.

    Raises:
        ValueError: The system has no config file, the file fails, or a value is wrong.
    """
    environ = env.resolve(given)  # runs the config file, unless the environment says that it has been applied
    job, origins = env.read(environ)
    return _Described(job, origins, given, environ)


def _describe_for_user(given: dict[str, str]) -> _Described:
    """Return the job that a user's environment describes, after four checks that only a user's environment must pass.

    The checks are of RESULT_FILE, the trials' seeds, variables of Paddle, and the paths that the job names. In the
    environment of a running job the checks could fail though the job is good: the trial loop sets RESULT_FILE and each
    trial's SEED, a rank sets Paddle's variable for its GPU, and a rank's machine may lack files of the user's.

    Args:
        given: The user's environment.

    Raises:
        ValueError: The user has set RESULT_FILE, a value or the system's config file is wrong, a trial's seed would be
            beyond the largest, a variable of Paddle contradicts the job, or a path that the job names is not usable on
            this machine.
    """
    _refuse_result_file(given)  # needs the environment alone; the three checks below need the job
    described = _describe(given)  # checks the values of the settings
    refusals.raise_first(refusals.of_seeds(described.job))
    refusals.raise_first(refusals.of_paddle_flags(described.job, described.environ))
    refusals.raise_first(refusals.of_named_paths(described.job))
    return described


def _print_for_shell(variables: Mapping[str, str]) -> None:
    """Print NAME=VALUE with a NUL after each, because a value may hold a line feed, but no NUL."""
    for name, value in variables.items():
        print_to_reader(f"{name}={value}", end="\0")


@one_line
def main() -> int:
    """Print the job that this environment and its system's config file describe, in the form of the given option.

        --table:   the settings of any job, for docs/settings.md; nothing is checked
        --json:    each value and who set it, for a user, as in `./run_and_time.sh --dry-run`
        --shell:   the variables that run_and_time.sh exports on a node
        --launch:  the variables that a launcher needs, on a host that may lack the packages of the training program

    With --json, --shell and --launch the job is checked before it is printed. A wrong job ends the command with an
    error.

    Returns:
        0. For an error `one_line` prints a line on stderr and returns 2 if the job is wrong, 1 if the output cannot be
        written, 130 after Ctrl-C.
    """
    args = _arguments()
    if args.table:
        print_to_reader(table())
        return 0

    given = env.of_process()
    # True if an earlier call with --shell has printed these variables, and run_and_time.sh exported them. That call has
    # made the checks and given the warnings that are of a user's environment alone.
    is_exported_by_run = env.is_resolved(given)
    described = _describe(given) if is_exported_by_run else _describe_for_user(given)
    has_packages = importlib.util.find_spec("numpy") is not None
    if has_packages and not args.launch:  # a launcher leaves it to its nodes, which call this with --shell
        refusals.raise_first(refusals.of_program(described.job))  # what the training program would refuse
    if not is_exported_by_run:
        for warning in [*misspelt(described.environ), *_warnings_on_data(described.job)]:
            print(f"warning: {warning}", file=sys.stderr)
    if args.json and not has_packages:
        print("note: not asked what the training program refuses: that needs launch/setup.sh", file=sys.stderr)
    _print_described(described, args)
    return 0


def _print_described(described: _Described, args: argparse.Namespace) -> None:
    """Print a described job in the form that the command line asks for.

        --json:    each setting with its value and who set it
        --launch:  the few variables that a launcher needs to start the nodes, as NAME=VALUE
        --shell:   all variables that run_and_time.sh exports on a node, as NAME=VALUE

    Args:
        described: The job, with the environment that it is from.
        args: The options, of which one is true. Nothing is printed for --table.
    """
    set_by_config = described.added()  # by the system's config file, and by `env.resolve`
    if args.json:
        print_to_reader(json.dumps(described.origins, indent=1))
    elif args.launch:
        _print_for_shell(exports.for_launcher(described.given, set_by_config, described.job))
    elif args.shell:
        _print_for_shell(exports.for_node(described.environ, set_by_config, described.origins))


if __name__ == "__main__":
    sys.exit(main())
