#!/usr/bin/env bash
# The pushes of the table's first two rows to Redis streams: the same load core, payloads, lanes and connections, the same
# disk, `appendfsync always`. With dedup (one script a request: SET NX with an hour's expiry, then XADD) and without (XADD,
# pipelined). A fresh server on 127.0.0.1 for every point, in a folder that is removed again.
#
#   bench/peers_redis.sh BINARY [LINES]    LINES: JSON lines of our own runs, for the ratios; ours are appended
#
#   QUEEN_BENCH_DIR=DIR       where the server's data goes (a temporary folder)
#   QUEEN_BENCH_SECONDS=N     measured seconds of a point (10)
#   QUEEN_BENCH_REDIS_PORT=N  a random one by default
set -euo pipefail
queen=$(realpath "${1:?the path of the queen binary}")
lines=${2:-}
port=${QUEEN_BENCH_REDIS_PORT:-$((20000 + RANDOM % 10000))}
seconds=${QUEEN_BENCH_SECONDS:-10}
command -v redis-server >/dev/null || { echo "bench: redis-server is not installed; no comparison (./dev deps bench)" >&2; exit 0; }

work=$(mktemp -d "$(realpath "${QUEEN_BENCH_DIR:-${TMPDIR:-/tmp}}")/redis.XXXXXX")
server=
stop() {
  [ -z "$server" ] || { kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }
  server=
}
trap 'stop; rm -rf "$work"' EXIT

start() {
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    echo "bench: port $port is taken; name another with QUEEN_BENCH_REDIS_PORT" >&2
    return 1
  fi
  mkdir "$work/data"
  redis-server --port "$port" --bind 127.0.0.1 --dir "$work/data" --save '' --appendonly yes --appendfsync always \
    --auto-aof-rewrite-percentage 0 --daemonize no --logfile "$work/log" >/dev/null 2>&1 &
  server=$!
  local tries
  for tries in $(seq 100); do
    kill -0 "$server" 2>/dev/null || break
    [ "$(redis-cli -p "$port" ping 2>/dev/null)" != PONG ] || return 0
    sleep 0.05
  done
  echo "bench: redis-server does not start on port $port (tried $tries times):" >&2
  tail -n 5 "$work/log" >&2 || true
  return 1
}

figure() { sed -n "s/.*\"$2\":\"\{0,1\}\([^,\"}]*\).*/\1/p" <<<"$1"; }

# ours <batch>: messages a second of our own push with that batch, dedup on.
ours() {
  [ -n "$lines" ] || return 0
  figure "$(grep '"bench":"push"' "$lines" | grep "\"batch\":$1," | tail -n 1)" messages_per_s
}

printf '%-58s %-24s %-22s %s\n' "redis $(redis-server --version | sed -n 's/.*v=\([0-9.]*\).*/\1/p') streams, appendfsync always" \
  "CPU of the server" "measured" "ours / theirs"
for batch in 1 100; do
  for dedup in on off; do
    start
    line=$("$queen" bench redis --json --port "$port" --pid "$server" --batch "$batch" --conns 64 --lanes 200 --size 256 \
      --dedup "$dedup" --duration "$seconds")
    stop
    rm -rf "$work/data"
    [ -z "$lines" ] || echo "$line" >>"$lines"
    rate=$(figure "$line" messages_per_s)
    cost=$(figure "$line" broker_us_per_message)
    mine=$(ours "$batch")
    awk -v batch="$batch" -v dedup="$dedup" -v rate="$rate" -v cost="$cost" -v mine="${mine:-0}" 'BEGIN {
      text = sprintf("push, 256 B, batch %d, 64 connections, %s", batch, dedup == "on" ? "dedup in a script" : "no dedup")
      ratio = mine > 0 && rate > 0 ? sprintf("%.2f (ours with dedup)", mine / rate) : "-"
      printf "%-58s %-24s %-22s %s\n", text, cost " us/msg", rate " msg/s", ratio
    }'
  done
done
