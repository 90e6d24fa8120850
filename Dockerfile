# The run image: Debian slim, Python 3.11, locks/run.lock and locks/cuda.lock, this code. Build: launch/build_image.sh
ARG BASE=debian:bookworm-slim

# --- what needs a package index (and maybe a site's CA) happens in this stage; nothing of either is copied on ---------
FROM ${BASE} AS packages
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 python3-pip python3-venv
# .build/ is put there by launch/build_image.sh: the site's CA certificates (ca/*.crt) and pip.conf; absent otherwise.
COPY locks/cuda.lock .buil[d] /build/
RUN cp /build/ca/*.crt /usr/local/share/ca-certificates/ 2>/dev/null; update-ca-certificates >/dev/null
ENV PIP_CONFIG_FILE=/build/pip.conf PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# libcusolverMg (multi-GPU solver, 187 MB) is the one library here that Paddle never opens. Paddle opens the others by
# their name without a version, so each gets that name too.
RUN pip install --require-hashes --no-deps --no-compile --target /opt/cuda -r /build/cuda.lock \
    && find /opt/cuda/nvidia -name 'libcusolverMg.so*' -delete \
    && find /opt/cuda/nvidia -name include -prune -exec rm -r {} + \
    && for library in /opt/cuda/nvidia/*/lib/lib*.so.*; do ln -s "${library##*/}" "${library%%.so.*}.so"; done

COPY locks/run.lock /build/
RUN python3 -m venv --without-pip /opt/venv \
    && pip --python /opt/venv install --require-hashes --no-deps -r /build/run.lock \
    && cd /opt/venv/lib/python3.11/site-packages \
    # C++ headers, DALI's extensions for other Pythons, and the test suites of SciPy and its kin: 150 MB that no run reads.
    && rm -r paddle/include nvidia/dali/include \
    && find nvidia/dali -name '*.cpython-*.so' ! -name '*.cpython-311-*' -delete \
    && find numpy pandas scipy sklearn matplotlib mpi4py joblib -type d -name tests -prune -exec rm -r {} +

# --- the image ---------------------------------------------------------------------------------------------------------
FROM ${BASE}
# openssh: the nodes of a job; nss-extrausers: a name for whatever --user is given; the rest: InfiniBand for NCCL and UCX.
RUN apt-get update && apt-get install -y --no-install-recommends \
        python3 openssh-client openssh-server libnss-extrausers libgomp1 numactl \
        ibverbs-providers libibverbs1 librdmacm1 \
    && sed -i -E 's/^(passwd|group):.*/& extrausers/' /etc/nsswitch.conf \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/ldconfig/aux-cache /var/log/* \
        /etc/apt/sources.list /etc/apt/sources.list.d /etc/ssh/ssh_host_* /var/lib/extrausers \
    # No password, no set-user-id program, nothing that everybody may write but /tmp.
    && find / -xdev -perm /6000 -type f -exec chmod ug-s {} + \
    && chmod 755 /var/tmp /run/lock \
    # launch/nodes.py writes the entry for an unknown user id here; extrausers ignores ids below 500.
    && ln -s /tmp/extrausers /var/lib/extrausers \
    && mkdir -p /run/sshd \
    && useradd --uid 1000 --create-home --home-dir /home/mpiuser --shell /bin/bash mpiuser

COPY --from=packages /opt/cuda /opt/cuda
COPY --from=packages /opt/venv /opt/venv
RUN printf '%s\n' /opt/cuda/nvidia/*/lib >/etc/ld.so.conf.d/cuda.conf && ldconfig && rm -f /var/cache/ldconfig/aux-cache

# `docker run --gpus all` is all that a GPU host adds.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONDONTWRITEBYTECODE=1 PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

WORKDIR /workspace
COPY . .
RUN ln -s /opt/venv .venv && install -d -o mpiuser -g mpiuser results data
ARG COMMIT=unknown
ARG LOCK_SHA256=unknown
LABEL org.opencontainers.image.title="Paddle reference submission" \
      org.opencontainers.image.revision="${COMMIT}" \
      locks.sha256="${LOCK_SHA256}"
ENV SOURCE_COMMIT=${COMMIT}
USER mpiuser
CMD ["./run_and_time.sh"]
