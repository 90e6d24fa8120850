"""`python -m compliance publish`: one static page of packages that verify, together with the packages.

No result here was reviewed; the page names each as MLCommons' messaging guidelines ask.
"""

import argparse
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from compliance.submission.package import HASHES, MANIFEST, hashes
from compliance.submission.published_pages import PACKAGES, PAGE, TABLE, pages_of, published_name
from compliance.submission.verify import NAMESPACE, ssh_keygen, verify
from runlog.digits import counted
from runlog.text import printable
from runlog.verdict import FATAL


def command(options: argparse.Namespace) -> int:
    """Run `python -m compliance publish`: copy packages into a new folder, with a page and a table of their results.

    Args:
        options: Options of the command line: `folders` of the packages, the new folder `out`, `key` and `json`.

    Returns:
        The exit status: 0, or 1 if a package fails its verification; then nothing is written.

    Raises:
        ValueError: The command is used wrongly, as with an `out` that exists, or the key cannot sign.
    """
    out: Path = options.out
    for folder in options.folders:
        _refuse_if_no_package(folder)
        if out.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{out}: lies in the package {folder}, which is never altered: name another --out")
    failed_checks = _failed_checks(options.folders)
    if failed_checks:
        for line in failed_checks:
            print(f"refused: {printable(line, 5000)}")
        return 1
    if out.exists() or out.is_symlink():
        raise ValueError(f"{out}: exists; what was published is never overwritten, name another --out")

    _write_site(options.folders, out, options.key)
    print((out / TABLE).read_text(encoding="utf-8") if options.json else _summary(out), end="")
    return 0


def _write_site(folders: Sequence[Path], out: Path, key: Path | None) -> None:
    """Write packages, with a table, a page and hashes, into a new folder.

    The folder is built next to its place and renamed at the end, so it is never there half done.

    Args:
        folders: Folders of the packages.
        out: The new folder.
        key: File of the SSH key that signs the hashes; None leaves them unsigned.

    Raises:
        ValueError: The key cannot sign, or a package is given twice.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    # The folder is built next to `out` and renamed at the end, so it is never there half done.
    with tempfile.TemporaryDirectory(dir=out.parent, prefix="publishing-") as scratch:
        stage = Path(scratch) / "site"
        _copy_packages(folders, stage)
        for name, text in pages_of(stage).items():
            (stage / name).write_text(text, encoding="utf-8")
        (stage / HASHES).write_text(hashes(stage), encoding="utf-8")
        if key:
            ssh_keygen("sign", "-f", str(key), "-n", NAMESPACE, str(stage / HASHES))
        stage.rename(out)


def _refuse_if_no_package(folder: Path) -> None:
    """Raise ValueError if a path is not the folder of a package."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no folder: give the folder ORG of a package")
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{folder}: no {MANIFEST} in it: give the folder ORG of a package")


def _failed_checks(folders: Sequence[Path]) -> list[str]:
    """Verify packages again, and return a line for each failed check; empty if all packages verify.

    Args:
        folders: Folders of the packages.
    """
    failures = []
    for folder in folders:
        for answer in verify(folder):
            if answer.status == FATAL:
                failures.append(f"{folder}: {answer.check}: {answer.found}")
    return failures


def _copy_packages(folders: Sequence[Path], stage: Path) -> None:
    """Copy packages into a folder, each to packages/ID/ORG in it.

    ID is the beginning of the package's id, the SHA-256 of its list of hashes. ORG is the name of the package's folder.

    Args:
        folders: Folders of the packages.
        stage: The folder that gets the copies.

    Raises:
        ValueError: Two packages have the same ID and the same ORG. Copies that were made before stay.
    """
    for folder in folders:
        package = folder.resolve()
        package_id = published_name(package)
        copy = stage / PACKAGES / package_id / package.name
        if copy.exists():
            raise ValueError(f"{folder}: the same package as another one that was given")
        shutil.copytree(package, copy)


def _summary(out: Path) -> str:
    """Return a line that counts the published results by their status, and the notes that must be shown with them."""
    table = json.loads((out / TABLE).read_text(encoding="utf-8"))
    counts = Counter(result["status"] for result in table["results"])
    kinds = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    results = counted(len(table["results"]), "result")
    return "\n".join([f"{out / PAGE}: {results} ({kinds})", *table["footnotes"]]) + "\n"
