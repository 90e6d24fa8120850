# shellcheck shell=bash
# What DGX systems of several nodes share; a config_<N>x<SYSTEM>.sh sources it and names its own InfiniBand ports.
# Network: gradients by NCCL over InfiniBand; start-up and host values by Open MPI over Ethernet, without UCX. NCCL meets on
# the interface by which the other nodes of HOSTS reach this one (harness/ranks.py), unless NCCL_SOCKET_IFNAME names another.
# SPDX-License-Identifier: Apache-2.0
export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}"
export OMPI_MCA_btl="${OMPI_MCA_btl:-self,sm,tcp}"
# docker0 and a DGX's link to its BMC (169.254.3.1) have one address on all hosts, at which a rank reaches its own host.
export OMPI_MCA_btl_tcp_if_exclude="${OMPI_MCA_btl_tcp_if_exclude:-lo,docker0,169.254.0.0/16}"
export CONT_DEVICES="${CONT_DEVICES-/dev/infiniband}"
