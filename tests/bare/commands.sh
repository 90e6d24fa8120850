#!/usr/bin/env bash
# Installs this checkout for a Python, apart from it, and runs on a log each command that needs no Paddle:
#   tests/bare/commands.sh PYTHON LOG
set -euo pipefail
# SPDX-License-Identifier: Apache-2.0
checkout="$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../.."
python="${1:?a Python}" log="$(realpath "${2:?a log}")"
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT

"${python}" -m venv "${work}/venv"
mkdir "${work}/source" # pip leaves build/ in what it installs
(cd "${checkout}" && git -c "safe.directory=*" ls-files -z | xargs -0 cp --parents -t "${work}/source" --)
cd "${work}"
venv/bin/python -m pip install --quiet --disable-pip-version-check ./source
rm -r source
mkdir first second
cp "${log}" first/result_0.txt
sed 's/"time_ms": 1/"time_ms": 2/' "${log}" >second/result_0.txt # another run

ends_with() { # STATUS COMMAND...
  local status=0
  venv/bin/paddle-reference "${@:2}" >out 2>&1 || status=$?
  if [[ "${status}" != "$1" ]] || grep -q Traceback out; then
    echo "${python}: paddle-reference ${*:2}: status ${status}, not $1:" >&2
    tail -n 20 out >&2
    exit 1
  fi
}
ends_with 0 check first/result_0.txt
ends_with 0 score first/result_0.txt --protocol window
ends_with 0 compare first second --protocol window
ends_with 0 report first/result_0.txt --html report.html
ends_with 0 audit first
ends_with 0 history add --file history.db first/result_0.txt
ends_with 0 history show --file history.db
ends_with 0 watch first --once
ends_with 0 import first/result_0.txt
ends_with 2 system --log first/result_0.txt --out system.json # which cannot know another machine
fields="$(sed -n 's/.*cannot be found out here: \([a-z_, ]*\).*/\1/p' out | tr -d ' ' | tr ',' '\n')"
mapfile -t fields < <(sed '/^$/d; s/$/=none/' <<<"${fields}")
ends_with 0 system --log first/result_0.txt --out system.json "${fields[@]/#/--set=}"
for name in $(venv/bin/paddle-reference | sed -n '/^in a checkout/q; s/^  \([a-z]*\) .*/\1/p'); do ends_with 0 "${name}" --help; done
ends_with 2 verify first # which is not a package
ends_with 2 package --org Example --system none.json --out out.d first
ends_with 2 publish --out site.d first # likewise
ends_with 2 export --parquet windows.parquet first/result_0.txt # without the extra [export]
echo "$("${python}" -V): every command that is listed"
