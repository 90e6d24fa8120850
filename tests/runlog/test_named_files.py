"""What a user names is refused in one line where it cannot be opened, by each command and each option."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import compliance.__main__ as compliance
import scoring.__main__ as scoring
from harness.hosts import hosts_of_cluster, hosts_of_file
from launch import nodes
from launch.ends import NodeError
from runlog import named_files
from tests import jobs
from tools import pack, watch
from tools.acceptance import __main__ as acceptance
from tools.fleet import __main__ as fleet
from tools.tune import __main__ as tune

LOOP = "LOOP: is a link that leads back to itself: name the file that is meant"
PIPE = "PIPE: is a pipe, a socket or a device: name a file or a folder"
NO_FILE = "PIPE: is a pipe, a socket or a device: name a file"
ABSENT = "no such file or folder: check the path"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of things that no command can use; it is the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("LOOP").symlink_to("LOOP")
    os.mkfifo("PIPE")
    Path("empty").mkdir()
    Path("noise").write_bytes(bytes(range(256)) * 9)
    return tmp_path


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [
        (compliance.main, "check LOOP", LOOP),
        (compliance.main, "check PIPE", PIPE),
        (compliance.main, "check noise --system LOOP", LOOP),
        (compliance.main, "check noise --system absent", f"absent: {ABSENT}"),
        (compliance.main, "check noise --junit empty", "empty: is a folder: name a file"),
        (compliance.main, "check absent", "absent: no such file: check the path"),
        (compliance.main, "audit noise/deeper", "noise/deeper: a part of this path is not a folder: check the path"),
        (
            compliance.main,
            "verify absent",
            "absent: no folder: give the folder ORG of a package, or a published folder",
        ),
        (compliance.main, "publish empty --out site", "empty: no submission.json in it: give the folder ORG"),
        (compliance.main, "package noise --org O --system s --out PIPE", PIPE),
        (scoring.main, "report noise --findings PIPE", PIPE),
        (scoring.main, "report noise --html LOOP", LOOP),
        (scoring.main, "score absent --protocol window", f"absent: {ABSENT}"),
        (scoring.main, f"score {'x' * 300} --protocol window", "longer than the system allows"),
        (watch.main, "PIPE --once", PIPE),
        (watch.main, "noise --once", "noise: has no line of a training log: give a result_*.txt"),
        (fleet.main, "absent", f"absent: {ABSENT}; give the fleet.json of a --fleet"),
        (fleet.main, "noise --baseline PIPE", PIPE),
        (pack.main, "PIPE packed", PIPE),
        (pack.main, "empty LOOP", LOOP),
        (pack.main, "empty --lists --labels PIPE", PIPE),
        (pack.main, "empty --lists", "empty/train: no such folder: SOURCE must hold the class folders train/<class>/"),
        (pack.main, "empty packed --labels noise", "--labels goes with --lists alone: give --lists SOURCE --labels"),
        (tune.main, "--dry-run --folder PIPE", PIPE),
        (tune.main, "--dry-run --folder noise", "--folder noise: a part of this path is not a folder: check the path"),
        (acceptance.main, "--report LOOP", LOOP),
        (acceptance.main, "--report absent", f"absent: {ABSENT}"),
        (acceptance.main, "--report empty", "empty: no file of an acceptance in it: give the folder"),
    ],
)
def test_what_cannot_be_opened_is_one_line(main: Callable[[], int], words: str, message: str) -> None:
    done = jobs.called(main, *words.split())
    jobs.refused(done, message)
    assert "Errno" not in done.stderr and done.stdout == ""


def test_a_name_with_a_line_break_is_one_line_too() -> None:
    jobs.refused(jobs.called(pack.main, "ab\nsent", "packed"), "ab sent: no such folder: give the folder")


def test_a_name_keeps_its_blanks_in_a_message() -> None:
    """Several became one, and an ideographic space one of ASCII, so that no file had the name in the message."""
    jobs.refused(jobs.called(pack.main, "a  b\u3000c", "packed"), "error: a  b\u3000c: no such folder")


def test_a_terminal_obeys_no_name() -> None:
    jobs.refused(jobs.called(pack.main, "a\x1b[31m\x9b", "packed"), r"error: a\x1b[31m\x9b: no such folder")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("LOOP", LOOP),
        ("PIPE", NO_FILE),
        ("absent", f"absent: {ABSENT}"),
        ("comments", "comments: names no host: give a file with a host's name in each line"),
        (
            "ports",
            "ports: 'a:22' is not a name or IPv4 address of a machine: write that alone; DGXNGPU is the number "
            "of a node's ranks, SSH_PORT its port",
        ),
        ("row", "row: names several hosts in one line: give each a line of its own"),
        ("empty", "empty: is a folder: name a file"),
        ("noise", "noise: is not text: give a file with a host's name in each line"),
    ],
)
def test_a_file_of_hosts_that_is_none_is_one_line(name: str, message: str) -> None:
    Path("comments").write_text("# none yet\n\n")
    Path("ports").write_text("a:22 slots=8\n")
    Path("row").write_text("a b\n\n")
    with pytest.raises(ValueError, match=f"^HOSTFILE={message}$"):
        hosts_of_file(Path(name))


def test_a_file_of_hosts_has_one_in_a_line() -> None:
    Path("hosts").write_text("# of the rack\na slots=8\n\n  b  # the second one\n")
    assert hosts_of_file(Path("hosts")) == ["a", "b"]
    Path("windows").write_bytes(b"\xef\xbb\xbfa slots=8\r\nb\r\n")
    assert hosts_of_file(Path("windows")) == ["a", "b"]
    Path("groups").write_text("a rack1\nb rack1\n")
    assert hosts_of_file(Path("groups")) == ["a", "b"]
    for only in ("a slots=8", "a slots = 8", "a 8"):
        Path("one").write_text(only)
        assert hosts_of_file(Path("one")) == ["a"]


def test_a_pipe_is_no_key(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NodeError) as refused:
        nodes.copy_key(Path("PIPE"), folder, "me")
    assert refused.value.code == 2
    assert capfd.readouterr().err == f"nodes.py: JOB_KEY={NO_FILE}\n"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("train_list.txt", "train_list.txt: is a pipe, a socket or a device: name a file"),
        ("train.rec", "train.rec: is a pipe, a socket or a device: name a file"),
        ("train/b/1.jpg", "train/b: this class folder has no image but 1 other file, as set/train/b/1.jpg"),
    ],
)
def test_a_pipe_in_a_data_set_is_no_part_of_it(part: str, message: str) -> None:
    """To open it would wait for ever; one that a list names stands for a disk that hangs, and is read."""
    for name in ("train/a/0.jpg", "val/a/0.jpg"):
        Path("set", name).parent.mkdir(parents=True)
        Path("set", name).write_bytes(b"image")
    Path("set/train/b").mkdir()
    os.mkfifo(Path("set", part))
    jobs.refused(jobs.called(pack.main, "set", "--lists" if "/" in part else "--sizes"), message)


def test_streams_of_the_shell_and_what_is_not_there_yet_are_accepted() -> None:
    reader, writer = os.pipe()
    for path in (f"/dev/fd/{reader}", "/dev/null", "absent/deeper", "noise", "empty"):
        named_files.refuse_unusable(Path(path))
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("count", [1, 3])
def test_a_file_of_hosts_names_as_many_as_the_job_has_nodes(count: int, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("a\nb slots=8\n# c\n")
    said = f"HOSTFILE={hostfile}: names 2 nodes, but DGXNNODES is {count}: set DGXNNODES=2, or correct the file"
    with pytest.raises(ValueError, match=said):
        hosts_of_cluster(SimpleNamespace(hostfile=str(hostfile), hosts="", dgxnnodes=count))  # type: ignore[arg-type]
