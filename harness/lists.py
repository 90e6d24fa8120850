"""Reads the list files of data sets, tells which folders and files are there, and names forms that are not read."""

import os
from pathlib import Path
from typing import NamedTuple

from runlog import named_files

TABLE_ENDS = (".parquet", ".arrow")  # of Hugging Face's files, which are not read
UTF8_MARK = b"\xef\xbb\xbf"  # which Windows' editors put before a text
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_ABSENT = "is absent"  # the fault of a path at which there is nothing


def require_data_folder(root: Path) -> None:
    """Raise ValueError if there is nothing at the path that DATADIR names.

    A file at the path is accepted, too.

    Args:
        root: The folder of the data set, as DATADIR names it.

    Raises:
        ValueError: There is nothing at the path. If the path is relative, the message adds the working directory, from
            which the path counts.
        OSError: The system refuses to look at the path.
    """
    if root.exists():
        return
    where = "" if root.is_absolute() else f" in {Path.cwd()}, from which it counts"
    raise ValueError(f"DATADIR={root}: no such folder{where}: set DATADIR to the folder of the data set")


def require_no_table(root: Path, part: str, *, instead: str) -> None:
    """Raise ValueError if a part of a data set has a Parquet or Arrow file, as Hugging Face's data sets have.

    For the part "train" these files are looked for below `root`: train*.parquet, data/train*.parquet,
    train*/*.parquet, and the same with ".arrow". For the part "val" the names begin with "val", as "validation" does.

    Args:
        root: Folder of the data set.
        part: "train" or "val".
        instead: Words that say in which form the workload reads the part, such as "save its images into class folders".

    Raises:
        ValueError: A file is found. The message names the file and says what to do, with the words `instead`.
    """
    start_of_name = "train" if part == "train" else "val"  # "val" also finds "validation"
    for pattern in (f"{start_of_name}*", f"data/{start_of_name}*", f"{start_of_name}*/*"):
        for end in TABLE_ENDS:
            table = min(root.glob(pattern + end), default=None)
            if table is not None:
                raise ValueError(
                    f"{table}: is a file of Hugging Face's datasets, and {end[1:]} is not read: {instead}, or set "
                    "DATADIR to a folder in a form of docs/data.md"
                )


class Line(NamedTuple):
    """A line of a list that is not blank."""

    where: str  # file and line number, for a message
    text: str  # without blanks at its ends


def lines(list_file: Path) -> list[Line]:
    """Return the lines of a list file that are not blank, each with its place for messages.

    Args:
        list_file: A text file with a sample in each line. A UTF-8 mark at its start is passed over.

    Returns:
        The lines without blanks at their ends. The place is as "train_list.txt:7", with the path as given.

    Raises:
        ValueError: Every line is blank, the file is UTF-16 or has a NUL byte, or the path is that of a folder, a
            pipe or a device.
        OSError: The file is absent or cannot be read.
    """
    named_files.require_file_if_present(list_file)
    content = list_file.read_bytes().removeprefix(UTF8_MARK)
    if content.startswith(UTF16_MARKS) and _is_utf16(content):
        raise ValueError(f"{list_file}: is UTF-16, as a spreadsheet saves it: save it as UTF-8 text")
    if b"\0" in content:
        raise ValueError(f"{list_file}: is not text: give a list with a sample in each line")
    listed = []
    for number, line in enumerate(content.splitlines(), 1):
        text = os.fsdecode(line).strip()  # a name need not be UTF-8
        if text:
            listed.append(Line(f"{list_file}:{number}", text))
    if not listed:
        raise ValueError(f"{list_file}: the list is empty: DATADIR must hold a data set")
    return listed


def _is_utf16(content: bytes) -> bool:
    """Return whether bytes are text in UTF-16: they decode, to a text without NUL.

    Args:
        content: Bytes that begin with a mark of UTF-16. Binary data may begin so, too.
    """
    try:
        text = content.decode("utf-16")
    except UnicodeDecodeError:
        return False
    return "\0" not in text


def unquoted(path: str) -> str:
    """Take off the quotation marks that a spreadsheet puts around a path."""
    if len(path) > 2 and path.startswith('"') and path.endswith('"'):
        return path[1:-1]
    return path


class Folders:
    """Tells which files are there, by one listing of each folder.

    To ask for each file costs minutes on a network disk.
    """

    def __init__(self, root: Path) -> None:
        """Prepare to look; a folder is listed when it is first asked about.

        Args:
            root: The folder that paths are relative to.
        """
        self._root = root
        # Beginnings of absolute paths below the root, as a list may have them. DATADIR may be relative, or a link to a
        # folder that has another path on each node.
        self._absolute_starts = (f"{root.absolute()}/", f"{root.resolve()}/")
        # {folder: {name: why the name is not a file, or ""}}, of the folders that were asked about
        self._faults_by_folder: dict[str, dict[str, str]] = {}

    def has(self, path: str) -> bool:
        """Return whether there is a file at a path, absolute or relative to the root."""
        return not self.fault(path)

    def fault(self, path: str) -> str:
        """Return why there is no file at a path, such as "is absent" or "is a folder, not a file"; "" if there is a
        file.

        The folder of the path is listed when it is first asked about, and the listing is kept: later changes of the
        folder are not seen.

        Args:
            path: A path, absolute or relative to the root of the data set.

        Raises:
            OSError: The folder of the path cannot be listed.
        """
        folder, _, name = path.rpartition("/")  # "val" and "1.jpg" of "val/1.jpg"; "" and "1.jpg" of "1.jpg"
        if folder == "" and path.startswith("/"):  # "/1.jpg" is in Linux's root, not in the data set's
            folder = "/"
        if folder not in self._faults_by_folder:
            # By pathlib, if `_root` is /set: "val" gives /set/val, "" gives /set, and an absolute "/data" gives /data.
            self._faults_by_folder[folder] = self._faults_in(self._root / folder)
        fault_by_name = self._faults_by_folder[folder]  # as {"1.jpg": "", "old": "is a folder, not a file"}
        return fault_by_name.get(name, _ABSENT)  # no such name in the folder, or no such folder: "is absent"

    def end_that_is_there(self, path: str) -> str:
        """Return the longest end of an absent path that is the path of a file below the root; "" if there is none.

        For example "train/1.jpg" of "/home/me/set/train/1.jpg" or "set/train/1.jpg", as lists have it that were made on
        another machine, or in the folder above.

        Args:
            path: A path, absolute or relative to the root.
        """
        if not self._is_absent(path):
            return ""
        parts = path.replace("\\", "/").strip("/").split("/")
        for first in range(len(parts)):
            end = "/".join(parts[first:])
            if self.has(end):
                return end
        return ""

    def _is_absent(self, path: str) -> bool:
        """Return whether nothing is at a path; false if a folder or a broken link is there, which is not a file."""
        return self.fault(path) == _ABSENT

    def relative(self, path: str) -> str:
        """Return a path from a list relative to the root: "/data/val/1.jpg" becomes "val/1.jpg" if the root is /data.

        If /data is a link to /mnt/disk1, so does "/mnt/disk1/val/1.jpg".

        Backslashes, as in `val\\1.jpg` of a list from Windows, become slashes if that gives the path of a file, and
        nothing is at the path as written: on Linux the name of a file may hold backslashes.

        Args:
            path: The path as the list has it. An absolute path outside the root stays absolute.
        """
        as_written = path
        for start in self._absolute_starts:
            as_written = as_written.removeprefix(start)
        with_slashes = as_written.replace("\\", "/")
        if with_slashes == as_written:
            return as_written
        if self._is_absent(as_written) and self.has(with_slashes):
            return with_slashes
        return as_written

    @staticmethod
    def _faults_in(folder: Path) -> dict[str, str]:
        """Map each name in a folder to the reason why it is not a file, or to "" if it is one.

        Args:
            folder: The folder. One that is absent has no names.

        Returns:
            {name: reason}, as {"a.jpg": "", "old": "is a folder, not a file"}.
        """
        faults: dict[str, str] = {}
        if not folder.is_dir():
            return faults
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink() and not Path(entry.path).exists():
                    faults[entry.name] = "is a link to a file that is absent"
                elif entry.is_dir():
                    faults[entry.name] = "is a folder, not a file"
                elif not entry.is_file():  # a reader of a pipe may wait for ever
                    faults[entry.name] = "is a pipe, a socket or a device, not a file"
                else:
                    faults[entry.name] = ""
        return faults
