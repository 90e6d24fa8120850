# The run image: Debian slim, Python 3.11, locks/run.lock and locks/cuda.lock (for Hopper, by CUDA=12, run12 and cuda12), this
# code. Build it with launch/build_image.sh.
ARG BASE=debian:bookworm-slim

# --- what needs a package index, and maybe a site's CA, happens in this stage: only its two folders are copied on ---------
FROM ${BASE} AS packages
ARG CUDA=
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates libgomp1 python3 python3-pip python3-venv
# .build/ comes from launch/build_image.sh: the site's CA certificates (ca/*.crt) and pip.conf. It may be absent.
COPY locks/cuda*.lock .buil[d] /build/
RUN cp /build/ca/*.crt /usr/local/share/ca-certificates/ 2>/dev/null; update-ca-certificates >/dev/null
ENV PIP_CONFIG_FILE=/build/pip.conf PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_NO_CACHE_DIR=1

# Paddle opens each library by its name without a version, so each gets that name too. libcusolverMg (the solver for several
# GPUs, 187 MB) is the only one that it never opens; headers serve compilers.
RUN pip install --require-hashes --no-deps --no-compile --target /opt/cuda -r "/build/cuda${CUDA}.lock" \
    && find /opt/cuda/nvidia -name 'libcusolverMg.so*' -delete \
    && find /opt/cuda/nvidia -name include -prune -exec rm -r {} + \
    && for library in /opt/cuda/nvidia/*/lib/lib*.so.*; do ln -s "${library##*/}" "${library%%.so.*}.so"; done

WORKDIR /workspace
COPY launch/setup.sh launch/common.sh launch/by_uv.py launch/
COPY locks/run*.lock locks/uv.lock locks/
# Away with C++ headers, DALI's extensions for other Pythons, and the libraries' own tests: no run reads them. And with
# uv, pip, and their logs, which name the index.
RUN CUDA="${CUDA}" launch/setup.sh run \
    && .venv/bin/python -m pip uninstall --quiet --yes uv \
    && rm -f .venv/*.log .venv/uv.sha256 .venv/.lock \
    && cd .venv/lib/python3.11/site-packages \
    && rm -r paddle/include nvidia/dali/include pip \
    && find nvidia/dali -name '*.cpython-*.so' ! -name '*.cpython-311-*' -delete \
    && find numpy matplotlib mpi4py -type d -name tests -prune -exec rm -r {} +

# The embedded data set, so that a job needs no writable folder beside its results.
COPY program/__init__.py program/arrays.py program/
COPY harness/__init__.py harness/digits.txt harness/embedded.py harness/
COPY paddle_rn50/__init__.py paddle_rn50/digits.py paddle_rn50/
RUN .venv/bin/python -m paddle_rn50.digits data

# --- the code, without .build/ and reports ----------------------------------------------------------------------------------
FROM ${BASE} AS source
WORKDIR /source
COPY . .
RUN rm -rf .build results && chmod -R go-w .

# --- the image -------------------------------------------------------------------------------------------------------------
FROM ${BASE}
# openssh joins the nodes of a job; nss-extrausers names whatever --user is given; ibverbs and rdmacm are InfiniBand for NCCL
# and UCX. No password, no set-user-id program, and nothing that everybody may write but /tmp.
RUN apt-get update && apt-get install -y --no-install-recommends \
        python3 libgomp1 openssh-client openssh-server libnss-extrausers ibverbs-providers libibverbs1 librdmacm1 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/* /etc/apt/sources.list /etc/apt/sources.list.d \
        /etc/ssh/ssh_host_* /var/lib/extrausers \
    && sed -i -E 's/^(passwd|group):.*/& extrausers/' /etc/nsswitch.conf \
    && ln -s /tmp/extrausers /var/lib/extrausers \
    && find / -xdev -perm /6000 -type f -exec chmod ug-s {} + \
    && chmod 755 /var/tmp /run/lock \
    && useradd --uid 1000 --create-home --shell /bin/bash mpiuser \
    && install -d /run/sshd && install -d -o mpiuser -g mpiuser /workspace/results

COPY --from=packages /opt/cuda /opt/cuda
COPY --from=packages /workspace/.venv /workspace/.venv
COPY --from=packages /workspace/data /workspace/data
RUN printf '%s\n' /opt/cuda/nvidia/*/lib >/etc/ld.so.conf.d/cuda.conf && ldconfig && rm -f /var/cache/ldconfig/aux-cache

# `docker run --gpus all` is all that a GPU host adds; which GPUs is said by who starts the container. `video` brings
# libnvcuvid.so.1, without which nvJPEG leaves the A100's JPEG decoder unused. Nothing is written next to the code.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility,video PYTHONDONTWRITEBYTECODE=1 \
    PATH=/workspace/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /workspace
USER mpiuser
CMD ["./run_and_time.sh"]

# From here on a change of the code rebuilds. Labels: launch/build_image.sh.
COPY --from=source /source /workspace
ARG COMMIT=unknown
ENV SOURCE_COMMIT=${COMMIT}
