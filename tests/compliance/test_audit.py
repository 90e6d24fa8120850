"""`python -m compliance audit`: a row a submission, whatever its logs hold."""

import bz2
import csv
import gzip
import io
import json
import logging
import lzma
import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from compliance.official import convergence
from compliance.submission import runs
from compliance.submission.audit import audit
from scoring.importers import recognise
from scoring.record import InputError
from tests import make_log
from tests.compliance import altered as by
from tests.compliance.altered import Altered, Writer, answer, compliance, foreign, write
from tests.compliance.test_corpus import submissions
from tests.jobs import refused


def test_a_repository_is_a_row_a_submission(tmp_path: Path) -> None:
    """A whole submission, one with a damaged and an unfinished log, one of another benchmark, and no log at all."""
    folder = tmp_path / "repository"
    for system, texts in {
        "whole/resnet": [make_log.closed_run(seed=seed) for seed in range(5)],
        "damaged/resnet": [make_log.closed_run(seed=1)[:9000], "", *(make_log.closed_run(seed=s) for s in (2, 3, 4))],
        "other/vgg": [make_log.run().replace('"value": "resnet"', '"value": "vgg"')],
        "=cmd/resnet": ["no log\n<script>alert(1)</script>\n"],
    }.items():
        write(folder / "v4.0/Example/results" / system, *texts)
    answered = answer("audit", folder, "--html", tmp_path / "a.html", "--csv", tmp_path / "a.csv")
    said = {row["system"]: row for row in answered["submissions"]}
    whole, damaged = said["whole"], said["damaged"]
    assert (whole["official_passes"], whole["strict_passes"], whole["rcp"], whole["problem"]) == (5, 5, "pass", "")
    assert whole["official_minutes"] == whole["strict_minutes"] > 0
    assert (damaged["logs"], damaged["official_passes"], damaged["official_minutes"]) == (5, 3, None)
    assert {question["rule"] for question in damaged["questions"]} >= {"events.count", "run_stop.count"}
    assert [question["rule"] for question in said["other"]["questions"]] == ["known-benchmark"]
    assert [question["rule"] for question in said["=cmd"]["questions"]] == ["events.count"]
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert [row["system"] for row in rows] == ["'=cmd", "damaged", "other", "whole"]
    assert "<script>" not in (tmp_path / "a.html").read_text()
    done = compliance("audit", folder)
    assert done.returncode == 0
    assert "4 submissions, 12 logs: official passes 8, strict 8; 1 not judged\n" in done.stdout
    archive = tmp_path / "results.tar.xz"
    with tarfile.open(archive, "w:xz") as members:
        members.add(folder, ".")
    assert audit(archive) == audit(folder)
    done = compliance("audit", folder / "v4.0/Example/results/whole")
    assert done.returncode == 0 and "\n1 submission, 5 logs: official passes 5" in f"\n{done.stdout}"
    (tmp_path / "empty").mkdir()
    assert compliance("audit", tmp_path / "empty").returncode == 2


def test_the_runs_of_a_submission_are_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    of_seeds = runs._shared_seeds

    def counted(members, ruleset):
        compared.append(len(members))
        return of_seeds(members, ruleset)

    monkeypatch.setattr(runs, "_shared_seeds", counted)
    write(tmp_path / "v4.0/Example/results/CPU/resnet", *(make_log.closed_run(seed=seed) for seed in range(5)))
    [row] = audit(tmp_path)
    assert (row.official_passes, row.strict_passes, compared) == (5, 5, [5])


@pytest.mark.parametrize(
    ("name", "ruleset"), [("v2.0", "2.0.0"), ("training_results_v3.1", "3.1.0"), ("v0.5", "4.0.0"), ("mine", "4.0.0")]
)
def test_a_round_is_judged_by_its_own_ruleset(tmp_path: Path, name: str, ruleset: str) -> None:
    write(tmp_path / name / "Example/results/system/resnet", make_log.closed_run())
    assert [row.ruleset for row in audit(tmp_path)] == [ruleset]
    assert [row.ruleset for row in audit(tmp_path / name)] == [ruleset]  # the clone itself


@pytest.mark.parametrize(("name", "asks"), [("training_results_v0.7", False), ("mine", True), ("v0.7_v1.0", True)])
def test_a_round_that_no_name_says_is_asked_for(tmp_path: Path, name: str, asks: bool) -> None:
    """Others' logs are of a round; the system's name says nothing of it."""
    write(tmp_path / name / "Example/results/mxnet_v1.0/bert", Writer("0.7.0", "closed", "bert").text())
    status, out, err = compliance("audit", tmp_path / name)
    if asks:
        assert status == 2 and "give --ruleset" in err
    else:
        assert (
            status == 0 and "bert: official 1/1, no score; strict 1/1" in out and "(1 log; a submission has 10)" in out
        )
        status, out, _ = compliance("audit", tmp_path / name, "--ruleset", "6.1.0")  # which has no bert
        assert status == 0 and "bert: not judged\n" in out


@pytest.mark.parametrize("form", ["", "gz", "bz2", "xz"])
def test_an_archive_that_is_not_whole_is_refused(form: str, tmp_path: Path) -> None:
    archive = tmp_path / "results.tar"
    write(tmp_path / "v4.0/Example/results/CPU/resnet", *(make_log.run(seed=seed) for seed in range(3)))
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as members:
        members.add(tmp_path / "v4.0", "v4.0")
    with tarfile.open(archive) as members:  # of one that is being written older Pythons say 0
        headers = [member.offset for member in members.getmembers()]
    whole = archive.read_bytes()
    pack: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    packed = pack.get(form, bytes)(whole)
    archive.write_bytes(packed)
    assert audit(archive)[0].logs == 3
    last = headers[-1]
    broken = [whole[:last], whole[: last + 100], whole[: last + 1000], whole[: last + 5] + b"?" + whole[last + 6 :]]
    damaged = [pack.get(form, bytes)(one) for one in broken]
    if form:
        half = len(packed) // 2
        damaged += [packed[:half], packed[:half] + bytes([packed[half] ^ 1]) + packed[half + 1 :]]
        damaged += [packed[:-5], packed[:-4] + bytes([packed[-4] ^ 1]) + packed[-3:]]
    for one in damaged:
        archive.write_bytes(one)
        refused(compliance("audit", archive), "neither a folder nor a whole tar archive")


def test_a_linked_log_in_an_archive_is_an_error(tmp_path: Path) -> None:
    archive = tmp_path / "results.tar"
    with tarfile.open(archive, "w") as members:
        for index, kind in enumerate((tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)):
            member = tarfile.TarInfo(f"v4.0/Example/results/CPU/resnet/result_{index}.txt")
            member.type, member.linkname = kind, "result_0.txt" if index else ""
            text = b"" if index else make_log.run().encode()
            member.size = len(text)
            members.addfile(member, io.BytesIO(text))
    [row] = audit(archive)
    assert (row.logs, row.official_passes) == (4, 1)
    assert [(question.rule, question.severity, question.logs) for question in row.questions] == [("log", "error", 3)]
    assert row.problem == "result_1.txt: no log of a run (no file but a link or folder in the archive)"


@pytest.mark.parametrize("linked", ["results/CPU", "results/CPU/resnet"])
def test_the_logs_behind_a_linked_folder_are_errors(tmp_path: Path, linked: str) -> None:
    """A link back to a folder above it adds nothing."""
    submitter = tmp_path / "tree/v4.0/Example"
    write(submitter / "results/CPU/resnet", make_log.run())
    (submitter / linked).rename(tmp_path / "elsewhere")
    (submitter / linked).symlink_to(tmp_path / "elsewhere")
    (submitter / "results/loop").symlink_to("..")
    [row] = audit(tmp_path / "tree")
    assert (row.system, row.benchmark, row.logs, row.official_passes) == ("CPU", "resnet", 1, 0)
    assert f"v4.0/Example/{linked} is a link" in row.problem


def test_an_archive_that_begins_with_results_names_no_round(tmp_path: Path) -> None:
    archive = tmp_path / "mine.tar"
    write(tmp_path / "results/CPU/resnet", make_log.run())
    with tarfile.open(archive, "w") as members:
        members.add(tmp_path / "results", "results")
    [row] = audit(archive)
    assert (row.round, row.submitter, row.system, row.benchmark) == ("", "Example", "CPU", "resnet")


def test_names_that_are_no_plain_text_are_shown_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "repository" / os.fsdecode(b"v4.0\x1b[2J\xff") / "Org" / "results" / "CPU" / "resnet"
    folder.mkdir(parents=True)
    (folder / os.fsdecode(b"result_\x1b[2J\xff.txt")).write_text("no log\n")
    page, table = tmp_path / "a.html", tmp_path / "a.csv"
    done = compliance("audit", tmp_path / "repository", "--html", page, "--csv", table)
    assert done.returncode == 0
    for text in (done.stdout, page.read_text(), table.read_text()):
        assert "\x1b" not in text
        assert r"v4.0\x1b[2J\udcff" in text


def test_a_file_that_it_did_not_write_is_kept(tmp_path: Path) -> None:
    [log] = write(tmp_path / "repository/Example/results/CPU/resnet", make_log.run())
    for option, name in (("--html", "a.html"), ("--csv", "a.csv")):
        out = tmp_path / name
        for _ in range(2):  # it replaces a file that it wrote
            assert compliance("audit", tmp_path / "repository", option, out).returncode == 0
        done = compliance("audit", tmp_path / "repository", option, log)
        refused(done, f"{log}: exists, and this command did not write it")
        assert log.read_text().startswith("# {")


def test_a_copied_run_is_a_question(tmp_path: Path) -> None:
    texts = (Altered(make_log.run()).seed(index).text for index in range(5))
    write(tmp_path / "Example/results/CPU/resnet", *texts)
    [row] = audit(tmp_path)
    assert (row.official_passes, row.strict_passes, row.strict_minutes) == (5, 1, None)
    assert [(q.rule, q.logs) for q in row.questions] == [("runs-differ", 4)]


@pytest.mark.parametrize("altered", ["times", "accuracies"])
def test_a_run_that_stands_elsewhere_with_other_times_or_accuracies_is_a_question(altered: str, tmp_path: Path) -> None:
    log = by.intervals(Altered(make_log.closed_run()), lambda took: [ms + n * n for n, ms in enumerate(took)])
    for system in ("A", "B"):
        write(tmp_path / "v4.0/Example/results" / system / "resnet", foreign(log.text))
        if altered == "times":
            log = by.scaled(log, 1.01)
        else:
            log = by.curve(
                by.clock(log, lambda ms: ms + 400_000, "submission_benchmark"), lambda v: [x + 2e-5 for x in v]
            )
    one, other = audit(tmp_path)
    assert "run-elsewhere" not in [question.rule for question in one.questions]
    [actual] = [question.actual for question in other.questions if question.rule == "run-elsewhere"]
    assert actual.startswith(f"the {'accuracies' if altered == 'times' else 'times'} of result_0.txt of v4.0/Example")


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ("v3.1/smc", "v4.0/smc", "is identical (here: identical)"),
        ("v3.1/smc", "v4.0/other", "is identical (here: not identical)"),
        ("v4.0/smc", "v4.0/smc-ac-power", None),
        ("v3.1/smc-ac-power", "v4.0/smc-ac-power", "is identical (here: identical)"),
        ("v4.0/a", "v4.0/b", "the run of result_0.txt of v4.0/a/results/CPU/resnet"),
    ],
)
def test_runs_that_are_submitted_again_are_told_from_others(first, second, says, tmp_path: Path) -> None:
    for name in (first, second):
        write(tmp_path / name / "results/CPU/resnet", *(make_log.run(seed=seed) for seed in range(5)))
        (tmp_path / name / "systems").mkdir()
        (tmp_path / name / "systems" / "CPU.json").write_text(json.dumps({"submitter": name.partition("/")[2]}))
    asked = [q.actual for q in audit(tmp_path)[1].questions]
    assert (len(asked), says is None or says in asked[0]) == (says is not None, True)


@pytest.mark.parametrize("root", ["training_results_v4.0", "."])
def test_a_run_of_another_submitter_of_a_round_is_no_resubmission_wherever_it_begins(root, tmp_path: Path) -> None:
    for name in ("Honest", "Thief"):
        write(tmp_path / "training_results_v4.0" / name / "results/CPU/resnet", make_log.run(seed=1))
    [actual] = [q.actual for q in audit(tmp_path / root)[1].questions]
    assert actual.startswith("the run of result_0.txt of ") and "resubmission" not in actual


def test_a_run_in_the_root_of_the_tree_and_below_it_is_a_question(tmp_path: Path) -> None:
    """The root has no folder that could name another round. A third one is asked about the first of them."""
    for folder in (tmp_path, tmp_path / "copy", tmp_path / "later"):
        write(folder, make_log.run(seed=1))
    asked = [q.actual for row in audit(tmp_path)[1:] for q in row.questions if q.rule == "run-elsewhere"]
    assert asked == 2 * ["the run of result_0.txt of ."]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (os.mkfifo, "not a regular file"),
        (lambda path: path.mkdir(), "not a regular file"),
        (lambda path: path.symlink_to("nowhere"), "No such file"),
    ],
)
def test_what_is_no_file_is_a_row_of_the_audit(make: Callable[[Path], None], says: str, tmp_path: Path) -> None:
    """No reason to wait for ever, or to leave out the rest of the tree."""
    write(tmp_path / "Example/results/CPU/resnet", make_log.run(), make_log.run(seed=2))
    make(tmp_path / "Example/results/CPU/resnet/result_2.txt")
    status, out, _ = compliance("audit", tmp_path, "--ruleset", "4.0.0")
    assert status == 0 and "strict 2/3" in out and says in out


@pytest.mark.parametrize(("text", "says"), [(None, "CPU.json: missing"), ("[1]", "not a JSON object"), ("{}", None)])
def test_a_system_description_that_cannot_be_read_is_asked_for(text: str | None, says, tmp_path: Path) -> None:
    write(tmp_path / "Example/results/CPU/resnet", make_log.run())
    (tmp_path / "Example/systems").mkdir()
    assert audit(tmp_path)[0].questions == ()  # a tree of logs alone
    for name, content in (("GPU", "{}"), ("CPU", text)):
        if content is not None:
            (tmp_path / f"Example/systems/{name}.json").write_text(content)
    asked = [(q.rule, q.severity, says in q.actual) for q in audit(tmp_path)[0].questions]
    assert asked == ([("system-description", "warning", True)] if says else [])


def test_rows_of_a_submitters_folder_have_their_names(tmp_path: Path) -> None:
    texts = [make_log.closed_run(seed=seed) for seed in range(3)]
    write(tmp_path / "training_results_v3.1/Habana/results/gaudi/resnet", *texts)
    names = []
    for below in ("", "training_results_v3.1", "Habana", "results", "gaudi", "resnet"):
        at = tmp_path / "training_results_v3.1/Habana/results/gaudi/resnet"
        while below and at.name != below:
            at = at.parent
        [row] = audit(at if below else tmp_path)
        names.append((row.submitter, row.system, row.benchmark))
        assert row.round in ("training_results_v3.1", "v3.1")
    organisation = make_log.closed_run().partition('"submission_org", "value": "')[2].partition('"')[0]
    assert names == [("Habana", "gaudi", "resnet")] * 3 + [(organisation, "gaudi", "resnet")] * 3


@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_rows_of_mlperf_hpc_have_their_names_and_are_not_judged(scaling: str, tmp_path: Path) -> None:
    text = make_log.closed_run().replace('"value": "resnet"', '"value": "deepcam"')
    write(tmp_path / f"hpc_results_v2.0/Lab/results/16xA100/{scaling}/deepcam", foreign(text))
    (tmp_path / "hpc_results_v2.0/Lab/systems").mkdir()
    (tmp_path / "hpc_results_v2.0/Lab/systems/16xA100.json").write_text("{}")
    for root in (tmp_path, tmp_path / "hpc_results_v2.0/Lab"):
        [row] = audit(root)
        assert row.round in ("hpc_results_v2.0", "v2.0")
        assert (row.submitter, row.system, row.benchmark) == ("Lab", "16xA100", f"{scaling}/deepcam")
        [question] = row.questions
        assert row.not_judged == 1 and "it is of MLPerf HPC, whose rules are not read" in question.actual


def test_a_folder_is_one_submission_whatever_organisation_and_platform_its_logs_state(tmp_path: Path) -> None:
    """result_summarizer scores it by the folder; the differences are warned of."""
    texts = [foreign(make_log.closed_run(seed=seed)) for seed in range(5)]
    texts[3] = Altered(texts[3]).value("submission_platform", "node-3").value("submission_org", "Example Inc.").text
    write(tmp_path / "v4.0/Example/results/CPU/resnet", *texts)
    [row] = audit(tmp_path)
    assert row.official_minutes is not None and "of another submission" not in row.problem
    assert ("same-configuration", 1) in [(q.rule, q.logs) for q in row.questions]


def test_the_factor_of_scaling_json_is_applied_and_said(tmp_path: Path) -> None:
    texts = [make_log.closed_run(seed=seed, epoch_ms=30_000 + 1_000 * seed) for seed in range(5)]
    folder = tmp_path / "v4.0/Example/results/CPU/resnet"
    write(folder, *texts)
    [without] = audit(tmp_path)
    assert (without.scaling_file, without.scaling) == (None, 1.0)
    (folder / "scaling.json").write_text('{"scaling_factor": 1.25}')
    [row] = audit(tmp_path)
    assert without.official_minutes is not None
    assert row.official_minutes == without.official_minutes * 1.25
    assert [q.rule for q in row.questions] == ["scaling-file"]
    (folder / "scaling.json").write_text('{"scaling_factor": "much"}')
    [row] = audit(tmp_path)
    assert row.official_minutes == without.official_minutes
    assert ("scaling-file", True) in [(q.rule, "no scaling_factor" in q.actual) for q in row.questions]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("training_results_v0.6", "run of another form"),
        ("mine", ':::MLL 1558630022.123 run_start: {"value": null}'),
        ("mine", ":::MLPv0.5.0 resnet 1541635000.1 (train.py:1) run_start"),
    ],
)
def test_rounds_whose_form_is_not_read_are_not_judged(name: str, line: str, tmp_path: Path) -> None:
    write(tmp_path / name / "Example/results/CPU/resnet", f"{line}\n", f"{line}\n")
    [row] = audit(tmp_path)
    assert (row.logs, row.not_judged, row.official_passes, row.questions) == (2, 2, 0, ())
    assert "resnet: not judged\n" in compliance("audit", tmp_path).stdout


@pytest.mark.parametrize(
    "line",
    [
        ':::MLL 1558630022.123 run_start: {"value": null}',
        ":::MLPv0.5.0 resnet 1541635000.1 (train.py:1) run_start",
        f"{'packages of the image' * 100_000}\n:::MLPv0.5.0 resnet 1541635000.1 (train.py:1) run_start",
    ],
)
def test_the_check_and_the_importer_say_of_a_log_of_v05_or_v06_that_its_form_is_not_read(
    line: str, tmp_path: Path
) -> None:
    [log] = write(tmp_path, f"{line}\n")
    done = compliance("check", log)
    assert (done.returncode, "MLPerf v0.5 and v0.6 wrote events in forms that are not read" in done.stdout) == (1, True)
    with pytest.raises(InputError, match=r"events of MLPerf v0\.5 and v0\.6 have forms that are not read"):
        recognise(log)


def test_what_is_not_known_of_convergence_is_no_number(tmp_path: Path) -> None:
    write(tmp_path / "v2.0/Example/results/CPU/minigo", Writer("2.0.0", "closed", "minigo").text())
    [row] = answer("audit", tmp_path)["submissions"]
    assert (row["rcp"], row["scaling"]) == ("not known", None)
    out = compliance("audit", tmp_path).stdout
    assert "RCP not known" in out and "x 1.000000" not in out


def test_the_second_reading_of_the_reference_points_stands_next_to_the_tools(tmp_path: Path) -> None:
    """By rcp_checker's pruning dlrm_dcnv2 of v5.1 keeps a point above the lower envelope."""
    reference = convergence.reference_set("dlrm_dcnv2", "5.1.0")
    envelope = {point.global_batch for point in convergence.lower_envelope(reference)}
    above = next(point for point in reference.points if point.global_batch not in envelope)
    text = Writer("5.1.0", "closed", "dlrm_dcnv2").text()
    logs = []
    for seed in range(10):
        log = Altered(text).seed(seed) if '"seed"' in text else Altered(text)
        log = log.value("global_batch_size", above.global_batch)
        logs.append(re.sub(r'"epoch_num": [0-9.]+', f'"epoch_num": {above.mean * 0.999:.3f}', log.text))
    write(tmp_path / "v5.1/Example/results/GPU/dlrm_dcnv2", *logs)
    [without], [row] = audit(tmp_path), audit(tmp_path, envelope=True)
    assert without.envelope is None
    assert row.envelope is not None and row.envelope.differs
    assert row.envelope.held_to < row.envelope.held_to_by_tool == above.mean
    assert "mlcommons/logging #368" in compliance("audit", "--envelope", tmp_path).stdout


@pytest.mark.slow
def test_it_equals_the_official_tools_on_every_published_submission(
    published_corpus: Path, tmp_path: Path, monkeypatch
) -> None:
    from mlperf_logging.rcp_checker import rcp_checker
    from mlperf_logging.result_summarizer import result_summarizer

    archive = published_corpus / "mlperf_resnet.tar.xz"
    rows = {f"{row.round}/{row.submitter}/results/{row.system}/{row.benchmark}": row for row in audit(archive)}
    monkeypatch.chdir(tmp_path)
    logging.disable(logging.CRITICAL)
    try:
        for logs in submissions(archive):
            folder = tmp_path / logs[0].parent
            folder.mkdir(parents=True)
            for log in logs:
                (folder / log.name).write_bytes(log.data or b"")
            row = rows.pop(str(logs[0].parent))
            arguments = (str(folder), "training", row.ruleset)
            try:
                good, message, _ = rcp_checker.check_directory(
                    *arguments, False, False, rcp_pass="pruned_rcps", set_scaling=True
                )
            except KeyError:  # it dies of runs with different batches
                good, message = False, "died"
            assert row.rcp == ("pass" if good else "fail"), (folder, message)
            score, _, scaling = result_summarizer._compute_strong_score_standalone(
                "resnet", row.system, False, *arguments
            )
            assert (row.official_minutes, row.scaling) == (score, scaling), folder
    finally:
        logging.disable(logging.NOTSET)
    assert rows == {}


def test_a_log_that_was_cut_within_its_last_line_is_told_from_a_whole_one(tmp_path: Path) -> None:
    """It may still have all events of the run: its last lines are text."""
    whole = foreign(make_log.closed_run()) + "ok: the job ended\n"
    write(tmp_path / "v4.0/Example/results/SYSTEM/resnet", whole, whole[:-5])
    [row] = answer("audit", tmp_path)["submissions"]
    [question] = [question for question in row["questions"] if question["rule"] == "line-damaged"]
    assert (question["logs"], question["severity"]) == (1, "warning") and "was cut" in question["actual"]
