"""Writes stubs.c: of each function of CUDA's libraries that Paddle looks up and no object given here defines, one that
counts its calls and answers 0. The names are those of the objects phi::dynload::<function> among the dynamic symbols of
the installed wheel. Usage: names.py LIBRARY_OF_PADDLE... -- OBJECT..."""

import mmap
import re
import subprocess
import sys
from pathlib import Path

# "driver" is what Paddle itself opens as libcuda.so. CUDA's runtime opens libcuda.so.1: nothing here stands in for it.
PREFIXES = {"driver": "cu"} | {
    name: name for name in ("cudnn", "cublas", "nccl", "curand", "cusolver", "cusparse", "cupti", "cufft")
}


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def looked_up(library: Path) -> set[bytes]:
    """Functions that Paddle's `library` looks up in another one when it first calls them."""
    sections = output("readelf", "--section-headers", "--wide", str(library))
    section = re.search(r" \.dynstr +STRTAB +\w+ (\w+) (\w+)", sections)
    assert section is not None, sections
    start, size = (int(text, 16) for text in section.groups())
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = re.findall(rb"_ZN(?:3phi|6paddle8platform)7dynload(\d+)(\w+)E\0", content[start : start + size])
    return {name for length, name in found if int(length) == len(name)}


split = sys.argv.index("--")
defined = {
    line.split()[-1].encode()
    for line in output("nm", "--extern-only", "--defined-only", *sys.argv[split + 1 :]).splitlines()
    if line and not line.endswith(":")
}
names = set().union(*(looked_up(Path(library)) for library in sys.argv[1:split])) - defined
print('#include "core.h"')
print('#define STUB(KIND, NAME) int NAME(void) { COUNT(KIND); ng_trace(KIND "\\t" #NAME); return 0; }')
for kind, prefix in PREFIXES.items():
    for name in sorted(name.decode() for name in names if re.match(rb"%b[A-Z]" % prefix.encode(), name)):
        print(f'STUB("{kind}", {name})')
