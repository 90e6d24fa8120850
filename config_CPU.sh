# shellcheck shell=bash
# Any machine's CPU:  ./run_and_time.sh
# Throughput to expect: depends on the machine; benchmarks/README.md has one that was measured.
# A machine of your own: copy this file to config_<NAME>.sh, export what differs (docs/settings.md), start DGXSYSTEM=<NAME>.
# SPDX-License-Identifier: Apache-2.0
export HRNET_BATCHSIZE="${HRNET_BATCHSIZE:-4}" # all else is the default of harness/job.py
