"""TensorFlow model garden logs: Keras's `TimeHistory`, as `official/utils/misc/keras_utils.py` prints it.

I0826 16:01:52.940788 140244211521280 keras_utils.py:133] TimeHistory: 44.32 seconds, 577.67 examples/second
between steps 100 and 200
The rate is that of all devices. The configuration is printed twice, with the command line's options the second time;
the last line has the Unix time of each row. Language models print the same rows.
"""

import re
from typing import NamedTuple

from runlog.digits import counted
from scoring.importers.evidence import Fact
from scoring.importers.gaps import lost_steps
from scoring.importers.lines import Lines
from scoring.importers.table import Columns, FormatReader, RowPosition, RowTime
from scoring.importers.text import RowPattern, field, first_line_in_words, integer, moment_s, positive

_NO_HOSTS = ("None", "''")  # texts of `worker_hosts` that name no host
_STRATEGIES_OF_NODES = ("multi_worker_mirrored", "parameter_server")  # the environment may name the hosts: TF_CONFIG

# Keras's line at the end of an epoch that was evaluated: `625/625 - 340s - loss: 6.6 - val_loss: 6.4`.
# So few characters, as a progress bar of many steps is one line and its search would take long.
_EPOCH_WITH_EVALUATION = re.compile(r"\b(?P<steps>[1-9]\d{0,8})/(?P=steps) .{0,1000} - val_\w+: ")
_STAMP = re.compile(r"BatchTimestamp<batch_index: (\d{1,9}), timestamp: (\d+\.\d+)>")


class _EvaluatedEpoch(NamedTuple):
    """An epoch that was evaluated at its end."""

    line: int  # the line that Keras prints of it, after the evaluation
    steps: int  # the steps of an epoch


class Keras(FormatReader):
    """Rows that state between which steps they lie, and the seconds of these steps."""

    row_marker = row_clue = whole_line_marker = "keras_utils.py"
    row_pattern = RowPattern(
        re.compile(r"TimeHistory: (\S+) seconds,"),
        (
            field(" ", r" examples/second(?!/)"),
            re.compile(r" between steps (\d{1,9})\b"),
            re.compile(r" steps \d{1,9} and (\d{1,9})\b"),
        ),
    )
    columns = "window_s rate from step"
    required_column = "window_s"
    rate_scope = "global"
    fact_pattern = re.compile(
        r"'num_gpus': (?P<gpus>\d{1,9})\b|'worker_hosts': (?P<hosts>None|'[^']*')|'(?P<part>train|validation)_dataset'"
        r"|'distribution_strategy': '(?P<strategy>\w+)'"
        r"|'batch_size': (?P<batch>\d{1,9})\b|'dtype': '(?P<precision>\w+)'"
        r"|'use_per_replica_batch_size': (?P<is_batch_per_device>True|False)"
    )
    framework = "TensorFlow"
    # set_mixed_precision_policy takes these dtypes.
    precision_names = (("float32", "fp32"), ("float16", "amp"), ("bfloat16", "amp"))
    closing_words = ("step_timestamp_log",)
    # In the closing line, or in that of an epoch: `625/625 - 340s - loss: 6.6 - val_loss: 6.4 - val_accuracy: 0.7`.
    evaluation_pattern = re.compile(
        r"(?:'| - )(?P<name>accuracy_top_1(?=')|val_(?:(?:sparse_)?categorical_)?accuracy)'?: (?P<value>[\d.]+)"
    )
    summary_pattern = re.compile(r"'avg_exp_per_second': ([\d.]+)")
    _part = ""  # the data set whose section is read: "train" or "validation"
    _evaluated_epoch: _EvaluatedEpoch | None = None  # the last one, if no row has come since

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines)
        self._evaluations_in_rows: list[int] = []  # lines of the evaluations that a row's time includes

    def read_before_rows(self, line: int, text: str) -> None:
        """Read what a line before the first row of training figures states, and whether it closes an evaluated epoch.

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        super().read_before_rows(line, text)
        self._note_evaluation(line, text)

    def _note_evaluation(self, line: int, text: str) -> None:
        """Note the line if it closes an epoch that was evaluated.

        Args:
            line: Number of the line in the log.
            text: The line.
        """
        closed_epoch = _EPOCH_WITH_EVALUATION.search(text)
        if closed_epoch is not None:
            self._evaluated_epoch = _EvaluatedEpoch(line, int(closed_epoch["steps"]))

    def take_fact(self, name: str, value: object, line: int) -> None:
        """Store a value of the printed configuration, in place of the value from an earlier line.

        The configuration is printed again after the options of the command line were applied, so the last value counts.
        It has a section for each data set, and of these only the values of the training data are stored, here 256:

            'train_dataset': {'batch_size': 256, ..}, 'validation_dataset': {'batch_size': 64, ..}

        The GPUs, hosts and strategy are of no data set, and are stored wherever they stand.

        Args:
            name: Name of a group of `fact_pattern`, such as "batch". The name "part" is not a value: it says that the
                section of a data set begins, and only this is noted.
            value: Text that the group matched, such as "256". For "part", the text is "train" or "validation".
            line: Number of the line in the log.
        """
        if name == "part":
            self._part = str(value)  # for the values that follow, up to the next "part"
            return
        is_of_no_data_set = name in ("gpus", "hosts", "strategy")
        if self._part == "train" or is_of_no_data_set:
            self.facts_by_name[name] = Fact(value, line)

    def read_after_first_row(self, line: int, text: str) -> None:
        """Read a line that is not a row of training figures, such as an evaluation, an average rate or the last line.

        The last line of a complete log prints the Unix time of each row, which becomes `end_s` of the row's window.
        Here the window that ends at step 200 gets 1598457712.94:

            'step_timestamp_log': [.., 'BatchTimestamp<batch_index: 200, timestamp: 1598457712.94>', ..]

        Args:
            line: Number of the line in the log. The line comes after the first row.
            text: The line.
        """
        # The method of all formats reads an evaluation or the average rate, and marks the log as complete if the line
        # has "step_timestamp_log" (`closing_words`). The stamps are read here, as no other format has them.
        super().read_after_first_row(line, text)
        self._note_evaluation(line, text)
        stamps = {int(step): moment_s(stamp) for step, stamp in _STAMP.findall(text)}  # Unix time by step
        if not stamps:  # not the last line
            return
        for window in self.windows:
            assert window.step is not None  # each row prints it
            window.end_s = stamps.get(window.step)  # None, for not known, if no stamp is of this step

    def finish_rows(self) -> None:
        """Note up to two problems: rows are left out because their times include an evaluation; steps are in no row.

        The rows of a whole log lie end to end, so that steps in no row show that lines were lost.
        """
        evaluations = self._evaluations_in_rows
        if evaluations:
            where = first_line_in_words(evaluations)
            self.note_problem(f"{where}: an evaluation within the time of the next row, which is left out")
        found = lost_steps(self.windows, sorted([*self.unread_rows.lines, *evaluations]))
        if found:
            where = first_line_in_words([window.line for window, _ in found])
            steps = sum(steps for _, steps in found)
            self.note_problem(f"{where}: rows before it are missing, with {counted(steps, 'step')}")

    def finish_facts(self) -> None:
        """Set nodes, devices and batch by the printed configuration, and convert its texts to numbers and names."""
        self._set_nodes_and_devices()
        self._set_batch()
        super().finish_facts()

    def _set_nodes_and_devices(self) -> None:
        """Set the number of nodes, and the number of devices on all nodes, by the configuration that the log prints.

        `num_gpus` is the number of GPUs of a process. With one process on each of 2 nodes, 8 GPUs give 16 devices.
        Nothing is set if the nodes or the GPUs are not known, or if more processes than nodes wrote the log.
        """
        gpus_of_process = integer(self.value("gpus"))
        nodes = self._number_of_nodes()
        if nodes is None or not gpus_of_process:
            return
        # mpirun may put a tag with the rank of the process before each line. Without tags (0 ranks), or with up to one
        # rank for each node, one process on each node is assumed.
        processes = len(self.lines.ranks)
        if processes > nodes:  # several on a node may share its GPUs or not, so that the devices are not known
            return
        line = self.line_of("gpus")
        self.set_if_unset("nodes", nodes, line)
        self.set_if_unset("devices", gpus_of_process * nodes, line)

    def _number_of_nodes(self) -> int | None:
        """Return the number of nodes by the hosts in the printed `worker_hosts`: 2 for `'a:5000,b:5000'`.

        Returns:
            The number, which is 1 if no host is named. None if `worker_hosts` is not printed, or if the environment
            (TF_CONFIG) may name the hosts, which the log does not print.
        """
        hosts = self.value("hosts")  # the text of `worker_hosts`, such as `'a:5000,b:5000'`; None if it is not printed
        if hosts is None:
            return None
        if hosts not in _NO_HOSTS:  # any text but `None` and `''` names hosts
            return len(hosts.split(","))
        # No host is named, so there is 1 node. But a strategy for several nodes, such as "multi_worker_mirrored", may
        # take their hosts from TF_CONFIG.
        may_environment_name_them = self.value("strategy") in _STRATEGIES_OF_NODES
        return None if may_environment_name_them else 1

    def _set_batch(self) -> None:
        """Set the batch of one device or of all devices, by the option `use_per_replica_batch_size`.

        Without the option in the log no batch is set, because it could be either.
        """
        is_per_device = self.value("is_batch_per_device")
        if is_per_device == "True":
            self.set_if_unset_from("batch_per_device", "batch")
        elif is_per_device == "False":
            self.set_if_unset_from("batch_of_all", "batch")

    def time_of_row(self, last: RowPosition | None, position: RowPosition, row: Columns) -> RowTime:
        """Return how many training steps a printed row covers, and the seconds that the row prints for these steps.

        "TimeHistory: 44.32 seconds, 577.67 examples/second between steps 100 and 200" gives 100 steps and 44.32 s.

        Args:
            last: Not used. Other formats count the steps from the row before, but each row here prints both steps.
            position: Position of this row. Its step is the second one in the text, 200 in the example.
            row: Values of this row by column, as printed. "from" is the first step in the text, "100" in the example.

        Returns:
            The steps and their seconds. The wait for input is None, because these rows do not print it. The steps are 0
            if the second step is below the first one, as in a damaged row, or if the seconds include an evaluation.
        """
        step_before = int(row["from"] or 0)  # the pattern of a row requires "from", so 0 is for the type checker only
        if self._has_evaluation_within(step_before, position.step):
            return RowTime(0, None, None)
        steps = max(0, position.step - step_before)
        return RowTime(steps, positive(row["window_s"]), None)

    def _has_evaluation_within(self, step_before: int, last_step: int) -> bool:
        """Return whether an evaluation came between the steps of a row, whose seconds then include it, and note it.

        With epochs of 625 steps and an evaluation since the row before, the row "between steps 600 and 700" has it
        within, but "between steps 625 and 725" has not, because its time begins after the evaluation.

        Args:
            step_before: The first step in the text of the row.
            last_step: The second step in it.
        """
        epoch = self._evaluated_epoch
        self._evaluated_epoch = None  # for the rows that follow this one
        if epoch is None:
            return False
        epochs_before = step_before // epoch.steps
        epochs_before_last_step = (last_step - 1) // epoch.steps
        is_within = epochs_before < epochs_before_last_step
        if is_within:
            self._evaluations_in_rows.append(epoch.line)
        return is_within
