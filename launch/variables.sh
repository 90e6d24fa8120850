# shellcheck shell=bash
# Sourced by the launchers.

# Names of the job's variables (the fields of harness/env.py) and the libraries' own that are set in this shell: what a
# launcher hands to a node. What a config file sets is not among them: run_and_time.sh reads it on each node.
job_variables() {
  local contract name
  contract=$(sed -nE 's/^    ([a-z_]+): (str|int) = _var\(.*/\U\1/p' harness/env.py)
  [[ -n ${contract} ]] || { echo "harness/env.py has no variables: this checkout is not whole" >&2; return 2; }
  for name in $(compgen -e); do
    case ${name} in
      NCCL_* | UCX_* | FLAGS_* | OMPI_MCA_* | PRTE_MCA_*) echo "${name}" ;;
      *) if grep -qx "${name}" <<<"${contract}"; then echo "${name}"; fi ;;
    esac
  done
}

# Hosts of a hostfile with commas between: first word of each line, comments and Open MPI's slots left out.
hosts_of_file() { sed 's/#.*//' "$1" | awk 'NF { print $1 }' | paste -sd,; }
