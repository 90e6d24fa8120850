# shellcheck shell=bash
# 4 DGX A100, 32 x A100:  CONT=paddle-reference DGXSYSTEM=4xDGXA100 DATADIR=/data/imagenet launch/mpirun.sh --hosts FILE
# Throughput to expect: not measured; a published figure of Paddle is not known here.
# SPDX-License-Identifier: Apache-2.0
export DGXNNODES="${DGXNNODES:-4}"
source "$(dirname "${BASH_SOURCE[0]}")/config_2xDGXA100.sh"
