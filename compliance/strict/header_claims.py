"""The header of a log of this project, held against what the run shows of its machines, program and data.

The header must fit the schema.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from compliance.logged_run import LoggedRun, is_number
from compliance.strict.measured import Fault
from compliance.strict.program_claims import faults_of_program
from compliance.strict.schema_types import fits
from compliance.strict.sensors import Sensors
from runlog import schema
from runlog.digits import counted, six_digits
from runlog.json_types import JsonObject
from runlog.run import setting_of_epochs
from runlog.text import printable

_MIB_PER_GIB = 1024
_ROUNDING_OF_MEMORY = 1.01  # the header rounds the memory of a GPU to a tenth of a GiB
_MOST_OF_NAMED_MEMORY = 1.06  # GiB over the GB in a card's name; all known cards have no more than the number in GiB
_SHA256 = re.compile("[0-9a-f]{64}")
_GB_IN_NAME = re.compile(r"\b(\d+) ?GB\b")
# Cards before compute capability 8.0, as V100S-PCIE-32GB, Quadro RTX 8000, T1000, TITAN RTX and GeForce RTX 2080 Ti.
# The GeForce RTX 2050 is a later one: it has 8.6.
_WITHOUT_TF32 = re.compile(r"\b(?:G?V100\w?|T\d+G?|[PMK]\d+\w?|GTX|TITAN|Quadro RTX|RTX 20[678]0)\b")
_TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
_LEAST_READINGS = 20  # windows with a power, and telemetry's samples: fewer may all be of a moment without work
_MOST_ENERGY_RATIO = 3.0  # of the energy and the windows' power over the run's time: nodes and moments differ
_LEAST_POWER_W = 10  # of a GPU in the window of the most power; an A100 that does nothing takes some 50
_MOST_POWER_W = 2000  # of a GPU; a B200's limit is 1000
# That telemetry's peak has of the most that a window says was held: some of it may have been given back at once.
_LEAST_SHARE_OF_HELD_MEMORY = 0.5
_MOST_TEMPERATURE_C = 150  # cards stop far below
_MOST_CPU_SHARE = 1.1  # of the thread that takes the samples, where both of its times are rounded
_FIGURES_OF_GPUS = ("peak_gpu_memory_mib", "peak_gpu_temperature_c", "energy_j", "joules_per_image")


def faults_of_claims(run: LoggedRun, summary: schema.RunSummary, sensors: Sensors, last_epoch: int) -> Iterator[Fault]:
    """Yield a fault for each statement about the machine, the program and the data that is impossible or contradicted.

    Most are statements of the header, and contradicted by the log's events. They are about, in this order:

    - the nodes and their caches;
    - the GPUs; in a run on CPUs, no figure of a GPU may be logged;
    - the readings of the sensors;
    - the training program;
    - the data set;
    - the number of epochs.

    Args:
        run: The facts that the log states of the run. Its header must fit the schema.
        summary: The value of the event run_summary.
        sensors: The memory and power of GPUs that the windows of steps state.
        last_epoch: The number of the last epoch that was trained; 0 if there is none.

    Yields:
        The fault, with the line to blame. For the header this is the line of run_summary, because `LoggedRun` does not
        keep the header's own lines.
    """
    hardware = run.header_section(schema.HARDWARE)
    yield from _impossible_nodes(run, hardware["nodes"])
    yield from _wrong_cache_clears(run, hardware["nodes"])
    if hardware["device"] == "gpu":
        claims = _GpuClaims(run, sensors, hardware["nodes"])
        yield from claims.faults(summary)
    else:
        yield from _figures_of_absent_gpus(run, sensors)
    yield from _impossible_readings(run, sensors)
    for what in faults_of_program(run, summary):
        yield Fault(_line(run), what)
    yield from _wrong_passports(run)
    yield from _wrong_form(run)
    yield from _epochs_beyond_plan(run, last_epoch)


def _line(run: LoggedRun) -> int:
    """Return the line that a fault of the header is shown at: that of run_summary. The header's own are not kept."""
    return run.first_event(schema.RUN_SUMMARY).line


# --- nodes ---


def _impossible_nodes(run: LoggedRun, nodes: list[JsonObject]) -> Iterator[Fault]:
    """Yield a fault for each node without cores or memory, or that is described twice.

    Args:
        run: The facts that the log states of the run.
        nodes: The nodes that the header's section `hardware` describes, each with its host, cores and memory.
    """
    hosts: set[str] = set()
    for node in nodes:
        host = node["host"]
        if node["cores"] < 1 or node["memory_gib"] <= 0:
            size = f"{node['cores']} cores and {node['memory_gib']} GiB"
            yield Fault(_line(run), f"hardware has a node {printable(host)} of {size}")
        is_second_of_name = host in hosts
        if is_second_of_name:
            yield Fault(_line(run), f"hardware describes the node {printable(host)} twice")
        hosts.add(host)


def _wrong_cache_clears(run: LoggedRun, nodes: list[JsonObject]) -> Iterator[Fault]:
    """Yield a fault for each wrong statement of an event cache_clear, and for each node that has no such event.

    An event cache_clear says whether a node cleared its caches. The run writes the value true if the status in the
    event's metadata is "done", and false with any other status. The faults of each event, in this order:

    - The value is true, although the setting CLEAR_CACHES is 0: the run was not to clear caches.
    - The value contradicts the status. A value such as 1 or null, which is neither true nor false, always does.
    - The event names no node, or a node that is not in `nodes`.

    After the events, each node in `nodes` that no event names is a fault.

    Args:
        run: The facts that the log states of the run, with its events cache_clear.
        nodes: The nodes that the header's section `hardware` describes, each with its host.
    """
    hosts = {node["host"] for node in nodes}
    hosts_of_caches = set()  # those of `hosts` for which the log has an event cache_clear
    for event in run.all_events[schema.CACHE_CLEAR.key]:
        host = event.metadata.get("node")  # of any type of JSON
        if event.value is True and run.settings.get("CLEAR_CACHES") == 0:
            yield Fault(event.line, "a cache that was cleared; CLEAR_CACHES is 0")
        status = event.metadata.get("status")
        is_done = status == "done"
        if event.value is not is_done:  # not `!=`, because 1 == True: a value of 1 would pass as true
            yield Fault(event.line, f"a cache_clear of {printable(event.value)} with the status {printable(status)}")
        if isinstance(host, str) and host in hosts:
            hosts_of_caches.add(host)
        else:
            yield Fault(event.line, f"a cache_clear of the node {printable(host)}, which hardware does not describe")
    for host in sorted(hosts - hosts_of_caches):
        yield Fault(_line(run), f"no cache_clear of the node {printable(host)}")


# --- GPUs ---


class _GpuClaims(NamedTuple):
    """The GPUs that the header describes, and what the run's sensors show of them."""

    run: LoggedRun
    sensors: Sensors
    nodes: list[JsonObject]

    def faults(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield what is wrong with the GPUs' memory, arithmetic, power and energy.

        In this order:

        - a card has more memory than its name says (`_memory_beyond_names`);
        - a window of steps, or telemetry, used more memory than any card has (`_memory_beyond_cards`);
        - a window states less memory than an earlier window. Each window states the most that was held since the run
          began, so the figure cannot fall. A window that states 0 or less is left out;
        - the cards or the environment contradict the stated precision (`_other_arithmetic`);
        - the most power of any window is not that of GPUs at work (`_impossible_power`);
        - telemetry saw less memory in use than half of what rank 0 held by its first window
          (`_less_memory_than_held`);
        - telemetry's energy does not go with the power of the windows (`_energy_beyond_power`).

        The last two are left out if the log has no telemetry_summary, or one that does not fit the schema.

        Args:
            summary: The value of the event run_summary: the precision, and the number of devices and nodes.
        """
        yield from self._memory_beyond_names()
        yield from self._memory_beyond_cards()
        if self.sensors.line_of_less_memory:
            yield Fault(self.sensors.line_of_less_memory, "less GPU memory than a window before; it is the most so far")
        yield from self._other_arithmetic(summary.precision)
        yield from self._impossible_power(summary)
        telemetry = self.run.first_event(schema.TELEMETRY_SUMMARY)  # its value is None if the log has no such event
        if fits(schema.TelemetrySummary, telemetry.value):  # None does not fit
            yield from self._less_memory_than_held(telemetry.value["peak_gpu_memory_mib"], telemetry.line)
            yield from self._energy_beyond_power(telemetry.value["energy_j"], telemetry.line)

    @property
    def _cards(self) -> list[JsonObject]:
        cards: list[JsonObject] = []
        for node in self.nodes:
            cards += node["gpus"]
        return cards

    def _memory_beyond_names(self) -> Iterator[Fault]:
        """Yield a fault for the first card with more memory than its name says, such as "NVIDIA A100-SXM4-80GB".

        Up to _MOST_OF_NAMED_MEMORY GiB are allowed for each GB of the name. A card is left out if its name has no GB,
        or if its memory is not known.
        """
        for card in self._cards:
            memory_in_name = _GB_IN_NAME.search(card["name"] or "")
            memory_gib = card["memory_gib"]
            if memory_in_name is None or memory_gib is None:
                continue
            digits = memory_in_name.group(1)[:6]  # int() refuses thousands of digits, which a forged name may have
            named_gb = int(digits)
            if memory_gib > _MOST_OF_NAMED_MEMORY * named_gb:
                what = f"hardware has a {printable(card['name'])} of {six_digits(memory_gib)} GiB"
                yield Fault(_line(self.run), what)
                return

    def _memory_beyond_cards(self) -> Iterator[Fault]:
        """Yield a fault if windows of steps used more memory of a GPU than any card has, and one if telemetry did.

        Nothing is checked if the header describes no card, or if the memory of a card is not known.
        """
        memories_gib = [card["memory_gib"] for card in self._cards]
        if not memories_gib or None in memories_gib:
            return
        largest_card_mib = max(memories_gib) * _MIB_PER_GIB
        telemetry = self.run.first_event(schema.TELEMETRY_SUMMARY)
        used_mib_and_line = [(self.sensors.most_memory_mib, self.sensors.line_of_memory)]  # the most of all windows
        if fits(schema.TelemetrySummary, telemetry.value):
            used_mib_and_line.append((telemetry.value["peak_gpu_memory_mib"], telemetry.line))
        for used_mib, line in used_mib_and_line:
            if used_mib is not None and used_mib > _ROUNDING_OF_MEMORY * largest_card_mib:
                have = f"its cards have {six_digits(largest_card_mib)}"
                yield Fault(line, f"{six_digits(used_mib)} MiB of a GPU; {have}")

    def _less_memory_than_held(self, peak_mib: float | None, line: int) -> Iterator[Fault]:
        """Yield a fault if telemetry saw far less memory in use than rank 0 held by the first window of steps.

        Telemetry samples all memory in use on a GPU now and then. Rank 0 keeps most of the memory that it held by its
        first window until the run ends, so later samples must see it. A peak below half of this memory
        (_LEAST_SHARE_OF_HELD_MEMORY) is a fault. Nothing is compared if the run is not known to be long enough for
        _LEAST_READINGS samples, or if one of the two is not stated.

        Args:
            peak_mib: The peak that telemetry_summary states. None if it states none.
            line: The line of telemetry_summary.
        """
        held_mib = self.sensors.first_memory_mib
        if peak_mib is None or held_mib is None or not self._has_enough_samples():
            return
        if peak_mib < _LEAST_SHARE_OF_HELD_MEMORY * held_mib:
            what = f"telemetry saw at most {six_digits(peak_mib)} MiB of a GPU in use"
            yield Fault(line, f"{what}; its first step_window has {six_digits(held_mib)}")

    def _has_enough_samples(self) -> bool:
        """Return whether the run is known to be long enough for _LEAST_READINGS samples of telemetry."""
        interval_s: Any = self.run.settings.get("TELEMETRY_S")
        if not is_number(interval_s) or self.run.minutes is None:
            return False
        return bool(self.run.minutes * 60 >= _LEAST_READINGS * interval_s)

    def _impossible_power(self, summary: schema.RunSummary) -> Iterator[Fault]:
        """Yield a fault if the most power of a window is less than GPUs at work take, or more than any GPU takes.

        Nothing is checked if fewer than _LEAST_READINGS windows state a power, or if the run states no nodes.

        Args:
            summary: The value of the event run_summary. All nodes use equally many GPUs.
        """
        if self.sensors.windows_with_power < _LEAST_READINGS or summary.nodes < 1:
            return
        gpus = summary.devices // summary.nodes  # on the first node: a window states the power of these alone
        most_w = self.sensors.most_power_w
        if not _LEAST_POWER_W * gpus <= most_w <= _MOST_POWER_W * gpus:
            what = f"step_windows with a power of up to {six_digits(most_w)} W"
            yield Fault(_line(self.run), f"{what}, of {counted(gpus, 'GPU')}")

    def _other_arithmetic(self, precision: str) -> Iterator[Fault]:
        """Yield a fault if the environment contradicts the stated precision, and one if a card lacks the stated TF32.

        A card that has TF32 uses it for multiplications in FP32. The value "0" of the environment variable
        NVIDIA_TF32_OVERRIDE forbids TF32; any other value, or none, allows it. By the stated precision, the faults are:

        - fp32: TF32 is allowed, because NVIDIA_TF32_OVERRIDE is missing or not "0".
        - tf32: TF32 is forbidden, because NVIDIA_TF32_OVERRIDE is "0". A further fault is the first card without TF32,
          such as a V100. Cards before compute capability 8.0 have no TF32, and are known by name (_WITHOUT_TF32).
        - amp_o1 and amp_o2: none.

        Args:
            precision: The precision that run_summary states: fp32, tf32, amp_o1 or amp_o2.
        """
        override = self.run.header_section(schema.ENVIRONMENT).get(_TF32_OVERRIDE)  # None if it is not set
        stated = f"no {_TF32_OVERRIDE}" if override is None else f"{_TF32_OVERRIDE}={printable(override)}"
        is_tf32_allowed_for_fp32 = precision == "fp32" and override != "0"  # "0" forbids TF32
        is_tf32_forbidden = precision == "tf32" and override == "0"
        if is_tf32_allowed_for_fp32 or is_tf32_forbidden:
            yield Fault(_line(self.run), f"precision {precision}, and {stated} in the environment")
        if precision != "tf32":
            return
        for card in self._cards:
            if _WITHOUT_TF32.search(card["name"] or ""):
                yield Fault(_line(self.run), f"precision tf32, which a {printable(card['name'])} does not have")
                return

    def _energy_beyond_power(self, energy_j: float | None, line: int) -> Iterator[Fault]:
        """Yield a fault if telemetry states an energy that is impossible by the power that the windows of steps state.

        Telemetry states the energy that the GPUs of all nodes took from the first step to the end. A window states the
        power of the first node's GPUs alone, at one moment. So the energy is only held to two bounds:

        - at least what the first node takes during the windows that state a power, at the least power of a window;
        - at most what all nodes take during the whole run, if each takes the most power of a window.

        Nodes and moments differ, so each bound is widened by the factor 3 (_MOST_ENERGY_RATIO). For instance, windows
        of 900 s in all state 1000 to 2000 W, in a run of 1000 s on 2 nodes. Then the energy must be at least
        1000 * 900 / 3 = 300,000 J, and at most 2000 * 1000 * 2 * 3 = 12,000,000 J.

        Nothing is compared if fewer than _LEAST_READINGS windows state a power, or if the run is not known to be long
        enough for _LEAST_READINGS samples of telemetry (`_has_enough_samples`).

        Args:
            energy_j: The energy that telemetry_summary states, in joules. None if it states none: nothing is compared.
            line: The line of telemetry_summary.
        """
        are_powers_few = self.sensors.windows_with_power < _LEAST_READINGS
        if energy_j is None or are_powers_few or not self._has_enough_samples():
            return
        assert self.run.minutes is not None  # `_has_enough_samples` is False without it
        run_s = self.run.minutes * 60
        # `time_s` is the time of the windows that state a power. In the rest of the run, the least energy is 0.
        least_j_of_windows = self.sensors.least_power_w * self.sensors.time_s
        most_j_of_run = self.sensors.most_power_w * run_s * len(self.nodes)
        is_plausible = least_j_of_windows / _MOST_ENERGY_RATIO <= energy_j <= most_j_of_run * _MOST_ENERGY_RATIO
        if not is_plausible:
            power = f"{six_digits(self.sensors.least_power_w)} to {six_digits(self.sensors.most_power_w)} W"
            yield Fault(line, f"{six_digits(energy_j)} J in {six_digits(run_s)} s; its step_windows have {power}")


def _figures_of_absent_gpus(run: LoggedRun, sensors: Sensors) -> Iterator[Fault]:
    """Yield a fault for each place where the log of a CPU run states a figure of GPUs, which it cannot have.

    The places are the first window of steps with a GPU's memory or power, and each field of telemetry_summary in
    _FIGURES_OF_GPUS that has a value.

    Args:
        run: The facts that the log states of the run, which trained on CPUs.
        sensors: The memory and power of GPUs that the windows of steps state, which should be none.
    """
    if sensors.line_of_gpu:
        yield Fault(sensors.line_of_gpu, "a step_window with a GPU's memory or power, of a run on CPUs")
    telemetry = run.first_event(schema.TELEMETRY_SUMMARY)
    value = telemetry.value if isinstance(telemetry.value, dict) else {}
    for name in _FIGURES_OF_GPUS:
        if value.get(name) is not None:
            yield Fault(telemetry.line, f"telemetry_summary has {name}, of a run on CPUs")


def _impossible_readings(run: LoggedRun, sensors: Sensors) -> Iterator[Fault]:
    """Yield a fault for each kind of sensor figure of which the log has an impossible one.

    In the windows of steps, impossible are

    - a power below 0;
    - a GPU's memory below 0.

    In telemetry_summary, if it fits the schema, impossible are

    - a GPU's temperature below 0 or above _MOST_TEMPERATURE_C;
    - a CPU share below 0 or above _MOST_CPU_SHARE. It is the CPU time over the elapsed time of the busiest sampler, a
      thread that reads the sensors.

    Args:
        run: The facts that the log states of the run.
        sensors: The power and memory of GPUs that the windows of steps state.
    """
    if sensors.least_power_w < 0:  # infinite if no window states a power
        yield Fault(_line(run), f"a step_window with a power of {six_digits(sensors.least_power_w)} W")
    if sensors.least_memory_mib < 0:  # infinite if no window states it
        yield Fault(_line(run), f"a step_window that held {six_digits(sensors.least_memory_mib)} MiB of a GPU")
    telemetry = run.first_event(schema.TELEMETRY_SUMMARY)
    if not fits(schema.TelemetrySummary, telemetry.value):
        return
    temperature_c = telemetry.value["peak_gpu_temperature_c"]
    if temperature_c is not None and not 0 <= temperature_c <= _MOST_TEMPERATURE_C:
        yield Fault(telemetry.line, f"a GPU of {six_digits(temperature_c)} degrees C")
    cpu_share = telemetry.value["sampler_cpu_share"]
    if not 0 <= cpu_share <= _MOST_CPU_SHARE:
        yield Fault(telemetry.line, f"a sampler that took {six_digits(cpu_share)} of a CPU")


# --- data and epochs ---


def _wrong_passports(run: LoggedRun) -> Iterator[Fault]:
    """Yield a fault for each passport in the header that cannot be true of the data set, or that real data lack.

    A passport describes the files of a part of the data set: their number, the sum of their bytes and a SHA-256. The
    header may have four: `train` and `eval` of the data themselves, `train_source` and `eval_source` of the files that
    the data were packed from.

    Args:
        run: The facts that the log states of the run. Its header's section `dataset` must fit the schema.
    """
    dataset = run.header_section(schema.DATASET)
    for part in ("train", "eval"):
        yield from _wrong_passport_of_data(run, dataset, part)
    yield from _equal_digests(run, dataset, "train", "eval")
    yield from _equal_digests(run, dataset, "train_source", "eval_source")
    for name in ("train_source", "eval_source"):
        passport = dataset.get(name)  # None if the data were not packed
        if passport is not None and not _SHA256.fullmatch(passport["sha256"]):
            yield Fault(_line(run), f"dataset.{name} with the digest {printable(passport['sha256'])}")


def _wrong_passport_of_data(run: LoggedRun, dataset: JsonObject, part: str) -> Iterator[Fault]:
    """Yield a fault if a part of the data set has a passport that it cannot have, or lacks the one that it must have.

    Synthetic data must have none. Real data must have one, with as many files as samples, at least as many bytes as
    files, and a digest that has the form of a SHA-256.

    Args:
        run: The facts that the log states of the run.
        dataset: The header's section `dataset`.
        part: "train" or "eval".
    """
    passport = dataset.get(part)  # None if the header has none
    samples = dataset[f"{part}_samples"]
    if dataset["synthetic"]:
        if passport is not None:
            yield Fault(_line(run), f"dataset.{part} describes files, of a run on synthetic data")
    elif passport is None:
        yield Fault(_line(run), f"no dataset.{part}, which says what files a run on real data read")
    elif passport["files"] != samples:
        what = f"dataset.{part} has {passport['files']} files; dataset.{part}_samples is {samples}"
        yield Fault(_line(run), what)
    elif passport["bytes"] < passport["files"] or not _SHA256.fullmatch(passport["sha256"]):
        digest = printable(passport["sha256"])
        yield Fault(_line(run), f"dataset.{part} of {passport['bytes']} bytes with the digest {digest}")


def _equal_digests(run: LoggedRun, dataset: JsonObject, name: str, other_name: str) -> Iterator[Fault]:
    """Yield a fault if two passports have the same digest: then the training data were evaluated.

    Args:
        run: The facts that the log states of the run.
        dataset: The header's section `dataset`. It may lack either passport.
        name: The one passport, such as "train".
        other_name: The other passport, such as "eval".
    """
    passport = dataset.get(name)
    other = dataset.get(other_name)
    if passport is None or other is None:
        return
    if passport["sha256"] == other["sha256"]:
        what = f"dataset.{name} and dataset.{other_name} have one digest"
        yield Fault(_line(run), f"{what}: what was trained on was evaluated")


def _wrong_form(run: LoggedRun) -> Iterator[Fault]:
    """Yield a fault if the stated form of the training images is unknown or contradicts another entry of the header.

    The form is the kind of file that holds the images: files, recordio or tfrecord. The header's entry `dataset.train`,
    the passport of these files, states as `is_exact` whether the sizes that it sums are those of the images alone.
    `is_exact` must be true for files and recordio, and false for tfrecord, whose records hold more than the image.

    The first of these faults is yielded; there is none if the header states no form:

    - The form is not in schema.FORMS, the table of `is_exact` by form.
    - `dataset.train` states another `is_exact` than the table has for the form.
    - The form is files, although the header has `dataset.train_source`, which says what the data were packed from.

    Args:
        run: The facts that the log states of the run. Its header's section `dataset` must fit the schema.
    """
    dataset = run.header_section(schema.DATASET)
    form = dataset.get("form")
    if form is None:
        return
    passport = dataset.get("train")  # None of synthetic data
    is_exact_by_form = schema.FORMS  # such as "files": True
    if form not in is_exact_by_form:
        yield Fault(_line(run), f"dataset.form is {printable(form)}, none of {', '.join(is_exact_by_form)}")
    elif passport is not None and passport["is_exact"] != is_exact_by_form[form]:
        sizes = f"dataset.train has is_exact {printable(passport['is_exact'])}"
        yield Fault(_line(run), f"{sizes}, and dataset.form is {form}")
    elif form == "files" and dataset.get("train_source") is not None:
        yield Fault(_line(run), "dataset.train_source says what was packed, and dataset.form is files")


def _epochs_beyond_plan(run: LoggedRun, last_epoch: int) -> Iterator[Fault]:
    """Yield a fault if a run trained more epochs than it was to train at most.

    If the log states no limit above 0, there is no fault.

    Args:
        run: The facts that the log states of the run.
        last_epoch: The number of the last epoch that was trained; 0 if there is none.
    """
    setting = setting_of_epochs(run.settings)
    most_epochs: Any = run.settings.get(setting)
    is_limited = is_number(most_epochs) and most_epochs > 0
    if is_limited and last_epoch > most_epochs:
        line = run.stop.line if run.stop else None
        yield Fault(line, f"{last_epoch} epochs; {setting} is {printable(most_epochs)}")
