"""`python -m scoring report`, through its command; the page also in a real headless Chromium (slow)."""

import csv
import gzip
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scoring.report.text import number
from tests import jobs
from tests.browser import TOO_SMALL, UNFOLD, Opened, opened  # noqa: F401
from tests.scoring import pages
from tests.scoring.pages import Parsed, assert_self_contained, findings_of, page_of, report, values_of, write_log
from tests.scoring.samples import folder_of, steady_log

# ------------------------------------------------------------------------------------------------ the page


def test_page_of_one_run_links_its_numbers_to_the_lines_that_hold_them(tmp_path: Path) -> None:
    log = write_log(tmp_path / "result_0.txt")
    page = page_of(tmp_path, log)
    first = (tmp_path / "report.html").read_bytes()
    page_of(tmp_path, log)
    assert (tmp_path / "report.html").read_bytes() == first  # the same runs give the same page
    assert_self_contained(page)
    # 12 windows of 5 steps, skip 20 steps: 8 windows of 160 images in 2.55 s and 2.5 s alternately.
    expected = 8 * 160 / (4 * 2.55 + 4 * 2.5)
    assert values_of(log)["groups"][0]["score"]["value"] == pytest.approx(expected, rel=1e-9)
    assert number(expected) in page.by_id["verdict"]
    assert "0.95" in page.by_id["training"] and "target 0.9" in page.by_id["training"]
    # The published curves stand beside; efficiency of one device count is none.
    assert "DLPerf" in page.by_id["scaling"] and "not measured" in page.by_id["scaling"]
    lines = log.read_text().splitlines()
    quoted = {int(i.rsplit("-", 1)[1]): i for i in page.ids if i and re.fullmatch(r"run-1-line-\d+", i)}
    for line, identity in quoted.items():
        assert page.by_id[identity].removeprefix(str(line)).split("… (")[0] == lines[line - 1][:600]
    # The figure's first and last window, the seed and the accuracy are among them.
    window = next(at for at, text in enumerate(lines, 1) if '"step": 25,' in text)
    wanted = [window, *(at for at, text in enumerate(lines, 1) if '"seed"' in text or "eval_accuracy" in text)]
    assert set(wanted) <= set(quoted) and f"#run-1-line-{window}" in page.hrefs


def test_logs_without_rates_are_told_what_gives_a_plot(tmp_path: Path) -> None:
    stopped_at_once = write_log(tmp_path / "result_0.txt")
    lines = stopped_at_once.read_text().splitlines()
    first_row = next(at for at, line in enumerate(lines) if "step_window" in line)
    stopped_at_once.write_text("\n".join(lines[:first_row]))
    for log, says in (
        (stopped_at_once, "the logs have no row of training figures."),
        (steady_log(tmp_path, "run.log", writer="paddle18"), "neither rates nor images and seconds (give --batch)."),
    ):
        page = page_of(tmp_path, log, code=1)
        assert says in page.by_id["verdict"] and says in page.by_id["throughput"]


def quoted_lines(page: Parsed) -> list[str]:
    return [page.by_id[identity] for identity in page.ids if identity and identity.startswith("run-1-line-")]


@pytest.mark.parametrize("change", [gzip.compress, lambda text: text.decode().encode("utf-16")])
def test_a_log_of_other_bytes_is_quoted_as_its_text(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    """Packed, or as Windows' shell redirects."""
    log = steady_log(tmp_path, "run.log", writer="paddleseg")
    quoted = quoted_lines(page_of(tmp_path, log))
    log.write_bytes(change(log.read_bytes()))
    assert "replicas 8, status" in "".join(quoted)
    assert quoted_lines(page_of(tmp_path, log)) == quoted


def test_no_number_of_a_table_stands_without_its_lines(tmp_path: Path) -> None:
    """A row of windows has its lines in the first cell; published figures come from no log."""
    logs = [write_log(tmp_path / f"{at}.txt", devices=n, seed=at, telemetry=True) for at, n in enumerate((1, 2, 2))]
    page_of(tmp_path, *logs)
    text = (tmp_path / "report.html").read_text()
    tables = re.findall(r'aria-label="([^"]*)"><table>(.*?)</table>', text, re.DOTALL)
    ours = [body for label, body in tables if not label.startswith(("Windows of run", "Published", "Every evaluation"))]
    cells = [cell for body in ours for cell in re.findall(r'<td class="n">(.*?)</td>', body)]
    assert len(cells) > 40
    assert [cell for cell in cells if re.search(r"\d", cell) and "<a " not in cell] == []


def test_a_file_without_a_run_in_a_folder_is_left_out_with_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    whole = write_log(folder / "result_0.txt")
    failed = folder / "result_1.txt"
    failed.write_text("".join(whole.read_text().splitlines(keepends=True)[:12]))
    (folder / "notes.txt").write_text("the second run failed at once\n")
    status, out, error = report(folder, "--json")
    said = json.loads(out)
    assert (status, len(said["groups"][0]["runs"])) == (0, 1)
    [check] = [check for check in said["verdict"]["checks"] if check["check"] == "absent runs"]
    assert check["status"] == "warning" and check["found"].startswith("2 files")
    assert error.count("left out") == 2 and "notes.txt" in error and "result_1.txt" in error
    report(folder, failed, code=2)  # the user named it
    whole.unlink()
    assert report(folder, code=2).stderr.count("\n") == 1  # nothing is left


def test_every_plot_has_a_text_alternative_and_units(tmp_path: Path) -> None:
    page = page_of(tmp_path, *(write_log(tmp_path / f"{n}.txt", devices=n, telemetry=True) for n in (1, 2)))
    plots = [attributes for name, attributes in page.elements if name == "svg"]
    assert len(plots) >= 6
    for attributes in plots:
        named = (attributes["aria-labelledby"] or "").split()
        assert attributes["role"] == "img" and [len(page.by_id[identity]) > 3 for identity in named] == [True, True]
    for axis in ("images/s", "time in s", "devices", "MiB", "epoch", "efficiency in %"):
        assert axis in "".join(page.text)


def test_hostile_text_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    folder = tmp_path / "<b>x' onload=window.pwned=1"
    folder.mkdir()
    log = write_log(folder / "a&b.txt", text=pages.HOSTILE)
    finding = {"severity": "error", "line": 3} | dict.fromkeys(("rule", "expected", "actual", "fix"), pages.HOSTILE)
    findings = tmp_path / "findings.json"
    findings.write_text(json.dumps({"files": [{"file": str(log), "verdict": "fail", "findings": [finding]}]}))
    page = page_of(tmp_path, log, "--findings", findings)
    assert_self_contained(page)
    assert not {"b", "x"} & {name for name, _ in page.elements}
    text = "".join(page.text)
    assert "<script>window.pwned=1</script>" in text  # as text
    assert "1 error or warning" in text
    assert "\\u202e" in text
    assert not {"\u202e", "\x1b", "\0"} & set(text)
    out = report(log, "--findings", findings).stdout
    outside_of_code = [line for line in out.splitlines() if not line.startswith("    ")]
    assert not re.search(r"(?<!\\)<(script|img)", "\n".join(outside_of_code))
    assert not re.search(r"(?<!\\)[`~]x", "\n".join(outside_of_code))
    assert "\x1b" not in out
    assert "&amp;" not in out  # escaped for Markdown, not for HTML
    columns = 0
    for line in out.splitlines():  # a `|` or an end of line in a log makes no cell and no row
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("| ") else 0
        assert cells in (0, columns or cells), line
        columns = cells or (columns if line.startswith("|--") else 0)
    row = next(csv.DictReader(report(log, "--csv", "-").stdout.splitlines()))
    assert row["file"] == str(log)


def test_a_pipe_may_be_named_by_its_number(tmp_path: Path) -> None:
    """As by the shell's `>(..)`; the path that it leads to, `pipe:[..]`, is in no folder."""
    log = write_log(tmp_path / "a.txt")
    reading, writing = os.pipe()
    report(log, "--csv", f"/dev/fd/{writing}")
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8", newline="") as pipe:
        assert pipe.read() == report(log, "--csv", "-").stdout


def test_standard_output_may_be_named_as_a_device_and_gets_one_form(tmp_path: Path) -> None:
    """A shell's `> FILE` makes it a regular file, which must not be replaced."""
    log = write_log(tmp_path / "a.txt")
    assert report(log, "--csv", "/dev/stdout").stdout == report(log, "--csv", "-").stdout
    refused = report(log, "--html", "/dev/stdout", "--csv", "-", code=2)
    assert "--html /dev/stdout and --csv -: only one form can be printed" in refused.stderr


@pytest.mark.parametrize(
    ("file", "redirection"),
    [("/dev//stdout", ">>"), ("{log}.csv", ">>"), ("{log}.link", ">>"), ("/dev/stderr", "2>>"), ("/dev/fd/3", "3>>")],
)
def test_an_open_file_that_a_shell_adds_to_keeps_what_it_held(tmp_path: Path, file: str, redirection: str) -> None:
    log = write_log(tmp_path / "a.txt")
    (tmp_path / "a.txt.csv").write_text("before\n")
    (tmp_path / "a.txt.link").symlink_to("/dev/stdout")
    command = [sys.executable, "-m", "scoring", "report", str(log), "--csv", file.format(log=log)]
    done = jobs.run(["bash", "-c", f'"$@" {redirection} {shlex.quote(str(log))}.csv', "bash", *command])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.txt.csv").read_text() == "before\n" + report(log, "--csv", "-").stdout


@pytest.mark.parametrize(
    ("file", "redirection", "code", "said"),
    [("/dev/fd/3", "3</dev/zero", 2, "report: /dev/fd/3: Bad file descriptor"), ("-", ">&-", 0, "")],
)
def test_an_open_file_that_cannot_be_written_ends_in_no_traceback(
    tmp_path: Path, file: str, redirection: str, code: int, said: str
) -> None:
    log = write_log(tmp_path / "a.txt")
    command = [sys.executable, "-m", "scoring", "report", str(log), "--csv", file]
    done = jobs.run(["bash", "-c", f'"$@" {redirection}', "bash", *command])
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr


def test_a_form_is_not_written_to_the_file_that_another_is_printed_to(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.txt")
    command = [sys.executable, "-m", "scoring", "report", str(log), "--json", "--csv", str(tmp_path / "both")]
    done = jobs.run(["bash", "-c", f'"$@" > {shlex.quote(str(tmp_path))}/both', "bash", *command])
    assert done.returncode == 2 and "both and --json: only one form can be printed" in done.stderr


def test_files_are_written_though_a_reader_of_the_printed_form_has_seen_enough(tmp_path: Path) -> None:
    """As `report LOG --html F --json | head -1`, which left no page."""
    log = write_log(tmp_path / "a.txt")
    page = tmp_path / "page.html"
    command = f"'{sys.executable}' -m scoring report '{log}' --html '{page}' --json | true; exit ${{PIPESTATUS[0]}}"
    done = jobs.run(["bash", "-c", f"exec 2>&1; {command}"])
    assert (done.returncode, done.stdout) == (0, "")
    assert Parsed(page.read_text(encoding="utf-8")).by_id["verdict"]


def test_a_folders_runs_are_numbered_as_its_logs_are(tmp_path: Path) -> None:
    """Run 3 of eleven was result_10.txt, and other runs than in the report that the job itself makes."""
    folder = folder_of(tmp_path, "runs", [1 + number / 1000 for number in range(11)])
    rows = csv.DictReader(report(folder, "--csv", "-").stdout.splitlines())
    files = [Path(row["file"]).name for row in rows]
    assert files == [f"result_{number}.txt" for number in range(11)]


def test_a_log_makes_no_link_in_markdown_and_no_formula_in_a_spreadsheet(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.txt", text="https://evil.example www.evil.example")
    shown = [line for line in report(log).stdout.splitlines() if "evil" in line and not line.startswith("    ")]
    assert shown and not [line for line in shown if re.search(r"https?://|www\.", line)]
    table = report(write_log(log, text='=HYPERLINK("x")'), "--csv", "-").stdout
    row = next(csv.DictReader(table.splitlines()))
    assert row["model"] == '\'=HYPERLINK("x")' and float(row["value"]) > 0


def test_no_command_in_markdown_shows_where_the_logs_are(tmp_path: Path) -> None:
    folder = tmp_path / "my_logs"  # Markdown escapes the underscore outside of code
    folder.mkdir()
    log = write_log(folder / "a.txt", seed=1)
    data_folder = f'"DATADIR": {{"value": "{folder}/data"'
    log.write_text(re.sub(r'"BATCHSIZE": \{"value": 16', data_folder, log.read_text()))
    text = report(log, "--markdown", "-").stdout
    assert "DATADIR=data" in text and str(folder) not in text


# ------------------------------------------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    "windows, options, told, shown",
    [(40, ["--protocol", "fleetx"], "asks for 7 runs", "asks for 7 runs"), (3, [], "warm-up", "no figure")],
)
def test_a_figure_that_is_missing_is_exit_1_and_still_a_report(
    tmp_path: Path, windows: int, options: list[str], told: str, shown: str
) -> None:
    log, html = write_log(tmp_path / "a.txt", windows=windows), tmp_path / "report.html"
    error = report(log, *options, "--html", html, code=1).stderr
    assert told in error and error.count("\n") == 1
    page = Parsed(html.read_text())
    assert shown in page.by_id["verdict"]
    assert_self_contained(page)


@pytest.mark.parametrize(
    "arguments",
    [
        ["none.txt"],
        ["a.txt", "a.txt"],
        ["a.txt", "b.txt", "--html", "b.txt"],
        ["a.txt", "--findings", "broken.json"],
        ["a.txt", "--findings", "deep.json"],
        ["a.txt", "--findings", "other.json"],
        ["a.txt", "--runs", "3"],
        ["a.txt", "--csv", "-", "--json"],
        ["a.txt", "--csv", "-", "--markdown", "-"],
        ["a.txt", "--html", "no folder/r.html"],
    ],
)
def test_wrong_use_is_exit_2_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(Path("a.txt"))
    before = write_log(Path("b.txt"), seed=8).read_bytes()
    Path("broken.json").write_text('{"files": [{"file": 1}]}')
    Path("deep.json").write_text("[" * 100_000)
    findings_of(Path("other.json"), {Path("b.txt"): "pass"})
    error = report(*arguments, code=2).stderr
    assert error.count("\n") == 1 and error.startswith("python -m scoring report: ")
    assert Path("b.txt").read_bytes() == before


def test_plots_are_paid_for_by_the_page_alone_and_need_no_home(tmp_path: Path) -> None:
    log, page = str(write_log(tmp_path / "a.txt")), tmp_path / "a.html"
    code = f"import sys; from scoring.__main__ import main; main(['report', {log!r}, '--json']); print(*sys.modules)"
    modules = jobs.run([sys.executable, "-c", code]).stdout.splitlines()[-1].split()
    assert "scoring.report" in modules and "matplotlib" not in modules
    command = (sys.executable, "-m", "scoring", "report", log, "--html", str(page))
    done = jobs.run(command, HOME="/proc", MPLCONFIGDIR="")
    assert (done.returncode, done.stderr) == (0, "") and "<svg" in page.read_text()


def luminance(color: str) -> float:
    """Relative luminance by WCAG 2.1."""
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast_in_light_dark_and_print(tmp_path: Path) -> None:
    page_of(tmp_path, write_log(tmp_path / "a.txt"))
    css = (tmp_path / "report.html").read_text().partition("<style>")[2].partition("</style>")[0]
    palettes = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)
    assert len(palettes) == 2  # paper has the light one
    for palette in palettes:
        colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", palette))
        for ground in ("surface", "page"):
            for name, color in colors.items():
                least = 3.0 if name.startswith("series") else 4.5
                if name in ("grid", "line", "surface", "page"):
                    continue
                light, dark = sorted((luminance(color), luminance(colors[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= least, (name, ground)


# ------------------------------------------------------------------------------------------------- a browser


BROKEN_LINKS = """[...document.querySelectorAll('a')].filter(a => {
  const target = document.getElementById(decodeURIComponent(a.hash.slice(1)));
  return a.origin + a.pathname !== location.origin + location.pathname || !target || !target.getClientRects().length;
}).map(a => a.outerHTML)"""
OUTSIDE = """[...document.querySelectorAll('svg.plot')].filter(s => s.getClientRects().length).flatMap(s => {
  const box = s.getBoundingClientRect();
  return [...s.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect();
    return r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1; })
    .map(t => t.textContent); })"""


CUT_OFF = """[...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth + 1)
  .map(s => s.getAttribute('aria-label'))"""


@pytest.mark.slow
@pytest.mark.ci
def test_in_chromium(opened: Opened, tmp_path: Path) -> None:  # noqa: F811
    logs = [write_log(tmp_path / "plain.txt", devices=1, telemetry=True, topology=pages.TOPOLOGY)]
    logs += [write_log(tmp_path / f"run {n}.txt", devices=2, seed=n, step_s=0.5 + n / 100) for n in (1, 2)]
    logs.append(write_log(tmp_path / "hostile<b>.txt", devices=4, text=pages.HOSTILE))
    file = tmp_path / "report.html"
    report(*logs, "--html", file)
    shots = Path(os.environ.get("REPORT_SHOTS", tmp_path))
    for width, height, phone, schemes in (
        (1280, 900, False, ("light", "dark")),
        (390, 844, True, ("dark",)),
        (320, 600, True, ("light",)),
    ):
        for scheme in schemes:
            page = opened(file, width=width, height=height, scheme=scheme, phone=phone)
            where = f"{width} {scheme}"
            assert page.evaluate("window.pwned") is None, where
            assert page.locator("main > details[open]").count() == 0, where
            page.evaluate(UNFOLD)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, where
            assert page.evaluate(BROKEN_LINKS) == [], where
            assert page.evaluate(OUTSIDE) == [], where
            if not phone:
                assert page.evaluate(CUT_OFF) == [], where
            if width > 320:
                assert page.evaluate(TOO_SMALL) == [], where
            dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 21, 26)"
            assert dark == (scheme == "dark")
            page.screenshot(path=shots / f"report-{width}-{scheme}.png", full_page=True)
    # A followed link shows the quoted line, which is folded away until then.
    page = opened(file, width=1280, phone=False)
    first = page.evaluate("document.querySelector('#verdict td a[href*=line]').click(), location.hash")
    shown = f"document.querySelector('{first}')"
    assert page.evaluate(f"{shown}.matches(':target') && {shown}.checkVisibility({{contentVisibilityAuto: true}})")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    a4_width = 718  # CSS pixels between margins of 10 mm
    page.set_viewport_size({"width": a4_width, "height": 1000})
    assert page.evaluate(CUT_OFF) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= a4_width
    for count, most in ((1, 4), (5, 8)):
        runs = [
            write_log(tmp_path / f"print {n}.txt", seed=n, telemetry=True, topology=pages.TOPOLOGY)
            for n in range(count)
        ]
        report(*runs, "--html", file)
        page = opened(file, width=1280, scheme="dark", phone=False)
        margin = dict.fromkeys(("top", "right", "bottom", "left"), "10mm")
        pdf = page.pdf(path=shots / f"report-{count}.pdf", format="A4", margin=margin)  # type: ignore[arg-type]
        assert 1 < len(re.findall(rb"/Type\s*/Page[^s]", pdf)) <= most


BROKEN_WORDS = """[...document.querySelectorAll('td')].filter(td => td.textContent === 'not measured').filter(td => {
  const word = document.createRange();
  word.setStart(td.firstChild, 4);
  word.setEnd(td.firstChild, 12);
  return word.getClientRects().length !== 1; }).length"""


@pytest.mark.slow
@pytest.mark.ci
def test_a_screen_shows_tables_of_long_names_whole_and_breaks_no_words(
    opened: Opened,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "systems").mkdir()
    folders = []
    for devices in (1, 2):
        system = f"{devices}_node_of_a_system_with_a_long_name_{devices}"
        folders.append(tmp_path / "results" / system / "resnet")
        folders[-1].mkdir(parents=True)
        log = write_log(folders[-1] / "result_0.txt", devices=devices, text="a_long_name_of_one_word_" * 3)
        log.write_text(re.sub(r'"(devices|batch_per_device)": \d+, ', "", log.read_text()))
        description = {"number_of_nodes": devices, "accelerators_per_node": 1}
        (tmp_path / "systems" / f"{system}.json").write_text(json.dumps(description))
    report(*folders, "--html", tmp_path / "report.html")
    page = opened(tmp_path / "report.html", width=1280, phone=False)
    page.evaluate(UNFOLD)
    assert page.locator("td.n .small").count() > 0, "devices and batch have their source"
    assert page.evaluate(CUT_OFF) == []
    assert page.evaluate(BROKEN_WORDS) == 0
