#!/usr/bin/env bash
# install.sh DIR: the published Python client in an environment of its own in DIR, each file checked against
# the hashes of requirements.txt. Debian's pytest is seen through the environment. Quick when DIR is up to date.
set -euo pipefail
dir=${1:?which directory?}
here=$(dirname "${BASH_SOURCE[0]}")
want=$here/requirements.txt
[ ! -x "$dir/bin/python" ] || ! cmp -s "$want" "$dir/installed.txt" || exit 0
rm -rf "$dir"
mkdir -p "$(dirname "$dir")"
/usr/bin/python3 -m venv --system-site-packages "$dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --ignore-installed \
  --no-deps --only-binary :all: --require-hashes -r "$want"
cp "$want" "$dir/installed.txt"
