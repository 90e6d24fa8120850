#!/usr/bin/env bash
# Builds tests/null_gpu/build/libnullgpu.so, and a link to it by the name of each library that Paddle opens. Seconds; once.
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "${BASH_SOURCE[0]}")"
paddle="$(cd ../../.venv/lib/python3*/site-packages/paddle && pwd)"
names=(libcuda.so libcudnn.so{,.8} libcublas.so{,.11} libcublasLt.so{,.11} libnccl.so{,.2} libcurand.so{,.10} libcusolver.so{,.11}
  libcusparse.so{,.11} libcufft.so{,.10} libcupti.so{,.11.8} libnvidia-ml.so.1)

mkdir -p build
exec {lock}>build/lock
flock "${lock}"
stamp="$(cat src/* build.sh | sha256sum) ${paddle}"
[[ "$(cat build/stamp 2>/dev/null)" != "${stamp}" ]] || exit 0
flags=(-O1 -g -fPIC -Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers -Isrc)
objects=()
for source in core paddle libraries; do
  gcc "${flags[@]}" -c "src/${source}.c" -o "build/${source}.o"
  objects+=("build/${source}.o")
done
../../.venv/bin/python src/names.py "${paddle}"/libs/libphi.so "${paddle}"/base/libpaddle.so -- "${objects[@]}" >build/stubs.c
gcc "${flags[@]}" -shared -o build/libnullgpu.so "${objects[@]}" build/stubs.c -ldl -lpthread
for name in "${names[@]}"; do ln -sf libnullgpu.so "build/${name}"; done
echo "${stamp}" >build/stamp
