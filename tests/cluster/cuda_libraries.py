"""Run in the image: opens each CUDA library by Paddle's own loader and prints its version and file. Needs no GPU."""

import ctypes
import functools
import json
import sys
from pathlib import Path

import paddle

PHI = ctypes.CDLL(str(Path(paddle.__file__).parent / "libs" / "libphi.so"))


def returned(library: ctypes.CDLL, name: str) -> str:
    """The version that a function returns."""
    function = getattr(library, name)
    function.restype = ctypes.c_size_t
    return str(function())


def written(library: ctypes.CDLL, name: str, *before: int, count: int = 1) -> str:
    """The version that a function writes into `count` numbers behind its first arguments."""
    values = [ctypes.c_int() for _ in range(count)]
    if (status := getattr(library, name)(*before, *map(ctypes.byref, values))) != 0:
        raise OSError(f"{name} returned {status}")
    return ".".join(str(value.value) for value in values)


def parts(library: ctypes.CDLL, name: str) -> str:
    """The version whose three parts a function writes one by one."""
    return ".".join(written(library, name, part) for part in range(3))


# Paddle's function that opens a library (phi/backends/dynload), and how the library says its version.
LIBRARIES = {
    "cudnn": ("17GetCUDNNDsoHandleEv", returned, "cudnnGetVersion"),
    "cublas": ("18GetCublasDsoHandleEv", parts, "cublasGetProperty"),
    "cublasLt": ("20GetCublasLtDsoHandleEv", returned, "cublasLtGetVersion"),
    "nccl": ("16GetNCCLDsoHandleEv", written, "ncclGetVersion"),
    "cufft": ("17GetCUFFTDsoHandleEv", written, "cufftGetVersion"),
    "curand": ("18GetCurandDsoHandleEv", written, "curandGetVersion"),
    "cusolver": ("20GetCusolverDsoHandleEv", written, "cusolverGetVersion"),
    "cusparse": ("20GetCusparseDsoHandleEv", parts, "cusparseGetProperty"),
    "nvrtc": ("17GetNVRTCDsoHandleEv", functools.partial(written, count=2), "nvrtcVersion"),
    "cupti": ("17GetCUPTIDsoHandleEv", written, "cuptiGetVersion"),
    "nvToolsExt": ("16GetNvtxDsoHandleEv", lambda *_: "no version call", ""),
}


def main() -> None:
    versions = {}
    for name, (symbol, version, function) in LIBRARIES.items():
        opener = getattr(PHI, f"_ZN3phi7dynload{symbol}")
        opener.restype = ctypes.c_void_p
        handle = opener()
        if not handle:
            sys.exit(f"{name}: Paddle could not open it")
        versions[name] = version(ctypes.CDLL(name, handle=handle), function)
    # Paddle has the runtime built in; other programs open it by name. Without a driver it does not say its version.
    ctypes.CDLL("libcudart.so.11.0")
    (package,) = Path("/opt/cuda").glob("nvidia_cuda_runtime_cu11-*.dist-info")
    versions["cudart"] = package.name.split("-")[1].removesuffix(".dist")
    maps = Path("/proc/self/maps").read_text().split()
    files = sorted({path for path in maps if path.startswith("/opt/cuda")})
    print(json.dumps({"versions": versions, "files": files}))


if __name__ == "__main__":
    main()
