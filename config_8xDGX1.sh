# shellcheck shell=bash
# 8 DGX-1, 64 x V100:  CONT=paddle-reference DGXSYSTEM=8xDGX1 DATADIR=/data/imagenet launch/mpirun.sh --hosts FILE
# Throughput to expect: by this code not measured. Published for V100, automatic strategy, batch 32: 30607 images/s (FleetX
# benchmark); at batch 256: not measured by anybody here quoted.
# SPDX-License-Identifier: Apache-2.0
export DGXNNODES="${DGXNNODES:-8}"
source "$(dirname "${BASH_SOURCE[0]}")/config_2xDGX1.sh"
