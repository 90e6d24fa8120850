"""Publish: what verifies is shown as it is, anything altered afterwards is found, and the page reads everywhere."""

import html
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from compliance.submission import committed_code, package
from compliance.submission.published_pages import pages_of
from tests.browser import UNFOLD, Opened, opened  # noqa: F401
from tests.compliance.altered import answer, compliance
from tests.compliance.packages import in_text
from tests.jobs import refused, script

pytestmark = [pytest.mark.usefixtures("little_repository"), pytest.mark.xdist_group("package")]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    path.with_name("signers").write_text(f"bench@example.org {path.with_suffix('.pub').read_text()}")
    return path


@pytest.fixture(scope="module")
def site(built, little_code, key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("www") / "site"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(committed_code, "REPOSITORY", little_code[0])
        done = compliance("publish", built[0], "--out", out, "--key", key)
    assert done.returncode == 0 and f"{out / 'index.html'}: 1 result (1 no MLPerf result)\n" in done.stdout
    return out


def test_the_page_says_what_the_package_says_and_that_nobody_reviewed_it(site: Path, built) -> None:
    manifest = built[1]
    (row,) = json.loads((site / "results.json").read_text())["results"]
    assert row["minutes"] == manifest["minutes"]
    assert row["status"] == "no MLPerf result"
    page = (site / "index.html").read_text()
    assert f"{manifest['minutes']:.4f}</a>" in page
    for run in manifest["runs"]:
        lines = (site / row["package"] / run["file"]).read_text().splitlines()
        for number, line in enumerate(lines, 1):
            if '"run_stop"' in line:
                assert f"{number}: :::MLLOG" in page


def test_the_page_shows_300_characters_of_an_event_and_how_many_more_there_are(site: Path, tmp_path: Path) -> None:
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    [log] = copy.rglob("result_0.txt")
    text = log.read_text()
    [line] = [line for line in text.splitlines() if '"run_stop"' in line]
    for length, more in ((300, ""), (301, "… (1 more characters)")):
        longer = line[:-1].ljust(length - 1) + "}"  # blanks before the last brace
        log.write_text(text.replace(line, longer))
        page = html.unescape(pages_of(copy)["index.html"])
        assert f": {longer[:300]}{more}\n" in page


def test_it_verifies_signed_by_whom_one_trusts(site: Path, key: Path) -> None:
    signers = key.with_name("signers")
    checks = answer("verify", site, "--signers", signers)["checks"]
    assert "bench@example.org" in next(c["found"] for c in checks if c["check"] == "SHA256SUMS.sig")
    done = subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=site, check=False)
    assert done.returncode == 0
    other = signers.with_name("others")
    other.write_text(signers.read_text().replace("bench@", "other@"))
    assert compliance("verify", site, "--signers", other).returncode == 0  # the same key by another name
    other.write_text(signers.read_text().replace("bench@", "other@example.org,bench@"))
    assert compliance("verify", site, "--signers", other).returncode == 0  # the key has two names
    other.write_text(
        "bench@example.org ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGtlJvNGzH2qEYQx0v3o0N2cJ0dX3g8b2o3cQy2mC1aV\n"
    )
    assert compliance("verify", site, "--signers", other).returncode == 1
    [manifest] = site.rglob("submission.json")
    package = compliance("verify", manifest.parent, "--signers", signers)
    assert package.returncode == 2 and "a package, which nobody signs: leave out --signers" in package.stderr


def _written_anew(site: Path) -> None:
    """Table and page by the packages that are there."""
    for name, text in pages_of(site).items():
        (site / name).write_text(text)


def _emptied(site: Path) -> None:
    shutil.rmtree(site / "packages")
    _written_anew(site)


def _twice(site: Path) -> None:
    """One result as two."""
    [package_folder] = (site / "packages").glob("*")
    shutil.copytree(package_folder, site / "packages" / "0123456789abcdef")
    _written_anew(site)


@pytest.mark.parametrize(
    ("alter", "check"),
    [
        (in_text("packages/*/Example/results/CPU/resnet/result_0.txt", "success", "aborted"), "SHA256SUMS"),
        (in_text("results.json", '"no MLPerf result"', '"verified"'), "results.json"),
        (in_text("index.html", "no MLPerf result", "a verified result"), "index.html"),
        (lambda site: (site / "more.html").write_text("more"), "contents"),
        (lambda site: (site / "packages/more.html").write_text("more"), "contents"),
        (lambda site: shutil.rmtree(site / "packages"), "results.json"),
        (_emptied, "contents"),
        (_twice, "contents"),
    ],
)
def test_what_was_altered_afterwards_is_found(alter: Callable[[Path], None], check: str, site: Path, tmp_path) -> None:
    """As left, and by who lists the hashes anew and takes the signature away."""
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    alter(copy)
    for wanted in ("SHA256SUMS", check):
        checks = answer("verify", copy, status=1)["checks"]
        assert wanted in {c["check"] for c in checks if c["status"] == "fatal"}
        (copy / "SHA256SUMS.sig").unlink(missing_ok=True)
        (copy / "SHA256SUMS").write_text(package.hashes(copy))


def test_a_folder_that_nobody_signed_says_so_first(site: Path, tmp_path: Path) -> None:
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    (copy / "SHA256SUMS.sig").unlink()
    status, out, _ = compliance("verify", copy)
    assert status == 0 and "signed by nobody" in out.splitlines()[0]


def test_a_signature_without_what_it_signs_says_what_is_missing(site: Path, key: Path, tmp_path: Path) -> None:
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    (copy / "SHA256SUMS").unlink()
    for signers in ([], ["--signers", key.with_name("signers")]):
        checks = answer("verify", copy, *signers, status=1)["checks"]
        [signature] = [check for check in checks if check["check"] == "SHA256SUMS.sig"]
        assert (signature["status"], signature["found"]) == ("fatal", "signs SHA256SUMS, which is missing")


def test_a_signature_of_which_ssh_keygen_names_no_signer_is_refused(
    site: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "ssh-keygen", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    checks = answer("verify", site, "--signers", key.with_name("signers"), status=1)["checks"]
    [signature] = [check for check in checks if check["check"] == "SHA256SUMS.sig"]
    assert signature["found"] == "ssh-keygen -Y find-principals: it names no signer"


def test_one_file_is_counted_as_one(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    checks = answer("verify", tmp_path, status=1)["checks"]
    assert "1 file, not those that it lists" in [check["found"] for check in checks]


def test_a_package_is_not_published_into_itself(built, tmp_path: Path, monkeypatch) -> None:
    package_folder = built[0]
    (tmp_path / "link").symlink_to(package_folder)
    monkeypatch.chdir(package_folder)
    for out in (package_folder / "site", tmp_path / "link" / "site", Path("site")):
        refused(compliance("publish", package_folder, "--out", out), f"{out}: lies in the package")
    assert not (package_folder / "site").exists()


def test_what_does_not_verify_is_not_published(site: Path, built, tmp_path: Path) -> None:
    copy = tmp_path / "Example"
    shutil.copytree(built[0], copy)
    (copy / "README.md").write_text("2 minutes")
    status, said, _ = compliance("publish", copy, "--out", tmp_path / "out")
    assert status == 1 and "refused: " in said and not (tmp_path / "out").exists()
    assert compliance("publish", built[0], "--out", site).returncode == 2  # which exists
    assert compliance("publish", built[0], built[0], "--out", tmp_path / "out").returncode == 2
    done = compliance("publish", copy / "README.md", "--out", tmp_path / "out")
    refused(done, "README.md: no folder: give the folder ORG of a package")


@pytest.mark.slow
@pytest.mark.ci
def test_it_is_readable_in_chromium(site: Path, opened: Opened, tmp_path: Path) -> None:  # noqa: F811
    shots = Path(os.environ.get("REPORT_SHOTS", tmp_path))
    for width, phone in ((1280, False), (390, True)):
        for scheme in ("light", "dark"):
            page = opened(site / "index.html", width=width, scheme=scheme, phone=phone)
            page.evaluate(UNFOLD)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            back = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (back == "rgb(17, 21, 26)") == (scheme == "dark")
            page.screenshot(path=shots / f"site-{width}-{scheme}.png", full_page=True)
            if not phone:  # which shows no head of the table
                page.locator("table.sortable th button").first.click()
