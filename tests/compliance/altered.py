"""Logs with events removed, repeated, moved and changed."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKEN = ":::MLLOG "


class Altered:
    """The lines of a log; each method changes it and returns it. `number` counts the events of a key, -1 the last."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def events(self) -> list[int]:
        return [index for index, line in enumerate(self.lines) if TOKEN in line]

    def at(self, key: str, number: int = 0) -> int:
        return [index for index in self.events() if f'"key": "{key}"' in self.lines[index]][number]

    def fields(self, index: int) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.lines[index].partition(TOKEN)[2])
        return fields

    def write(self, index: int, fields: dict[str, Any]) -> None:
        self.lines[index] = TOKEN + json.dumps(fields)

    def change(self, key: str, change: Callable[[dict[str, Any]], object], number: int = 0) -> "Altered":
        index = self.at(key, number)
        fields = self.fields(index)
        change(fields)
        self.write(index, fields)
        return self

    def value(self, key: str, value: Any, number: int = 0) -> "Altered":
        return self.change(key, lambda fields: fields.update(value=value), number)

    def inside(self, key: str, number: int = 0, **values: Any) -> "Altered":
        """Other fields of a value that is a table."""
        return self.change(key, lambda fields: fields["value"].update(values), number)

    def metadata(self, key: str, number: int = 0, **metadata: Any) -> "Altered":
        return self.change(key, lambda fields: fields["metadata"].update(metadata), number)

    def without_metadata(self, key: str, name: str, number: int = 0) -> "Altered":
        return self.change(key, lambda fields: fields["metadata"].pop(name), number)

    def seed(self, seed: int) -> "Altered":
        """Another seed, in the event and in the header of a log of ours."""
        self.lines = [re.sub(r'("SEED": {"value": )-?\d+', rf"\g<1>{seed}", line) for line in self.lines]
        return self.value("seed", seed)

    def aborted(self) -> "Altered":
        """As a run of ours that did not reach the target ends: it sums up no telemetry."""
        return self.metadata("run_stop", status="aborted").drop("telemetry_summary")

    def later(self, key: str, ms: float, number: int = 0) -> "Altered":
        return self.change(key, lambda fields: fields.update(time_ms=fields["time_ms"] + ms), number)

    def drop(self, key: str, number: int = 0) -> "Altered":
        del self.lines[self.at(key, number)]
        return self

    def drop_all(self, *keys: str) -> "Altered":
        self.lines = [line for line in self.lines if not any(f'"key": "{key}"' in line for key in keys)]
        return self

    def repeat(self, key: str, number: int = 0) -> "Altered":
        index = self.at(key, number)
        self.lines.insert(index, self.lines[index])
        return self

    def move_after(self, key: str, other: str, number: int = 0) -> "Altered":
        line = self.lines.pop(self.at(key, number))
        self.lines.insert(self.at(other, -1) + 1, line)
        return self

    def add_after(self, key: str, line: str, number: int = 0) -> "Altered":
        self.lines.insert(self.at(key, number) + 1, line)
        return self

    def line(self, key: str, change: Callable[[str], str], number: int = 0) -> "Altered":
        index = self.at(key, number)
        self.lines[index] = change(self.lines[index])
        return self


def foreign(text: str) -> str:
    """The log without what only this project writes."""
    log = Altered("\n".join(line for line in text.splitlines() if not line.startswith("# {")))
    return log.drop_all("run_summary", "step_window", "epoch_throughput", "telemetry_summary").text


def write(folder: Path, *texts: str) -> list[Path]:
    """The logs of a submission."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"result_{index}.txt" for index in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths
