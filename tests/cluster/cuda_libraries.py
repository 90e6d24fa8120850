"""Run in the image: opens each CUDA library by Paddle's own loader and prints its version and file. Needs no GPU."""

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path

import paddle

PHI = ctypes.CDLL(str(Path(paddle.__file__).parent / "libs" / "libphi.so"))


def by_value(name: str) -> Callable[[ctypes.CDLL], int]:
    def version(library: ctypes.CDLL) -> int:
        function = getattr(library, name)
        function.restype = ctypes.c_size_t
        return function()

    return version


def by_pointer(name: str, *before: int) -> Callable[[ctypes.CDLL], int]:
    def version(library: ctypes.CDLL) -> int:
        value = ctypes.c_int()
        if (status := getattr(library, name)(*before, ctypes.byref(value))) != 0:
            raise OSError(f"{name} returned {status}")
        return value.value

    return version


def by_properties(name: str) -> Callable[[ctypes.CDLL], str]:
    return lambda library: ".".join(str(by_pointer(name, part)(library)) for part in range(3))


def nvrtc(library: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    assert library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
    return f"{major.value}.{minor.value}"


# Paddle's function that opens a library (phi/backends/dynload), and how the library says its version.
LIBRARIES = {
    "cudnn": ("17GetCUDNNDsoHandleEv", by_value("cudnnGetVersion")),
    "cublas": ("18GetCublasDsoHandleEv", by_properties("cublasGetProperty")),
    "cublasLt": ("20GetCublasLtDsoHandleEv", by_value("cublasLtGetVersion")),
    "nccl": ("16GetNCCLDsoHandleEv", by_pointer("ncclGetVersion")),
    "cufft": ("17GetCUFFTDsoHandleEv", by_pointer("cufftGetVersion")),
    "curand": ("18GetCurandDsoHandleEv", by_pointer("curandGetVersion")),
    "cusolver": ("20GetCusolverDsoHandleEv", by_pointer("cusolverGetVersion")),
    "cusparse": ("20GetCusparseDsoHandleEv", by_properties("cusparseGetProperty")),
    "nvrtc": ("17GetNVRTCDsoHandleEv", nvrtc),
    "cupti": ("17GetCUPTIDsoHandleEv", by_pointer("cuptiGetVersion")),
    "nvToolsExt": ("16GetNvtxDsoHandleEv", lambda _: "no version call"),
}


def main() -> None:
    versions = {}
    for name, (symbol, version) in LIBRARIES.items():
        opener = getattr(PHI, f"_ZN3phi7dynload{symbol}")
        opener.restype = ctypes.c_void_p
        handle = opener()
        if not handle:
            sys.exit(f"{name}: Paddle could not open it")
        versions[name] = str(version(ctypes.CDLL(name, handle=handle)))
    # Paddle has the runtime built in; other programs open it by name. Without a driver it does not say its version.
    ctypes.CDLL("libcudart.so.11.0")
    (package,) = Path("/opt/cuda").glob("nvidia_cuda_runtime_cu11-*.dist-info")
    versions["cudart"] = package.name.split("-")[1].removesuffix(".dist")
    maps = Path("/proc/self/maps").read_text().split()
    files = sorted({path for path in maps if path.startswith("/opt/cuda")})
    print(json.dumps({"versions": versions, "files": files}))


if __name__ == "__main__":
    main()
