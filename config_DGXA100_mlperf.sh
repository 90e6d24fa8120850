# shellcheck shell=bash
# DGX A100 for the MLPerf closed division:  DGXSYSTEM=DGXA100_mlperf DATADIR=/data/imagenet SUBMISSION_ORG="Your organisation" ./run_and_time.sh
# Throughput to expect: by this code not measured, nor has a GPU run its strategy. Published for 8 x A100 80 GB by a program
# of Paddle's with units and a captured step, batch 408: 26548 images/s (Baidu, MLPerf v1.1).
# SPDX-License-Identifier: Apache-2.0
export RN50_RECIPE="${RN50_RECIPE:-mlperf_lars}"
export RN50_BATCHSIZE="${RN50_BATCHSIZE:-408}" # a global batch of 3264, a reference convergence point
export RN50_AMP_O2_STRATEGY="${RN50_AMP_O2_STRATEGY:-resnet_unit=1,merged_lars=1,cuda_graph=1}" # a captured step has a fixed loss scale
export NEXP="${NEXP:-5}"
export SUBMISSION_DIVISION="${SUBMISSION_DIVISION:-closed}"
export SUBMISSION_STATUS="${SUBMISSION_STATUS:-onprem}"
export SUBMISSION_PLATFORM="${SUBMISSION_PLATFORM:-DGXA100}"
source "$(dirname "${BASH_SOURCE[0]}")/config_DGXA100.sh"
