# shellcheck shell=bash
# 4 DGX-1, 32 x V100:  CONT=paddle-reference DGXSYSTEM=4xDGX1 DATADIR=/data/imagenet launch/mpirun.sh --hosts FILE
# Throughput to expect: by this code not measured. Published for V100 32 GB, AMP O2, batch 256: 39972 images/s, FP32: 10984
# (PaddlePaddle/Perf ResNet50V1.5, June 2022); V100 16 GB, FP32, batch 128: 9312 (DLPerf, Paddle 1.8.3).
# SPDX-License-Identifier: Apache-2.0
export DGXNNODES="${DGXNNODES:-4}"
source "$(dirname "${BASH_SOURCE[0]}")/config_2xDGX1.sh"
