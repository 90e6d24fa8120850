# shellcheck shell=bash
# Sourced by the launchers and the trial loop.

# Whether $1 is a setting that a library reads on each rank. Of NVIDIA_* only this one: the container runtime owns the others,
# and CUDA_VISIBLE_DEVICES is each node's own.
of_library() { [[ $1 == @(NCCL|UCX|FLAGS|OMP|MKL)_* || $1 == NVIDIA_TF32_OVERRIDE ]]; }

# Names of the job's variables (the fields of harness/env.py), the libraries' and mpirun's own that are set in this shell:
# what a launcher hands to a node. What a config file sets is not among them: run_and_time.sh reads it on each node.
job_variables() {
  local contract name
  contract=$(sed -nE 's/^    ([a-z_]+): (str|int) = _var\(.*/\U\1/p' harness/env.py)
  [[ -n ${contract} ]] || { echo "harness/env.py has no variables: this checkout is not whole" >&2; return 2; }
  for name in $(compgen -e); do
    if [[ ${name} == @(OMPI|PRTE)_MCA_* ]] || of_library "${name}" || grep -qx "${name}" <<<"${contract}"; then
      echo "${name}"
    fi
  done
}

# Hosts of a hostfile with commas between: first word of each line, comments and Open MPI's slots left out.
hosts_of_file() { sed 's/#.*//' "$1" | awk 'NF { print $1 }' | paste -sd,; }
