# shellcheck shell=bash
# DGX-1, 8 x V100:  DGXSYSTEM=DGX1 DATADIR=/data/imagenet ./run_and_time.sh        one GPU: DGXNGPU=1 before it
# Throughput to expect: by this code not measured. Published for 8 x V100 32 GB, AMP O2, batch 256: 10937 images/s, FP32: 3019
# (PaddlePaddle/Perf ResNet50V1.5, Paddle 2.5.0). For 16 GB: FP32, batch 128: 2621 images/s (DLPerf, Paddle 1.8.3).
# The batch of ResNet-50 fits 32 GB; on 16 GB set BATCHSIZE=128.
# SPDX-License-Identifier: Apache-2.0

## Ranks, on the cores of their GPU's socket (GPU 0 to 3 hang on the first)
export RANK_NUMA="${RANK_NUMA-0,0,0,0,1,1,1,1}"
export DATA_THREADS="${DATA_THREADS:-4}" # of 5 cores a GPU

source "$(dirname "${BASH_SOURCE[0]}")/launch/dgx.sh"
