#!/usr/bin/env bash
# Installs locks into .venv:  launch/setup.sh [run] [dev] [bench]  (default: run). A lock that is installed is left alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.venv
NEEDED_GB=7 # packages and pip's temporary files

fail() {
  echo "error: $*" >&2
  exit 2
}

# The stamp of a lock holds the hash of what was installed.
installed() {
  local stamp="${VENV}/$1.sha256"
  [[ -f "${stamp}" && "$(<"${stamp}")" == "$(sha256sum <"locks/$1.lock")" ]]
}

find_python() {
  local python version found=""
  for python in python3.11 python3.12 python3.10 python3; do
    version="$("${python}" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" || continue
    case "${version}" in
      3.10 | 3.11 | 3.12)
        PYTHON="${python}"
        return
        ;;
    esac
    found="${found} ${version}"
  done
  fail "Python 3.10, 3.11 or 3.12 is needed, as Paddle 2.6.2 has wheels for these only; found:${found:- none}." \
    "Install one (Debian: apt install python3 python3-venv)"
}

make_venv() {
  [[ "$(uname -s)-$(uname -m)" == Linux-x86_64 ]] ||
    fail "$(uname -s) on $(uname -m): Paddle's wheel exists for Linux on x86_64 only"
  find_python
  "${PYTHON}" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "${PYTHON} has no venv module: apt install $("${PYTHON}" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
  local free_kb
  free_kb="$(df --output=avail -k . | tail -n 1)"
  ((free_kb >= NEEDED_GB * 1000000)) ||
    fail "$((free_kb / 1000000)) GB free in ${PWD}: ${NEEDED_GB} GB are needed for ${VENV}: free some or clone elsewhere"
  "${PYTHON}" -m venv "${VENV}" || fail "${PYTHON} -m venv ${VENV} failed: see above"
}

for lock in "${@:-run}"; do
  installed "${lock}" && continue
  [[ -x "${VENV}/bin/python" ]] || make_venv
  echo "setup: installing locks/${lock}.lock into ${VENV}, once"
  log="${VENV}/${lock}.log"
  "${VENV}/bin/python" -m pip install --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
    --requirement "locks/${lock}.lock" >"${log}" 2>&1 ||
    fail "pip could not install locks/${lock}.lock: $(grep -m 1 ERROR "${log}" || tail -n 1 "${log}"); all of it is in ${log}"
  sha256sum <"locks/${lock}.lock" >"${VENV}/${lock}.sha256"
done
