#!/usr/bin/env bash
# Fetches the public logs of other systems that tests read, each from its own repository at a pinned commit.
#
#   tests/fetch_logs.sh [--dry-run] [FOLDER]     FOLDER: default data/published_logs, where the tests look
#
# A file is kept only if its SHA-256 is the recorded one; one that is there is not fetched again. LOGS_MIRROR: a URL to use
# instead of https://raw.githubusercontent.com, with the same paths below it. Exit status: 1 where a file could not be had.
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.."
source launch/common.sh

take_options WORDS "$@"
folder=${words[0]:-data/published_logs}
[[ -n ${dry_run} ]] || command -v curl >/dev/null || refuse "curl is missing: install it"
base=${LOGS_MIRROR:-https://raw.githubusercontent.com}

perf=PaddlePaddle/Perf
mlperf=mlcommons/training_results_v2.0/a6ae3e16d97bca208ee5510f3614fcd4fa923650/NVIDIA/results/dgxa100_ngc22.04_mxnet/resnet
failed=0
while read -r sha256 name path; do
  file=${folder}/${name}
  if [[ -n ${dry_run} ]]; then
    echo "${base}/${path} -> ${file}"
    continue
  fi
  [[ -f ${file} ]] && sha256sum --quiet --check <<<"${sha256}  ${file}" 2>/dev/null && continue
  mkdir -p "$(dirname "${file}")"
  if ! curl --silent --show-error --fail --location --output "${file}.part" "${base}/${path}"; then
    echo "error: ${name}: ${base}/${path} could not be fetched" >&2
    failed=1
  elif ! sha256sum --quiet --status --check <<<"${sha256}  ${file}.part"; then
    echo "error: ${name}: ${base}/${path} has another SHA-256 than ${sha256}: not kept" >&2
    failed=1
  else
    mv "${file}.part" "${file}"
    echo "${file}"
  fi
  rm -f "${file}.part"
done <<END
cbb9570575951bbf543572a754ef9623d9ac8f7866e79cac20a6e6cc769797e3 paddleclas_v100_gpu8_fp32_bs256.log ${perf}/69edec3bb7e0db17f0a0d9ba8b87a184cf3c1bd6/ResNet50V1.5/logs/V100-LOG/PaddleClas_ResNet50_bs256_fp32_DP_N1C8_log
4d8da7ed699ef03996a3ee832d271d14418c0ffc2574cb9fea5c214edddc2992 paddleclas_v100_gpu32_fp32_bs256.log ${perf}/9881d049dd1dd49f4ecfc8da25b2535bea7096e7/ResNet50V1.5/logs/paddle_gpu32_fp32_bs256.txt
aaedde86db1058fec00d9f5f40aa9d55db208a519541e82e11fc0959a14d3617 paddleclas_a100_gpu1_fp32_bs256.log ${perf}/ec8b8ccac2846456b3dc94683a335091152c933b/ResNet50V1.5/logs/A100-LOG/PaddleClas_ResNet50_bs256_fp32_DP_N1C1_log
eeb4a654fa40179ce4b58d9f28426c7cb52e003f65a9e54a189b6d075a177d24 ngc_tensorflow_v100_gpu8_amp_bs256.log ${perf}/ab3c044bebbb99028b80514968d243b62657ff49/ResNet50V1.5/OtherReports/TensorFlow/logs/V100_LOG/tf_gpu8_amp_bs256.txt
a4923a26add8156ee19477010a4d987fd7c0ed305f1a8d0ea876f84ac3ca95bd ngc_pytorch_v100_gpu1_amp_bs256.log ${perf}/69edec3bb7e0db17f0a0d9ba8b87a184cf3c1bd6/ResNet50V1.5/OtherReports/PyTorch/logs/V100-LOG/pytorch_gpu1_amp_bs256.txt
23e049b082960f312d47b250fc8cfece0ab9016f8d4216bf78053fbd9bc4e792 ngc_mxnet_v100_gpu1_fp32_bs128.log ${perf}/69edec3bb7e0db17f0a0d9ba8b87a184cf3c1bd6/ResNet50V1.5/OtherReports/MxNet/logs/V100_LOG/mxnet_gpu1_fp32_bs128.txt
e391afb8078b681022fc5bdf33c11aee48ac4ec2a52b1b998b65f8b0ceaebd2f paddleseg_v100_gpu1_fp32_bs8.log ${perf}/1f580d8c9dfa2cc0132c56ccb1b3ae5b9fd0331d/HRNetW18/logs/paddle/PaddleSeg_fcn_hrnetw18_bs8_fp32_DP_N1C1_log
05dbc28f25f524f1efcbc930598a576f4f0b5526870d796b386028170fef44ff mmseg_v100_gpu8_fp32_bs8.log ${perf}/e7a07c4d39e04de5e24652daaf02d204f0209acb/HRNetW18/OtherReports/PyTorch/logs/hrnet_torch_bs8_fp32_gpu8
314d79121df9b64dc7e7e0d57bfdda5adf82bfd04c2d61fc87dddf06d0b74a0d mlperf_v2.1_dgxa100_resnet/result_0.txt ${mlperf}/result_0.txt
f72eb48302bdb926b755bf70bcbd38d8d0c0dd88d2261c6143ee0166f25157c3 mlperf_v2.1_dgxa100_resnet/result_1.txt ${mlperf}/result_1.txt
0f92ea560bcfdda0210b2bea76daeadc41cfe78bfe6e77100b84ab671d1f04e4 mlperf_v2.1_dgxa100_resnet/result_2.txt ${mlperf}/result_2.txt
55de1b996b4c1fdfd2554af8585e86d00595f4bdcbf68d79a2f566503b1a4261 mlperf_v2.1_dgxa100_resnet/result_3.txt ${mlperf}/result_3.txt
784276b8a006ef708a55c8502da23513e1d4f000ef8a0a900cf2967939981dc0 mlperf_v2.1_dgxa100_resnet/result_4.txt ${mlperf}/result_4.txt
END
((failed == 0)) || echo "error: some logs are missing: the tests that read them will be skipped" >&2
exit "${failed}"
