"""`python -m compliance system`: what the machine and a log say, and what is asked for."""

import json
import os
import re
import socket
from pathlib import Path

import pytest
from mlperf_logging.system_desc_checker import system_desc_checker

from compliance.check import check_file
from compliance.official.tools import ask_tool
from compliance.rules import load
from compliance.submission.system import FIELDS, from_log, from_machine
from tests import make_log
from tests.compliance.altered import Altered, answer, compliance, foreign, write
from tests.compliance.packages import description
from tests.compliance.test_check import check, rules_broken
from tests.harness.recorded import A100, V100, recorded_nvml
from tests.jobs import refused

ASKED = (
    *("host_processor_frequency", "host_storage_type", "host_storage_capacity", "host_networking"),
    *("host_networking_topology", "host_memory_configuration", "host_processor_interconnect", "cooling"),
    *("host_processors_per_node", "host_processor_core_count", "host_processor_vcpu_count", "host_processor_caches"),
    "operating_system",
)
GIVEN = [f"--set={name}=1" for name in ASKED]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write(tmp_path, make_log.run())[0]


def test_the_fields_are_those_that_the_official_checker_asks_for(tmp_path: Path) -> None:
    complete = dict.fromkeys(FIELDS, "") | {"status": "Preview"}
    assert len(FIELDS) == 33
    for missing in (None, *FIELDS):
        fields = {name: value for name, value in complete.items() if name != missing}
        (tmp_path / "x.json").write_text(json.dumps(fields))
        valid, *_ = system_desc_checker.check_system_desc(str(tmp_path / "x.json"), "training", "4.0.0")
        assert valid == (missing is None)


def test_the_official_tools_read_a_description_in_utf_8_by_any_locale(tmp_path: Path, monkeypatch) -> None:
    fields = dict.fromkeys(FIELDS, "") | {"status": "Preview", "cooling": "Lüfter"}
    (tmp_path / "x.json").write_text(json.dumps(fields, ensure_ascii=False), encoding="utf-8")
    for name, value in (("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")):  # ASCII
        monkeypatch.setenv(name, value)
    said = ask_tool("system_desc_checker", str(tmp_path / "x.json"), "training", "4.0.0")
    assert said.status == "ok", said.found


def test_what_neither_the_log_nor_its_own_machine_says_is_asked_for(log: Path, tmp_path: Path) -> None:
    assert socket.gethostname() != "node0"  # so this machine's fields are not that log's
    out = tmp_path / "systems" / "CPU.json"
    status, _, message = compliance("system", "--out", out, "--log", log)
    assert status == 2 and message.count("\n") == 1 and "submitter" not in message
    assert all(name in message for name in ASKED)
    assert not out.exists()


def test_a_description_from_a_log_and_what_was_given(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "systems" / "CPU.json"
    given = [f"--set={name}=" for name in ASKED if name != "host_processors_per_node"]
    given += ["--set=cooling=air = fans", "--set=host_processors_per_node=1"]
    origins = answer("system", "--out", out, "--log", log, *given)["origins"]
    description = json.loads(out.read_text())
    assert tuple(description) == FIELDS
    assert {name: description[name] for name in FIELDS if origins[name] == "found" and description[name]} == {
        "submitter": "Example",
        "division": "open",
        "status": "Research, Development, or Internal (RDI)",
        "system_name": "CPU",
        "number_of_nodes": "1",
        "host_processor_model_name": "Example CPU 9000",
        "host_memory_capacity": "23.4 GiB",
        "accelerators_per_node": "0",
        "framework": "paddlepaddle 2.6.2",
        "other_software_stack": "paddlepaddle-gpu 2.6.2; mlperf-logging 4.1.68",
    }
    assert description["cooling"] == "air = fans"
    valid, *_ = system_desc_checker.check_system_desc(str(out), "training", "4.0.0")
    assert valid
    assert compliance("check", log, "--system", out).returncode == 0
    refused(compliance("system", "--out", out, "--log", log, *given), "exists")


@pytest.mark.parametrize(
    ("devices", "counts"),
    [(16, {"number_of_nodes": "2", "accelerators_per_node": "8"}), (-16, {})],  # a damaged log has no such count
)
def test_accelerators_are_counted_by_the_node(devices: int, counts: dict[str, str], tmp_path: Path) -> None:
    [log] = write(tmp_path, make_log.run(devices=16, summary={"nodes": 2, "devices": devices}))
    gpus = [{"name": "Example GPU", "memory_gib": 32}] * 8
    text = log.read_text()
    assert '"gpus": []' in text
    log.write_text(text.replace('"gpus": []', f'"gpus": {json.dumps(gpus)}'))
    found = from_log(check_file(log, load("4.0.0")).run)
    names = ("number_of_nodes", "accelerators_per_node", "accelerator_model_name")
    stated = {name: found[name] for name in names if name in found}
    assert stated == {"accelerator_model_name": "Example GPU", **counts}


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("colling=air", "must be FIELD=VALUE"),
        ("cooling", "must be FIELD=VALUE"),
        ("status=research", "must be one of"),
        ("division=Open", "must be one of 'closed', 'open'"),
        ("number_of_nodes=one", "must be a whole number"),
    ],
)
def test_a_wrong_setting_is_refused(setting: str, says: str, log: Path, tmp_path: Path) -> None:
    refused(compliance("system", "--out", tmp_path / "x.json", "--log", log, *GIVEN, "--set", setting), says)


def test_what_is_no_plain_text_is_shown_escaped_or_refused(log: Path, tmp_path: Path) -> None:
    out, text = tmp_path / "x.json", log.read_text()
    arguments = ("system", "--out", out, "--log", log, "--force", *GIVEN)
    log.write_text(text.replace("Example CPU 9000", r"\u001b[2JCPU"))
    status, shown, _ = compliance(*arguments)
    assert status == 0 and "\\x1b[2JCPU\n" in shown
    before = out.read_bytes()
    log.write_text(text.replace("Example CPU 9000", r"CPU \ud800"))
    refused(compliance(*arguments), r"host_processor_model_name CPU \ud800: is not text")
    assert out.read_bytes() == before


@pytest.mark.parametrize("field", ["host_processors_per_node", "host_processor_core_count"])
def test_a_number_of_thousands_of_digits_contradicts_the_log(field: str, tmp_path: Path) -> None:
    [log] = write(tmp_path, make_log.run())
    numbers = {"host_processors_per_node": "1", "host_processor_core_count": "1", field: "9" * 5000}
    [file] = answer("check", log, "--system", description(tmp_path, **numbers), status=1)["files"]
    [finding] = [finding for finding in file["findings"] if finding["severity"] == "error"]
    assert finding["rule"] == "system-description" and "2 cores a node" in finding["actual"]


def test_an_organisation_that_was_not_stated_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(make_log.run(org="not stated"))
    done = compliance("system", "--out", tmp_path / "x.json", "--log", tmp_path / "log", *GIVEN)
    refused(done, "cannot be found out here: submitter;")


DESCRIBED_A100 = {"accelerator_model_name": "NVIDIA A100-SXM4-80GB", "accelerators_per_node": "2"}


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"submitter": "Other"}, False),
        ({"division": "closed"}, False),
        ({"status": "research"}, True),  # the log's own word
        ({"status": "research, development, or internal (RDI)"}, True),
        ({"status": "Preview"}, False),
        ({"status": "Available cloud"}, False),
        ({"number_of_nodes": "2"}, False),
        ({"accelerators_per_node": "8"}, False),
        ({"framework": "PaddlePaddle 3.0"}, False),
        ({"host_processor_core_count": "999"}, False),
        ({"host_processor_core_count": "1"}, True),  # 2 threads
        ({"host_processors_per_node": ""}, True),
        ({"host_processors_per_node": "0"}, False),
        ({"host_processor_core_count": "0"}, False),
        ({"host_memory_capacity": "9 TB"}, False),
        ({"host_memory_capacity": "25 GB"}, True),
        ({"operating_system": "Windows 3.1"}, False),
        ({"operating_system": "Debian 12, Linux 6.1"}, True),
        ({"host_processor_model_name": "Other CPU 80"}, False),
        ({"host_processor_model_name": "Example(R) 9000 @ 3 GHz"}, True),
        ({"accelerator_model_name": "NVIDIA A100-SXM4-80GB (400 W)", "accelerators_per_node": "2"}, True),
        ({"accelerator_model_name": "NVIDIA A100-SXM4-40GB", "accelerators_per_node": "2"}, False),
        ({"accelerator_model_name": "NVIDIA A100-SXM4-80GB", "accelerators_per_node": "8"}, False),
        ({"accelerator_model_name": "NVIDIA A100-SXM4-80GB"}, False),  # of a run on CPUs
        ({"accelerator_model_name": "N/A"}, True),
        ({**DESCRIBED_A100, "accelerator_memory_capacity": "80 GB HBM2e"}, True),
        ({**DESCRIBED_A100, "accelerator_memory_capacity": "40GB"}, False),
    ],
)
def test_log_and_system_description_must_agree(changes, good: bool, tmp_path: Path) -> None:
    gpus = json.dumps([{"name": "NVIDIA A100-SXM4-80GB", "memory_gib": 80.0, "driver": "520.61.05"}] * 2)
    text = make_log.run()
    [path] = write(tmp_path, text.replace('"gpus": []', f'"gpus": {gpus}') if len(changes) > 1 else text)
    status, [file] = check(path, "--system", description(tmp_path, **changes))
    assert (status, rules_broken(file)) == ((0, set()) if good else (1, {"system-description"}))


def test_what_a_node_does_not_state_is_not_called_none(tmp_path: Path) -> None:
    text = re.sub('"(cores|kernel)": [^,}]*, ', "", make_log.run())
    [path] = write(tmp_path, text)
    wrong = {"host_processor_core_count": "0", "operating_system": "Windows 3.1"}
    _, [file] = check(path, "--system", description(tmp_path, **wrong))
    contradictions = [finding["actual"] for finding in file["findings"] if finding["rule"] == "system-description"]
    assert "cores, whose number the log does not state" in str(contradictions)
    assert "None" not in str(contradictions)


@pytest.mark.parametrize(("faster", "found"), [(1, False), (10, True)])
def test_no_run_is_faster_than_its_described_cards(faster: int, found: bool, tmp_path: Path) -> None:
    """A published rate of 8 A100, 26,500 images/s, and ten times that; of a log without epochs, too."""
    log = Altered(foreign(make_log.closed_run(epoch_ms=48_300 // faster))).drop_all("epoch_start", "epoch_stop")
    [path] = write(tmp_path, log.text)
    for card, known in (("NVIDIA A100-SXM4-80GB", True), ("Other 9", False)):
        cards = {"accelerators_per_node": "8", "accelerator_model_name": card}
        _, [file] = check(path, "--system", description(tmp_path, division="closed", **cards))
        assert ("system-description" in rules_broken(file)) == (found and known)


def test_a_file_that_is_no_log_is_refused_for_that(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("hello\n")
    refused(
        compliance("system", "--out", tmp_path / "x.json", "--log", tmp_path / "log"),
        "log: no log of a run (MLLOG events: none)",
    )
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / "link"
    link.symlink_to(tmp_path / "log")
    refused(
        compliance("system", "--out", tmp_path / "x.json", "--log", link), "link: no log of a run (MLLOG events: none)"
    )


def test_this_machine() -> None:
    found = from_machine(Path("/"))
    assert set(found) <= set(FIELDS)
    assert all(isinstance(value, str) for value in found.values())
    kernel = os.uname().release
    assert found.get("operating_system", kernel).endswith(kernel)


@pytest.mark.parametrize(
    ("lacks", "unknown"),
    [
        ("", set()),
        ("nvmlDeviceGetMaxPcieLinkWidth", {"accelerator_host_interconnect"}),
        ("nvmlDeviceGetMaxClockInfo", {"accelerator_frequency"}),
        ("nvmlDeviceGetHandleByIndex", {"accelerator_host_interconnect", "accelerator_frequency"}),
        ("nvmlDeviceGetCount", set()),
        ("nvmlShutdown", set()),
    ],
)
def test_the_accelerators_of_a_machine_but_for_what_an_older_driver_lacks(lacks: str, unknown: set[str]) -> None:
    """pynvml raises NVMLLibraryMismatchError, no NVMLError, where libnvidia-ml lacks a symbol."""
    whole = {"accelerator_host_interconnect": "PCIe gen 4 x16", "accelerator_frequency": "1410 MHz (highest)"}
    with recorded_nvml(A100, A100, lacks=(lacks,)):
        found = {name: value for name, value in from_machine(Path("/")).items() if name.startswith("accelerator")}
    assert found == {name: value for name, value in whole.items() if name not in unknown}
    with recorded_nvml(V100):
        assert from_machine(Path("/"))["accelerator_interconnect"] == ""


def test_a_machine_of_two_sockets(tmp_path: Path) -> None:
    cpus = [
        f"processor : {n}\nmodel name : Big CPU\nphysical id : {n // 8}\ncore id : {n % 4}\nflags : fpu"
        for n in range(16)
    ]
    _write(tmp_path, "proc/cpuinfo", "\n\n".join(cpus))
    _write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3500000")
    for index, (level, kind, size) in enumerate([(1, "Data", "32K"), (2, "Unified", "512K")]):
        for name, value in (("level", level), ("type", kind), ("size", size)):
            _write(tmp_path, f"sys/devices/system/cpu/cpu0/cache/index{index}/{name}", str(value))
    for disk in ("nvme0n1", "nvme1n1"):
        _write(tmp_path, f"sys/block/{disk}/size", "7501476528")
        _write(tmp_path, f"sys/block/{disk}/removable", "0")
        _write(tmp_path, f"sys/block/{disk}/device/model", "x")
    _write(tmp_path, "sys/block/loop0/size", "100")
    for port in range(9):
        _write(tmp_path, f"sys/class/infiniband/mlx5_{port}/ports/1/rate", "200 Gb/sec (4X HDR)")
        _write(tmp_path, f"sys/class/infiniband/mlx5_{port}/ports/1/state", "4: ACTIVE" if port else "1: DOWN")
    _write(tmp_path, "etc/os-release", 'NAME="X"\nPRETTY_NAME="X Linux 1"\n')
    found = from_machine(tmp_path)
    assert {name: found[name] for name in FIELDS if name.startswith("host_") and name in found} == {
        "host_processors_per_node": "2",
        "host_processor_core_count": "4",
        "host_processor_vcpu_count": "",
        "host_processor_frequency": "3500 MHz (highest)",
        "host_processor_caches": "L1d 32KiB, L2 512KiB",
        "host_storage_type": "NVMe SSD",
        "host_storage_capacity": "3841 GB, 3841 GB",
        "host_networking": "8x InfiniBand or RoCE 200 Gb/sec (4X HDR)",
    }
    assert found["operating_system"].startswith("X Linux 1, Linux ")
    assert "host_processor_interconnect" not in found  # two sockets: somebody must say how they are joined


def _write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
