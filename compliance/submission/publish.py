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
from runlog.text import printable
from runlog.verdict import FATAL


def command(options: argparse.Namespace) -> int:
    """Run `python -m compliance publish`: copy packages into a new folder, with a page and a table of their results.

    Returns 1, and writes nothing, if a package fails `verify`. Raises ValueError for wrong use, such as a folder --out
    that exists, or if the key cannot sign.
    """
    out: Path = options.out
    for folder in options.folders:
        _refuse_if_no_package(folder)
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
    """Write the packages in `folders`, with a table, a page and hashes, into the new folder `out`.

    `key` signs the hashes; None leaves them unsigned. Raises ValueError if it cannot sign, or if a package is given
    twice.
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
    """Verify the packages in `folders`. Return a line for each failed check; empty if all packages verify."""
    failures = []
    for folder in folders:
        for answer in verify(folder):
            if answer.status == FATAL:
                failures.append(f"{folder}: {answer.check}: {answer.found}")
    return failures


def _copy_packages(folders: Sequence[Path], stage: Path) -> None:
    """Copy each package to a folder below `stage` that is named by its id. Raises ValueError if two are the same."""
    for folder in folders:
        package = folder.resolve()
        copy = stage / PACKAGES / published_name(package) / package.name
        if copy.exists():
            raise ValueError(f"{folder}: the same package as another one that was given")
        shutil.copytree(package, copy)


def _summary(out: Path) -> str:
    """Return a line that counts the published results by their status, and the notes that must be shown with them."""
    table = json.loads((out / TABLE).read_text(encoding="utf-8"))
    counts = Counter(result["status"] for result in table["results"])
    kinds = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return "\n".join([f"{out / PAGE}: {len(table['results'])} results ({kinds})", *table["footnotes"]]) + "\n"
