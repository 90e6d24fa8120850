"""`python -m scoring reproduce`: each published figure from its own log, and which do not follow."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from scoring.figure import protocols
from scoring.published import reproduce
from scoring.published.table import Figure, read_published, read_rows, select
from scoring.record import InputError
from tests.scoring.command import Done, scoring

ROWS = read_published()
RULES = read_rows(reproduce.LOGS_CSV, reproduce.Rule)


def command(*arguments: object) -> Done:
    return scoring("reproduce", *arguments)


@pytest.fixture(scope="module")
def found(published_logs: Path) -> dict:
    done = command(published_logs, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def figure(found: dict, log: str) -> dict:
    (row,) = [row for row in found["figures"] if any(log in name for name in row["logs"])]
    return row


def test_every_listed_log_gives_the_figure_of_the_logs_page(found: dict, published_logs: Path) -> None:
    """The logs page says in words what each must give; its table is read here."""
    checked = 0
    for line in (published_logs / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 5 or not (published_logs / cells[0]).exists():
            continue
        parsed = cells[3].split()[0]
        row = figure(found, cells[0].rstrip("/"))
        factor = 1.0043956 if "mlperf" in cells[0] else 1.0
        digits = len(parsed.partition(".")[2])
        assert round(row["recomputed"] / factor, digits) == float(parsed), cells[0]
        checked += 1
    assert checked == 9


def test_verdicts(found: dict, published_logs: Path) -> None:
    mxnet = figure(found, "ngc_mxnet")
    assert mxnet["borne_out"] is False and mxnet["as_recorded"] is True
    assert any("batch_per_device 128, the report 256" in note for note in mxnet["notes"])
    assert all(row["borne_out"] for row in found["figures"] if row is not mxnet)
    mlperf = figure(found, "mlperf_v2.1")
    assert len(mlperf["logs"]) == 5 and mlperf["published"] == 28.8115
    a100 = figure(found, "paddleclas_a100")
    assert any("does not say devices" in note for note in a100["notes"])
    printed = command(published_logs).stdout
    assert "9 figures: 8 borne out, 1 not, 0 not recomputed; 3 of 23 speedups do not follow" in printed
    assert "published 3019.361 images/s, recomputed 3019.3614 (+0.000%), protocol perf" in printed


def test_the_three_speedups_of_dlperf_that_do_not_follow(found: dict) -> None:
    wrong = [row for row in found["speedups"] if not row["follows"]]
    assert {(row["devices"], row["printed"], round(row["recomputed"], 2)) for row in wrong} == {
        (4, "3.87", 3.85),
        (8, "7.47", 7.44),
        (32, "26.55", 26.44),
    }
    for row in wrong:
        (held,) = select(ROWS, metric="speedup", devices=row["devices"], printed=row["printed"])
        assert (held.log_value, held.log_note) == (round(row["recomputed"], 2), row["note"]) and "350.77" in row["note"]
    right = {(r["framework"][:6], r["devices"], round(r["recomputed"], 2)) for r in found["speedups"] if r["follows"]}
    assert {("Paddle", 2, 1.80), ("Paddle", 16, 13.88), ("OneFlo", 32, 30.40)} <= right


def test_a_log_that_was_changed_is_not_borne_out(published_logs: Path, tmp_path: Path) -> None:
    """Found by its name, as its content is another; slower windows make another figure and exit status 1."""
    log = "paddleclas_v100_gpu8_fp32_bs256.log"
    text = (published_logs / log).read_text(encoding="utf-8", errors="replace")
    (tmp_path / log).write_text(text.replace("ips: 3", "ips: 2"), encoding="utf-8")
    done = command(tmp_path, "--json")
    row = figure(json.loads(done.stdout), log)
    assert done.returncode == 1 and row["borne_out"] is False and row["difference"] < -0.2


@pytest.mark.parametrize("kind", ["published", "assumed"])
@pytest.mark.parametrize("log", ["ngc_tensorflow_v100_gpu8_amp_bs256.log", "mmseg_v100_gpu8_fp32_bs8.log"])
def test_a_figure_that_is_wrong_by_up_to_1_percent_is_named(published_logs: Path, kind: str, log: str) -> None:
    path = published_logs / log
    rule = reproduce.find_rule(RULES, path, "")
    assert rule
    right = reproduce.published_of(rule, ROWS)
    # What another number of dropped windows gives is no acquittal of a report that drops this one.
    other = reproduce.reproduction_of(dataclasses.replace(rule, skip=(rule.skip or 0) + 9), [path], right)["recomputed"]
    for value in (other, *(right.value * (1 + share) for share in (-0.003, 0.001, 0.01))):
        wrong = dataclasses.replace(right, value=Figure(f"{value:.{right.digits}f}"))
        found = reproduce.reproduction_of(dataclasses.replace(rule, rule=kind), [path], wrong)
        assert found["borne_out"] is False, (value, found["notes"])
        unsaid = [note for note in found["notes"] if note.startswith("the publisher does not say how many windows")]
        assert bool(unsaid) is (kind == "assumed")


def test_a_truncated_log_is_not_recomputed_and_says_why(published_logs: Path, tmp_path: Path) -> None:
    log = "paddleclas_v100_gpu32_fp32_bs256.log"
    lines = (published_logs / log).read_bytes().splitlines(keepends=True)
    windows = [number for number, line in enumerate(lines) if b"train step:" in line]
    (tmp_path / log).write_bytes(b"".join(lines[: windows[5]]))
    done = command(tmp_path, "--json")
    row = figure(json.loads(done.stdout), log)
    assert done.returncode == 1 and row["recomputed"] is None and row["borne_out"] is None
    assert any("nothing is left to measure" in note for note in row["notes"])


def test_a_log_is_known_by_its_content_under_any_name(published_logs: Path, tmp_path: Path) -> None:
    shutil.copyfile(published_logs / "paddleseg_v100_gpu1_fp32_bs8.log", tmp_path / "gpu32_bs512.txt")
    [found], unknown = reproduce.reproduce(tmp_path, RULES, ROWS)
    assert not unknown and found["published"].printed == "19.428" and found["borne_out"]


def test_an_unknown_log_is_listed_and_nothing_is_guessed_from_its_name(published_logs: Path, tmp_path: Path) -> None:
    text = (published_logs / "paddleclas_v100_gpu8_fp32_bs256.log").read_bytes() + b"\n"
    (tmp_path / "my_gpu8_fp32_bs256.log").write_bytes(text)
    verdicts, unknown = reproduce.reproduce(tmp_path, RULES, ROWS)
    assert not verdicts and unknown == [str(tmp_path / "my_gpu8_fp32_bs256.log")]


def test_names_of_two_folders_are_told_apart() -> None:
    name = "PaddleClas_ResNet50_bs256_fp32_DP_N1C8_log"
    v100 = reproduce.find_rule(RULES, Path("x/V100-LOG") / name, "")
    a100 = reproduce.find_rule(RULES, Path("x/A100-LOG") / name, "")
    assert v100 and a100 and (v100.accelerator, a100.accelerator) == ("V100", "A100")
    assert reproduce.find_rule(RULES, Path(name), "") is None
    short, long = (dataclasses.replace(RULES[0], names=(name,), sha256=()) for name in ("x.log", "A/x.log"))
    assert reproduce.find_rule([short, long], Path("B/A/x.log"), "") is long


def test_every_rule_stands_behind_one_published_figure_and_a_known_protocol() -> None:
    figures = [reproduce.published_of(rule, ROWS) for rule in RULES]
    assert len({row.line for row in figures}) == len(figures)
    assert {rule.protocol for rule in RULES} <= set(protocols.load())
    # A log that is published under a protocol was published so in the table of figures, too.
    assert all(rule.protocol == row.protocol for rule, row in zip(RULES, figures, strict=True))


def test_wrong_use_is_told_in_one_line(tmp_path: Path) -> None:
    for arguments, text in (((tmp_path / "absent",), "no folder with files"), ((tmp_path,), "no folder with files")):
        done = command(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and text in done.stderr
    broken = tmp_path / "map.csv"
    for change in ((",fp32,1,", ",fp32,one,"), (",perf,10,", ",,10,")):
        broken.write_text(reproduce.LOGS_CSV.read_text().replace(*change, 1))
        with pytest.raises(InputError, match=r"map\.csv:2: "):
            read_rows(broken, reproduce.Rule)
    broken.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"map\.csv:1: want the columns"):
        read_rows(broken, reproduce.Rule)
