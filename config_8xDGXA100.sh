# shellcheck shell=bash
# 8 DGX A100, 64 x A100:  CONT=paddle-reference DGXSYSTEM=8xDGXA100 DATADIR=/data/imagenet launch/mpirun.sh --hosts FILE
# Throughput to expect: not measured; a published figure of Paddle is not known here.
# SPDX-License-Identifier: Apache-2.0
export DGXNNODES="${DGXNNODES:-8}"
source "$(dirname "${BASH_SOURCE[0]}")/config_2xDGXA100.sh"
