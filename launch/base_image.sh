#!/usr/bin/env bash
# Makes the image's base, debian:bookworm-slim, with debootstrap where no registry can be reached.
# Needs root, debootstrap and ENGINE (docker, or podman); the packages come from this machine's own apt sources, or from --mirror.
#
# usage: launch/base_image.sh [--mirror URL] [--suite NAME] [--root DIR] [--dry-run]
#   --mirror URL  Debian mirror (default: where this machine's apt gets bookworm from)
#   --suite NAME  of Debian's (default: bookworm); the image is debian:NAME-slim
#   --root DIR    the files of a root into DIR, and no image
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."
source launch/common.sh
known_engine docker podman

mirror="" suite=bookworm root=""
take_options "--mirror= --suite= --root=" "$@"
root=${root:+$(from_caller "${root}")}
[[ ${suite} =~ ^[a-z]+$ ]] || refuse "--suite ${suite}: must be a name of Debian's, such as bookworm"
[[ -z ${mirror} || ${mirror} =~ ^[a-z+]+:/ ]] || refuse "--mirror ${mirror}: must be a URL, such as http://deb.debian.org/debian"
[[ ! -e ${root} || -d ${root} ]] || refuse "--root ${root}: is not a folder: name a new one, or an empty one"
tag=debian:${suite}-slim

# One line "URI RELEASE" for each source of the suite (release, updates, security) that apt knows here.
sources=""
if [[ -n ${mirror} ]]; then
  sources="${mirror} ${suite}"
elif command -v apt-get >/dev/null; then
  sources=$(apt-get indextargets --format "\$(REPO_URI) \$(RELEASE)" 'Created-By: Packages' 'Component: main' |
    awk -v suite="${suite}" '$2 ~ "^" suite "(-updates|-security)?$"' | sort -u)
  mirror=$(awk -v suite="${suite}" '$2 == suite { print $1; exit }' <<<"${sources}")
fi
[[ -n ${mirror} ]] || refuse "this machine's apt has no source for ${suite}: give one with --mirror URL"

if [[ -n ${dry_run} ]]; then
  echo "debootstrap --variant=minbase ${suite} ROOT ${mirror}"
  [[ -n ${root} ]] || echo "${ENGINE} import - ${tag}"
  exit 0
fi
asked=${root} # else the root is one step on the way to the image
if [[ -z ${asked} ]]; then
  need_engine
  [[ -z $(image_id "${tag}") ]] || { echo "base_image.sh: ${tag} is present, nothing to do" && exit 0; }
fi
command -v debootstrap >/dev/null || refuse "debootstrap is missing: apt-get install debootstrap"
[[ $(id -u) == 0 ]] || refuse "debootstrap needs root: run this with sudo"

root=${root:-$(mktemp -d)}
[[ -n ${asked} ]] || trap 'rm -rf -- "${root}"' EXIT
script=()
[[ -e /usr/share/debootstrap/scripts/${suite} ]] || script=(/usr/share/debootstrap/scripts/sid) # a suite that is newer than it
made=""
for wait_s in 10 30 0; do # a mirror may fail for a moment; a second try goes on with the packages that are here
  status=0
  debootstrap --variant=minbase "${suite}" "${root}" "${mirror}" "${script[@]}" >"${root}.log" 2>&1 || status=$?
  if ((status == 0)); then
    made=yes
    break
  fi
  tail -n 20 "${root}.log" >&2
  ((status <= 128)) || break     # the user ended it
  [[ ! -e ${root}/usr ]] || break # all packages are here, and some are unpacked: debootstrap cannot do that twice
  sleep "${wait_s}"
done
rm -f "${root}.log"
[[ -n ${made} ]] || { echo "base_image.sh: debootstrap failed (mirror ${mirror})" >&2; exit 1; }

awk '{ print "deb", $1, $2, "main" }' <<<"${sources}" >"${root}/etc/apt/sources.list"
# As the published slim image: no manuals, no translations, no package lists; copyright files stay.
cat >"${root}/etc/dpkg/dpkg.cfg.d/slim" <<'DPKG'
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
DPKG
find "${root}/usr/share/doc" -type f ! -name copyright -delete
rm -rf "${root}"/usr/share/{man,info,locale}/* "${root}"/var/lib/apt/lists/* "${root}"/var/cache/apt/*.bin \
  "${root}"/var/cache/apt/archives/*.deb "${root}"/var/log/* "${root}"/etc/{machine-id,hostname,resolv.conf}

[[ -z ${asked} ]] || exit 0
tar -C "${root}" --numeric-owner -c . | "${ENGINE}" import --change 'CMD ["bash"]' - "${tag}"
