#!/usr/bin/env bash
# The README's commands where nothing else is installed:  ./tests/run.sh --bare   (needs root and debootstrap)
#
# A Debian 12 without gcc, with 64 MB of /dev/shm and no terminal: a user without rights runs the README's first command,
# installs what it asks for, runs it again, then a fast part of the tests. Then the commands that need no Paddle, from
# `pip install .`, on Debian 12 and 13, on Debian testing, and on the Pythons of this machine that these do not have.
#
#   PIP_FIND_LINKS   a folder of wheels to fill, which what runs afterwards may share (default: one that goes again)
#   BARE_RESULTS     a folder for the first command's results (default: none)
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../.."

work="$(mktemp -d)"
wheels="${PIP_FIND_LINKS:-${work}/wheels}" wheels="${wheels##* }"
chmod 755 "${work}"
mkdir -p "${wheels}"
later="" # the process group that makes roots beside the rest
finish() {
  [[ -z "${later}" ]] || kill -- "-${later}" 2>/dev/null || true
  wait
  rm -rf --one-file-system "${work}" # mounts are in a namespace of their own and gone with its last process
}
trap finish EXIT
step() { printf -- '-- %s (%d s)\n' "$*" "${SECONDS}"; }
die() { echo "bare: $*" >&2; exit 1; }

# A root of SUITE with PACKAGES, and this checkout in it, the user's own. A mirror's copy of testing may be an old one.
make_root() { # SUITE PACKAGES...
  local root="${work}/$1" apt="apt-get -qq -o Acquire::Check-Valid-Until=no"
  launch/base_image.sh --suite "$1" --mirror "${mirror}" --root "${root}"
  cp /etc/resolv.conf "${root}/etc/"
  uname -n >"${root}/etc/hostname" # as an installer leaves it, and the next
  echo "127.0.0.1 localhost $(uname -n)" >"${root}/etc/hosts"
  [[ -z "${PIP_CERT:-}" ]] || cp "${PIP_CERT}" "${root}/etc/site-ca.crt" # of a site behind a proxy
  in_root "$1" root "${apt} update && ${apt} install --no-install-recommends ${*:2}" >"${root}.apt" 2>&1 ||
    { cat "${root}.apt" >&2; die "apt-get fails in ${root}"; }
  in_root "$1" root "useradd --create-home --shell /bin/bash user"
  git clone --quiet . "${root}/home/user/checkout"
  git ls-files -z | xargs -0 cp --parents -t "${root}/home/user/checkout" --
  mkdir -p "${root}/wheels"
  in_root "$1" root "chown -R user: /home/user"
}

# COMMAND by bash as USER, in a system whose processes all end with it.
in_root() { # SUITE USER COMMAND
  local root="${work}/$1" variables=() variable
  for variable in PIP_INDEX_URL PIP_NO_INDEX HTTPS_PROXY https_proxy; do
    [[ -z "${!variable:-}" ]] || variables+=("${variable}=${!variable}")
  done
  [[ -z "${PIP_CERT:-}" ]] || variables+=(PIP_CERT=/etc/site-ca.crt)
  # shellcheck disable=SC2016 # for the inner shell
  unshare --mount --pid --fork --kill-child bash -c '
    set -e
    root=$1 wheels=$2
    mount --bind "${root}" "${root}"
    mount -t proc proc "${root}/proc"
    mount --rbind /sys "${root}/sys" && mount --make-rslave "${root}/sys" && mount -o remount,bind,ro "${root}/sys"
    mount -t tmpfs -o size=1m,mode=755 tmpfs "${root}/dev"
    for device in null zero full random urandom tty; do touch "${root}/dev/${device}"; mount --bind "/dev/${device}" "${root}/dev/${device}"; done
    ln -s /proc/self/fd "${root}/dev/fd"
    for name in 0:stdin 1:stdout 2:stderr; do ln -s "fd/${name%:*}" "${root}/dev/${name#*:}"; done
    mkdir "${root}/dev/pts" "${root}/dev/shm"
    mount -t devpts -o newinstance,mode=620,ptmxmode=666,gid=5 devpts "${root}/dev/pts" && ln -s pts/ptmx "${root}/dev/ptmx"
    mount -t tmpfs -o size=64m,mode=1777 tmpfs "${root}/dev/shm"
    mkdir -p "${root}/wheels" && mount --bind "${wheels}" "${root}/wheels"
    cd "${root}" && pivot_root . . && umount --lazy . # not chroot alone: in one a user makes no namespaces
    exec chroot --userspec="$3" / /usr/bin/env -i "${@:5}" bash -c "cd; $4"
    ' _ "${root}" "${wheels}" "$2" "$3" PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin DEBIAN_FRONTEND=noninteractive \
    "HOME=$([[ "$2" == root ]] && echo /root || echo "/home/$2")" PIP_FIND_LINKS=/wheels "${variables[@]}" </dev/null
}

step "Debian 12"
mirror="$(launch/base_image.sh --dry-run | awk '/^debootstrap/ { print $NF }')"
set -m # beside the downloads and the job
(make_root trixie python3 python3-venv git ca-certificates && make_root testing python3 python3-venv git ca-certificates) \
  >"${work}/later" 2>&1 &
later=$!
set +m
# What the README says that a machine must have, but for libgomp1, and sudo, as servers have it.
# shellcheck disable=SC2016 # README's own marks
read -ra packages < <(sed -n 's/.*`apt-get install \(.*\) libgomp1`.*/\1/p' README.md)
make_root bookworm "${packages[@]:?the README names no packages}" sudo
# Each wheel of the locks, which the rest of this run and what comes after it install from.
stamp="${wheels}/$(cat locks/{run,dev,peers}.lock | sha256sum | cut -c 1-16).complete"
if [[ ! -f "${stamp}" ]]; then
  for lock in run dev peers; do
    in_root bookworm root "cd /home/user/checkout; [ -d /opt/pip ] || python3 -m venv /opt/pip; mkdir -p .venv.tmp
      TMPDIR=\$PWD/.venv.tmp /opt/pip/bin/pip download --quiet --no-cache-dir --no-deps --only-binary :all: --require-hashes \
        --dest /wheels --requirement locks/${lock}.lock; rm -r .venv.tmp"
  done
  touch "${stamp}"
fi

step "the first command, before what it needs is there"
printed="$(in_root bookworm user 'cd checkout && ./run_and_time.sh 2>&1')" && die "it ran without libgomp1"
asked="$(sed -n 's/^error: .*libgomp.so.1.*: \(apt-get install .*\)$/\1/p' <<<"${printed}")"
[[ -n "${asked}" && "$(wc -l <<<"${printed}")" == 1 ]] || die "no line that says what to install: ${printed}"
in_root bookworm root "${asked} -y -qq" >/dev/null 2>&1

step "the first command"
PIP_NO_INDEX=1 in_root bookworm user 'cd checkout && ./run_and_time.sh'
[[ -z "${BARE_RESULTS:-}" ]] || cp -r "${work}/bookworm/home/user/checkout/results/." "${BARE_RESULTS}"

cp "${work}/bookworm/home/user/checkout/results/CPU/rn50/result_0.txt" "${work}"

step "a fast part of the second"
PIP_NO_INDEX=1 in_root bookworm user 'cd checkout && ./tests/run.sh tests/runlog tests/launch/test_setup.py'

step "the commands that need no Paddle"
commands_in() { # SUITE PYTHON
  cp "${work}/result_0.txt" "${work}/$1/home/user/result_0.txt"
  in_root "$1" user "checkout/tests/bare/commands.sh $2 result_0.txt" || die "the commands fail on $2"
}
wait "${later}" || { cat "${work}/later" >&2; die "no Debian 13 or testing"; }
later=""
printed="$(in_root trixie user 'cd checkout && ./run_and_time.sh 2>&1')" && die "Paddle has no wheel for Python 3.13"
[[ "${printed}" == "error: Python 3.10, 3.11 or 3.12 is needed to train"*"To check and score logs"* ]] || die "${printed}"
commands_in bookworm python3.11 &
running=($!)
commands_in trixie python3.13 &
running+=($!)
for process in "${running[@]}"; do wait "${process}"; done
newest="$(readlink "${work}/testing/usr/bin/python3")"
commands_in testing "${newest}" &
running=($!)
# Those that no suite has: of this machine, where it has them.
for version in 3.10 3.12 3.14; do
  [[ "${newest}" != "python${version}" ]] || continue
  found="$(compgen -G "${PYENV_ROOT:-${HOME}/.pyenv}/versions/${version}.*/bin/python${version}" | head -n 1 || true)"
  found="${found:-$(command -v "python${version}" || true)}"
  if [[ -z "${found}" ]]; then
    echo "bare: python${version} is not to be had here: not tried"
  else
    tests/bare/commands.sh "${found}" "${work}/result_0.txt" || die "the commands fail on ${found}"
  fi
done
for process in "${running[@]}"; do wait "${process}"; done
step "done"
