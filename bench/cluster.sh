#!/usr/bin/env bash
# Three nodes on this machine against one, in one run: steps, large pushes, failover, hand-over, CPU. See bench/cluster.py.
#
#   bench/cluster.sh [BINARY] [ROW...]     ROW: step rate push64k push1m failover handover; all of them by default
#
#   QUEEN_BENCH_QUICK=1    shorter runs and 10 kills instead of 50
#   QUEEN_BENCH_DIR=DIR    where data goes, on the disk to be measured (build/bench)
#   QUEEN_BENCH_KEEP=FILE  append the JSON lines of all runs to this file
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
queen=$here/../build/queen
case "${1:-}" in
  */*)
    queen=$1
    shift
    ;;
esac
[ -x "$queen" ] || { echo "bench: $queen is not there; build it first: ./dev build" >&2; exit 1; }
base=${QUEEN_BENCH_DIR:-$here/../build/bench}
mkdir -p "$base"
exec /usr/bin/python3 "$here/cluster.py" "$(realpath "$queen")" "$(realpath "$base")" "$@"
