#!/usr/bin/env bash
# Writes what the image's locks install as a bill of materials in CycloneDX, for a scanner.
#
# usage: launch/sbom.sh FILE
#   FILE  the file to write
#
# By cyclonedx-py of locks/dev.lock. What differs between Pythons is there in each version.
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."
source launch/common.sh

take_options WORDS "$@"
((${#words[@]} == 1)) || refuse "which file? Name one file to write; see --help"
file=$(from_caller "${words[0]}")
tool=.venv/bin/cyclonedx-py
[[ -x ${tool} ]] || refuse "${tool} is not here: launch/setup.sh run dev installs it"
[[ (! -e ${file} || -f ${file}) && -d ${file%/*} && -w ${file%/*} ]] || refuse "${file}: cannot be written: name a file in a folder of yours"
if [[ -n ${dry_run} ]]; then
  echo "${tool} requirements --output-file ${file} of locks/run.lock and locks/cuda.lock"
  exit 0
fi

cat locks/run.lock locks/cuda.lock | "${tool}" requirements --output-file "${file}" -
