"""A published folder: what its table, its page and its signature are of the packages in it."""

import json
import subprocess
from pathlib import Path

from compliance import NOT_VERIFIED, TRADEMARK, UNVERIFIED
from compliance.submission.description import read_description
from compliance.submission.package import HASHES, MANIFEST, form_of
from compliance.submission.runs import sha256
from runlog import schema
from runlog.reader import Event, read_log
from runlog.text import printable
from runlog.verdict import Verdict, judged

PAGE, TABLE, PACKAGES = "index.html", "results.json", "packages"
SIGNATURE = f"{HASHES}.sig"
NAMESPACE = "paddle-reference"  # of the signatures: ssh-keygen(1), -n
# The lines that a time to train is made of.
_QUOTED = (schema.RUN_START.key, schema.EVAL_ACCURACY.key, schema.RUN_STOP.key)


_OF_MANIFEST = (
    *("organisation", "system", "benchmark", "division", "ruleset", "minutes"),
    *("scaling", "convergence", "commit"),
)
_OF_SYSTEM = {  # column: field of the description
    **{"nodes": "number_of_nodes", "accelerators_per_node": "accelerators_per_node"},
    **{"accelerator": "accelerator_model_name", "framework": "framework"},
}


def pages_of(root: Path) -> dict[str, str]:
    """The table of the packages in a published folder, and its page: self-contained, its script only sorts."""
    import jinja2

    rows, results = [], []
    for package in sorted(path.parent for path in (root / PACKAGES).glob(f"*/*/{MANIFEST}")):
        manifest = json.loads((package / MANIFEST).read_text(encoding="utf-8"))
        description = read_description(package / "systems" / f"{manifest['system']}.json")
        runs = manifest["runs"]
        row = {
            "package": package.relative_to(root).as_posix(),
            "id": sha256(package / HASHES),
            **{name: manifest[name] for name in _OF_MANIFEST},
            "status": UNVERIFIED,
            "runs": len(runs),
            "runs_that_count": sum(run["verdict"] == "pass" for run in runs),
            **{column: description[field] for column, field in _OF_SYSTEM.items()},
        }
        each = [run | {"lines": _lines(package / run["file"])} for run in runs]
        rows.append(row)
        results.append(row | {"each": each, "description": {name: said for name, said in description.items() if said}})
    for found in (rows, results):
        found.sort(key=lambda row: (row["benchmark"], row["division"], row["minutes"]))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["shown"] = lambda value: printable(value, 1000)
    # The JSON beside the page has all digits.
    environment.filters["rounded"] = lambda value: "not stated" if value is None else f"{value:.4f}"
    template, style = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("site.html", "page.css"))
    page = environment.from_string(template).render(
        style=style,
        results=results,
        form_of=form_of,
        not_verified=NOT_VERIFIED,
        trademark=TRADEMARK,
        mlperf=any(row["benchmark"] == "resnet" for row in rows),
    )
    return {TABLE: json.dumps({"results": rows}, indent=2) + "\n", PAGE: page}


def _lines(log: Path) -> list[tuple[int, str]]:
    """Number and text of the log's lines that its time and its quality are made of."""
    wanted = {entry.line for entry in read_log(log) if isinstance(entry, Event) and entry.key in _QUOTED}
    with log.open(encoding="utf-8", errors="replace") as stream:
        lines = ((number, line.rstrip("\n")) for number, line in enumerate(stream, 1) if number in wanted)
        return [(number, printable(line, 300)) for number, line in lines]


def signed(folder: Path, signers: Path | None) -> Verdict:
    signature = folder / SIGNATURE
    if not signature.is_file():
        return judged(SIGNATURE, False, "is missing", "a signature of one of the allowed signers")
    try:
        data = (folder / HASHES).read_bytes()
        if signers is None:
            found = ssh_keygen("check-novalidate", "-n", NAMESPACE, "-s", str(signature), data=data)
            return judged(SIGNATURE, True, f"{found} (nobody vouches for the key: give --signers)")
        who = ssh_keygen("find-principals", "-s", str(signature), "-f", str(signers)).splitlines()[0]
        found = ssh_keygen(*("verify", "-n", NAMESPACE, "-s", str(signature), "-f", str(signers), "-I", who), data=data)
    except ValueError as error:
        return judged(SIGNATURE, False, str(error))
    return judged(SIGNATURE, True, found)


def ssh_keygen(*arguments: str, data: bytes | None = None) -> str:
    """What `ssh-keygen -Y` prints. Raises ValueError where it refuses."""
    try:
        done = subprocess.run(
            ["ssh-keygen", "-Y", *arguments],
            input=data,
            stdin=None if data else subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise ValueError("ssh-keygen is not installed: apt-get install openssh-client") from None
    said = (done.stdout or done.stderr).decode("utf-8", "replace").strip()
    if done.returncode:
        raise ValueError(f"ssh-keygen -Y {arguments[0]}: {printable(said, 500)}")
    return printable(said, 500)
