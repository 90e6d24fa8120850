#!/usr/bin/env bash
# Builds the run image from what git tracks here, by ENGINE: docker (default; its classic builder or BuildKit) or podman.
#
# usage: launch/build_image.sh [--tag NAME] [--base NAME] [--ca FILE] [--index URL] [--dry-run]
#   --tag NAME   image to make (default: paddle-reference:latest)
#   --base NAME  base image (default: debian:bookworm-slim; launch/base_image.sh makes it where no registry can be reached)
#   --ca FILE    extra CA certificates (PEM, one or more) that the package index needs, as behind a proxy; not left in the image
#   --index URL  package index or mirror to install from; not left in the image
# CUDA=12 in the environment takes locks/run12.lock and locks/cuda12.lock, for Hopper (launch/lock.sh cuda12 makes them).
# DOCKER_BUILDKIT=1 or 0 in the environment chooses BuildKit or the classic builder; unset, the docker client does.
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."
source launch/common.sh
known_engine docker podman

tag=paddle-reference:latest base=debian:bookworm-slim index="" ca=""
take_options "--tag= --base= --ca= --index=" "$@"
ca=${ca:+$(from_caller "${ca}")}
[[ -z ${ca} ]] || { [[ -f ${ca} ]] && grep -q 'BEGIN CERTIFICATE' "${ca}"; } || refuse "--ca ${ca}: not a PEM file of certificates"
git rev-parse --git-dir >/dev/null 2>&1 || refuse "${PWD} is not a git checkout: the image is made of what git tracks"

for name in "${tag}" "${base}"; do
  [[ ${name} =~ ^[a-z0-9]([a-z0-9._/:-]*[a-z0-9])?(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$ ]] ||
    refuse "image '${name}': must be NAME or NAME:TAG, the name in lower case, such as paddle-reference:latest"
done

commit=$(git rev-parse HEAD)
[[ -z $(git status --porcelain --untracked-files=no) ]] || commit+=-dirty
cuda=${CUDA:-11}
[[ ${cuda} == 1[12] ]] || refuse "CUDA=${cuda}: must be 11 or 12, or unset"
cuda=${cuda/11/}
[[ -z ${cuda} || -f locks/run${cuda}.lock && -f locks/cuda${cuda}.lock ]] ||
  refuse "CUDA=${cuda}: locks/run${cuda}.lock is not here: make it by launch/lock.sh cuda${cuda} --index URL"
lock_sha256=$(cat "locks/run${cuda}.lock" "locks/cuda${cuda}.lock" | sha256sum | cut -d' ' -f1)
build=("${ENGINE}" build --force-rm --tag "${tag}" --build-arg "BASE=${base}" --build-arg "COMMIT=${commit}"
  --label "org.opencontainers.image.revision=${commit}" --label org.opencontainers.image.licenses=Apache-2.0
  --label "locks.sha256=${lock_sha256}" ${cuda:+--build-arg "CUDA=${cuda}"})
if [[ -n ${dry_run} ]]; then
  printf '%q ' "${build[@]}" && echo "CONTEXT"
  exit 0
fi
need_engine
[[ -n $(image_id "${base}") ]] || "${ENGINE}" pull --quiet "${base}" >/dev/null 2>&1 ||
  refuse "base image ${base} is neither here nor to be pulled: run launch/base_image.sh"

context=$(mktemp -d)
trap 'rm -rf -- "${context}"' EXIT
git ls-files -z | xargs -0 cp --parents -t "${context}" --
[[ -z ${cuda} ]] || cp "locks/run${cuda}.lock" "locks/cuda${cuda}.lock" "${context}/locks/"
# The image must not depend on who checked the code out, nor on their umask; a changed time stamp must not rebuild a layer.
chmod -R u=rwX,go=rX "${context}"
mkdir -p "${context}/.build/ca"
[[ -z ${ca} ]] || cp -- "${ca}" "${context}/.build/ca/extra.crt"
printf '[global]\n%s\n%s\n' "${index:+index-url = ${index}}" \
  "${PIP_EXTRA_INDEX_URL:+extra-index-url = ${PIP_EXTRA_INDEX_URL}}" >"${context}/.build/pip.conf"

"${build[@]}" "${context}"
"${ENGINE}" image inspect --format "${tag}: {{.Size}} bytes" "${tag}"
