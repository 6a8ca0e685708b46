#!/usr/bin/env bash
# Measures a built broker and prints the table of goals; then the same work in Redis and PostgreSQL on the same disk.
#
#   bench/run.sh [BINARY] [ROW...]   BINARY: a path with a slash; build/queen by default; nothing is built here
#
#   ROW: push push100 popack deliver jobs idle lanes polls redis
#        step-open step-next step-one step-rate step-lanes kv step-peers; `step` is these seven. All of them by default
#
#   QUEEN_BENCH_QUICK=1          shorter runs: the shape of the numbers, not the numbers
#   QUEEN_BENCH_DIR=DIR          where data goes, on the disk to be measured (build/bench); a folder of its own is made
#                                in it and removed again
#   QUEEN_BENCH_ROWS="push jobs" the rows, when none are named as arguments
#   QUEEN_BENCH_KEEP=FILE        append the JSON lines of all runs to this file
#
# Every row has a fresh broker on an empty folder, started and stopped by `queen bench`. Exit code: 0 measured, whether or
# not a goal was met; 1 something could not be measured.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
step_rows="step-open step-next step-one step-rate step-lanes kv step-peers"
all_rows="push push100 popack deliver jobs idle lanes polls redis $step_rows"
names_too=step
. "$here/lib.sh"
chmod 711 "$work" # PostgreSQL runs as somebody else
[[ " $rows " != *" step "* ]] || rows="$rows $step_rows"

if [ "$quick" = 1 ]; then
  seconds=3 count=500000 lanes=100000 polls=5000
else
  seconds=10 count=3000000 lanes=1000000 polls=20000
fi

# Both sides of a parked poll need a file each; where the machine allows fewer, fewer are parked.
files=$(ulimit -Hn)
if [ "$files" != unlimited ] && [ "$polls" -gt $((files - 1000)) ]; then
  polls=$((files - 1000))
fi

# The step over 200 lanes, which other rows are compared with: measured once.
step_line=
step_base() {
  [ -z "$step_line" ] || return 0
  measure step --workers 64 --lanes 200 --size 256 --duration "$seconds"
  step_line=$line
}

table_head

if wanted push; then
  measure push --batch 1 --conns 64 --lanes 200 --size 256 --dedup on --duration "$seconds"
  row "push, 256 B, batch 1, 64 connections, dedup on" "$line" messages_per_s least 60000 msg/s
  row "  broker CPU a request" "$line" broker_us_per_request most 15 us
  say "  p50 of a push" "$line" p50_ms ms
  say "  p99 of a push" "$line" p99_ms ms
fi
if wanted push100; then
  measure push --batch 100 --conns 64 --lanes 200 --size 256 --dedup on --duration "$seconds"
  row "push, 256 B, batch 100, 64 connections, dedup on" "$line" messages_per_s least 600000 msg/s
  row "  broker CPU a message" "$line" broker_us_per_message most 1.2 us
fi
if wanted popack; then
  measure popack --batch 100 --conns 64 --lanes 200 --size 256 --duration "$seconds" --warmup 0.5 --count "$count"
  row "pop + ack, batch 100, 200 lanes" "$line" messages_per_s least 400000 msg/s
  say "  broker CPU a message" "$line" broker_us_per_message us
fi
if wanted deliver; then
  measure deliver --rate 1000 --lanes 200 --duration "$seconds"
  row "push to delivery to a parked long poll, 1,000 msg/s, p50" "$line" p50_ms most 0.6 ms
  row "  p99" "$line" p99_ms most 3 ms
  say "  p50 of the push alone" "$line" second_p50_ms ms
fi
if wanted jobs; then
  measure jobs --rate 500 --lanes 200 --duration "$seconds"
  row "500 jobs/s, push + pop + ack alone: broker CPU a job" "$line" broker_us_per_message most 120 us
  say "  p50 of a job" "$line" p50_ms ms
fi
if wanted idle; then
  measure idle --duration 10
  row "idle: resident" "$line" rss_mb most 25 MB
  row "  CPU" "$line" cpu_percent most 0.04 %
  row "  ready after exec on an empty directory" "$line" ready_ms most 150 ms
fi
if wanted lanes; then
  measure lanes --lanes "$lanes"
  row "$lanes lanes, one message and one group each: resident" "$line" rss_mb most 350 MB
  row "  ready again after kill -9" "$line" ready_again_s most 5 s
  say "  resident after the restart" "$line" rss_after_restart_mb MB
fi
if wanted polls; then
  measure polls --conns "$polls" --duration 5
  say "$polls parked long polls: resident" "$line" broker_rss_mb MB
  say "  CPU at rest" "$line" broker_cores cores
  say "  one push into as many lanes: all woken after" "$line" wake_all_s s
fi
if wanted redis; then
  echo
  QUEEN_BENCH_DIR=$work QUEEN_BENCH_SECONDS=$seconds "$here/peers_redis.sh" "$queen" "$lines" || failed=1
fi
if wanted step-open || wanted step-next || wanted step-lanes || wanted step-peers; then
  step_base
  row "step: pop 10, transaction, 200 lanes, 64 workers" "$step_line" steps_per_s least 20000 steps/s
  row "  broker CPU a step" "$step_line" broker_us_per_step most 45 us
  say "  client CPU a step" "$step_line" client_us_per_step us
  say "  p50 of the transaction alone" "$step_line" second_p50_ms ms
fi
if wanted step-next; then
  measure step --next --workers 64 --lanes 200 --size 256 --duration "$seconds"
  say "step with next: one call" "$line" steps_per_s steps/s
  ratio_row "  against two calls" "$line" steps_per_s "$step_line" least 1.5
  say "  broker CPU a step" "$line" broker_us_per_step us
fi
if wanted step-one; then
  measure step --batch 1 --workers 64 --lanes 200 --size 256 --duration "$seconds"
  row "step of one message" "$line" steps_per_s least 30000 steps/s
  say "  broker CPU a step" "$line" broker_us_per_step us
fi
if wanted step-rate; then
  measure step --rate 1000 --workers 64 --lanes 200 --size 256 --duration "$seconds"
  row "1,000 steps/s: transaction commit, p50" "$line" second_p50_ms most 0.5 ms
  row "  p99" "$line" second_p99_ms most 3 ms
  row "  input pushed to output consumed, p50" "$line" p50_ms most 1.5 ms
  row "  p99" "$line" p99_ms most 6 ms
fi
if wanted step-lanes; then
  for many in 10000 100000; do
    measure step --workers 64 --lanes "$many" --size 256 --duration "$seconds"
    say "step over $many lanes" "$line" steps_per_s steps/s
    ratio_row "  200 lanes against it" "$step_line" steps_per_s "$line" most 1.3
  done
fi
if wanted kv; then
  measure kv --conns 64 --duration "$seconds"
  row "KV put over HTTP, 64 B, 20,000 keys, 64 connections" "$line" ops_per_s least 50000 ops/s
  say "  broker CPU an op" "$line" broker_us_per_message us
  measure kv --get --conns 64 --duration "$seconds"
  row "KV get" "$line" ops_per_s least 80000 ops/s
  say "  broker CPU an op" "$line" broker_us_per_message us
  measure kv --batch 16 --conns 64 --duration "$seconds"
  say "KV put, 16 in a call" "$line" ops_per_s ops/s
  measure kv --get --batch 16 --conns 64 --duration "$seconds"
  say "KV get, 16 in a call" "$line" ops_per_s ops/s
fi
if wanted step-peers; then
  echo
  QUEEN_BENCH_DIR=$work QUEEN_BENCH_SECONDS=$seconds "$here/peers_step.sh" "$queen" "$lines" || failed=1
fi
table_end
