"""Logs made for a report, and what its page holds."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from harness import nvidia_smi
from tests import make_log
from tests.jobs import Done
from tests.scoring.samples import scoring

HOSTILE = "<script>window.pwned=1</script>\n\"'><img src=x onerror=window.pwned=1></style>]]>&lt;|`x`\u202e\x1b[31m=1+1"
VOID = {"meta", "br", "img", "link", "input", "hr"}

DGX1 = """
        GPU0   GPU1   GPU2   GPU3   mlx5_0  CPU Affinity
GPU0     X     NV1    NV2    SYS    PIX     0-19
GPU1    NV1     X     NODE   NV2    PIX     0-19
GPU2    NV2    NODE    X     NV1    PHB     0-19
GPU3    SYS    NV2    NV1     X     PHB     20-39
mlx5_0  PIX    PIX    PHB    PHB     X
"""
TOPOLOGY = json.loads(json.dumps(nvidia_smi.parse_topology(DGX1)._asdict()))
ODD_LINKS: tuple[dict[str, Any], ...] = (
    {"links": [["X", "NV1"], ["NV1"]]},
    {"links": [["X"]] * 5},
    {"links": 3},
    {"devices": []},
)


def write_log(
    path: Path,
    *,
    devices: int = 2,
    step_s: float = 0.5,
    windows: int = 12,
    text: str = "resnet50_v1.5",
    device: str = "gpu",
    seed: int = 7,
    topology: dict[str, Any] | None = None,
    unsteady: bool = False,
    **of_log: Any,
) -> Path:
    """A log of our own of `windows` windows of 5 steps; every second one is 2 % slower than `step_s`.

    Of an unsteady one a third of the windows, after the tenth, takes twice as long. `text` is what names everything.
    """
    slow = range(11, windows + 1, 3) if unsteady else ()
    times = [step_s * (1.02 if at % 2 else 1.0) * (1 + (at in slow)) for at in range(1, windows + 1) for _ in range(5)]
    settings = {"DGXSYSTEM": "CPU", "BATCHSIZE": 16, "RECIPE.target_top1": 0.9, "SUBMISSION_ORG": text}
    named = {} if text == "resnet50_v1.5" else {"framework": f"paddlepaddle {text}"}
    gpus = [{"name": text, "memory_gib": 32.0}] * devices if named else []
    nodes = [{"host": text, "cpu": text, "cores": 2, "gpus": gpus, "topology": topology}]
    facts = dict.fromkeys(("submission_benchmark", "submission_org", "submission_platform"), text)
    made = make_log.mllog(
        make_log.run_of(times, share=0.04, devices=devices, batch=16, every=5),
        header={
            "source": {"commit": "abc", "dirty": False, "lock_sha256": "d" * 64, "image_digest": None},
            "config": {name: {"value": value, "origin": "environment"} for name, value in settings.items()},
            "packages": {"paddlepaddle-gpu": text},
            "hardware": {"nodes": nodes, "device": device},
        },
        facts=facts | {"seed": seed, "train_samples": 1000, "global_batch_size": 16 * devices},
        **{"accuracy": 0.95, "warm_up": 20, "model": text, **named, **of_log},
    )
    path.write_text(made.replace("human line", text), encoding="utf-8")
    return path


class Parsed(HTMLParser):
    """What a page holds: elements with their attributes, ids, text, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.by_id: dict[str, str] = {}
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"
        self.ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]
        self.hrefs = [attributes["href"] for name, attributes in self.elements if name == "a"]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self._open.append((tag, attributes.get("id")))

    def handle_endtag(self, tag: str) -> None:
        opened = self._open.pop()[0]
        assert opened == tag, f"{opened} closed by {tag} at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        for _, identity in self._open:
            if identity:
                self.by_id[identity] = self.by_id.get(identity, "") + data


def report(*arguments: object, code: int = 0) -> Done:
    """The command, which must end with `code`."""
    done = scoring("report", *arguments)
    assert done.returncode == code, done.stderr
    return done


def page_of(tmp_path: Path, *arguments: object, code: int = 0) -> Parsed:
    page = tmp_path / "report.html"
    report(*arguments, "--html", page, code=code)
    return Parsed(page.read_text(encoding="utf-8"))


def values_of(*arguments: object) -> dict[str, Any]:
    return json.loads(report(*arguments, "--json").stdout)


def assert_self_contained(page: Parsed) -> None:
    """Every link resolves within the page, ids are unique, and nothing is run or fetched."""
    assert len(page.ids) == len(set(page.ids))
    assert page.hrefs and set(page.hrefs) <= {f"#{identity}" for identity in page.ids}
    names = {name for name, _ in page.elements}
    assert not names & {"script", "img", "iframe", "object", "embed", "link", "base", "form", "foreignobject"}
    for name, attributes in page.elements:
        assert not {key for key in attributes if key.startswith("on")}
        for key in ("src", "href", "xlink:href", "action", "data"):
            value = attributes.get(key)
            assert value is None or value.startswith("#"), (name, key, value)


def findings_of(path: Path, verdicts: dict[Path, str]) -> Path:
    error = {"rule": "r", "severity": "error", "line": 7, "expected": "e", "actual": "a", "fix": "f"}
    files = [
        {"file": str(log), "verdict": verdict, "findings": [error] if verdict == "fail" else []}
        for log, verdict in verdicts.items()
    ]
    path.write_text(json.dumps({"files": files}))
    return path
