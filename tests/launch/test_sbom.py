"""The image's bill of materials: by cyclonedx-py, with every package of its locks and each of their hashes."""

import json
import re
from pathlib import Path

from tests import jobs
from tests.jobs import printed
from tests.needs import need


def test_every_package_of_the_locks_is_in_it(tmp_path: Path) -> None:
    tool = jobs.REPOSITORY / ".venv/bin/cyclonedx-py"
    need(tool.exists(), f"{tool}: launch/setup.sh run dev installs it")
    printed("launch/sbom.sh", str(tmp_path / "sbom.json"))
    found = json.loads((tmp_path / "sbom.json").read_text())
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    locks = "".join((jobs.REPOSITORY / f"locks/{name}.lock").read_text() for name in ("run", "cuda"))
    purls = {f"pkg:pypi/{name}@{version}" for name, version in re.findall(r"^(\S+)==(\S+)", locks, re.M)}
    assert {component["purl"] for component in found["components"]} == purls
    references = [reference for component in found["components"] for reference in component["externalReferences"]]
    hashes = {entry["content"] for reference in references for entry in reference.get("hashes", ())}
    assert hashes == set(re.findall(r"--hash=sha256:(\w+)", locks))
