"""The licence: its text, who holds what, and the mark in each script that a submission's package hands in."""

import hashlib

from tests.jobs import REPOSITORY
from tests.test_architecture import tracked

# SHA-256 of the licence's text as packages carry it, PaddleSeg 2.8.0 and uv 0.13.8 among them.
APACHE_2 = "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4"
MARK = "# SPDX-License-Identifier: Apache-2.0"


def test_the_licence_is_apache_2_and_the_wheel_carries_it() -> None:
    assert hashlib.sha256((REPOSITORY / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    project = (REPOSITORY / "pyproject.toml").read_text()
    assert '\nlicense = "Apache-2.0"\nlicense-files = ["LICENSE", "NOTICE"]\n' in project


def test_the_notice_names_the_work_of_others_that_lies_here() -> None:
    notice = (REPOSITORY / "NOTICE").read_text()
    for path, licence in (
        ("harness/digits.txt", "Creative Commons Attribution 4.0"),
        ("compliance/rules/mlperf_logging_4.1.68.zip", "Apache\n  License 2.0"),
    ):
        assert (REPOSITORY / path).is_file()
        assert path in notice and licence in notice


def test_each_script_says_its_licence() -> None:
    scripts = tracked(".sh", ".sub")
    assert len(scripts) > 30
    unmarked = [script.name for script in scripts if MARK not in script.read_text().splitlines()]
    assert unmarked == [], f"give each a line `{MARK}` below its first comment"


def test_the_trademark_of_mlcommons_is_no_possessive() -> None:
    """MLCommons asks that the name stand as an adjective before a noun."""
    possessive = "MLPerf" + "'s"
    files = tracked(".py", ".md", ".yaml", ".html", ".sh")
    assert len(files) > 300
    assert [file.name for file in files if possessive in file.read_text()] == []
