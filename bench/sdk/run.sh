#!/usr/bin/env bash
# Jobs a second of the consume loop of sdk/js, beside bullmq on Redis with the same jobs: one job a handler call, 50 side by
# side, each acknowledged. Prints both and their ratio. Goal: twice as many as bullmq.
#
#   bench/sdk/run.sh [BINARY]    build/queen by default; nothing of ours is built here
#
#   QUEEN_NODE=PATH              the node to run with (node)
#   QUEEN_BENCH_DIR=DIR          where the broker's data goes, on the disk to be measured (build/bench)
#   QUEEN_BENCH_JOBS=N           jobs a run (100000)
#
# The broker stores on disk and syncs before it answers, as always. Redis runs without any persistence, which is the most
# that can be done for bullmq. Both run on this machine with their client, one after the other; each side three times, by
# turns, and the best of each counts. Exit code: 0 measured, whether or not the goal was met.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(realpath "$here/../..")
queen=$(realpath "${1:-$root/build/queen}")
node=${QUEEN_NODE:-node}
jobs=${QUEEN_BENCH_JOBS:-100000}
base=${QUEEN_BENCH_DIR:-$root/build/bench}
modules=$root/build/bench-sdk

# bullmq is pinned in package-lock.json and lives under build/.
mkdir -p "$modules" "$base"
if ! cmp -s "$here/package-lock.json" "$modules/package-lock.json" || [ ! -d "$modules/node_modules/bullmq" ]; then
  rm -rf "$modules/node_modules"
  cp "$here/package.json" "$here/package-lock.json" "$modules/"
  (cd "$modules" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
fi

work=$(mktemp -d "$(realpath "$base")/sdk.XXXXXX")
pids=()
finish() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait || true
  rm -rf "$work"
}
trap finish EXIT

free_port() { /usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# await <what> <command...>: until it succeeds, ten seconds at most.
await() {
  local what=$1 i
  shift
  for ((i = 0; i < 100; i++)); do
    ! "$@" >/dev/null 2>&1 || return 0
    sleep 0.1
  done
  echo "bench: $what did not start" >&2
  return 1
}

figure() { sed -n "s/.*\"jobs_per_s\":\([0-9]*\).*/\1/p" <<<"$1"; }

queen_round() {
  local port pid line
  port=$(free_port)
  "$queen" serve --data "$work/data" --port "$port" >"$work/queen.log" 2>&1 &
  pid=$!
  pids+=("$pid")
  await "the broker" curl -sf "http://127.0.0.1:$port/health"
  line=$("$node" "$root/sdk/js/bench/consume.mjs" queen "http://127.0.0.1:$port" "$jobs")
  kill "$pid"
  wait "$pid" || true
  rm -rf "$work/data"
  figure "$line"
}

bullmq_round() {
  local port pid line
  port=$(free_port)
  redis-server --port "$port" --bind 127.0.0.1 --save "" --appendonly no --dir "$work" >"$work/redis.log" 2>&1 &
  pid=$!
  pids+=("$pid")
  await "redis" redis-cli -p "$port" ping
  line=$(QUEEN_BENCH_MODULES="$modules/node_modules" "$node" "$root/sdk/js/bench/consume.mjs" bullmq "$port" "$jobs")
  kill "$pid"
  wait "$pid" || true
  figure "$line"
}

ours=0 theirs=0
for round in 1 2 3; do
  one=$(queen_round)
  two=$(bullmq_round)
  echo "round $round: sdk/js $one jobs/s, bullmq $two jobs/s" >&2
  [ "$one" -le "$ours" ] || ours=$one
  [ "$two" -le "$theirs" ] || theirs=$two
done
printf '%-58s %s jobs/s\n' "consume loop, sdk/js on queen (synced to disk)" "$ours"
printf '%-58s %s jobs/s\n' "consume loop, bullmq on Redis (no persistence)" "$theirs"
awk -v ours="$ours" -v theirs="$theirs" 'BEGIN {
  ratio = ours / theirs
  printf "%-58s %-24s %-22s %s\n", "consume loop of sdk/js over bullmq", ">= 2 times", sprintf("%.1f times", ratio), (ratio >= 2 ? "met" : "missed")
}'
