"""Coverage-guided fuzzing of importers and score:  python tests/scoring/fuzz.py [libFuzzer options] FOLDER

The first byte of an input chooses the format (or recognition), the rest is the log. New inputs that reach more code
go to FOLDER; an empty one is filled with a log of each format first. `test_fuzz.py` tries the same on fewer inputs.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["scoring"]):
        from scoring.importers import FORMATS
        from tests.scoring import samples, test_fuzz
    names = sorted(FORMATS)
    if len(sys.argv) > 1 and (folder := Path(sys.argv[-1])).is_dir() and not any(folder.iterdir()):
        for at, name in enumerate(names):
            text = samples.WRITERS[name](samples.run_of(samples.steady(40), epoch_steps=20))
            (folder / name).write_bytes(bytes([at + 1]) + text.encode())
    log = Path(tempfile.mkdtemp()) / "a.log"

    def run_one(data: bytes) -> None:
        log.write_bytes(data[1:])
        chosen = data[0] % (len(names) + 1) if data else 0
        test_fuzz.survive(log, names[chosen - 1] if chosen else None)

    atheris.Setup(sys.argv, run_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
