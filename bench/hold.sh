#!/usr/bin/env bash
# Measures how much a built broker can hold, and for how long, and prints the table of goals.
#
#   bench/hold.sh [BINARY] [ROW...]   BINARY: a path with a slash; build/queen by default; nothing is built here
#
#   ROW: idle-1m idle-10m    a million and ten million lanes at rest, one group: memory, start
#        keys                a million KV keys at rest: memory, start
#        once                the same of keys with an expiry, and other calls while all of them expire
#        retained            100,000,000 messages of 100 B that nobody takes away: memory and latency beside an almost empty broker (20 GB, half
#                            an hour: until the ids of the fill are past)
#        dedup dedup-1g      an hour of ids at 50,000 a second, with the default plan of memory and that of QUEEN_MEMORY_MAX=1G (bench_dedup
#                            beside BINARY; 10 GB)
#        replay              a million old messages read from disk by a new group
#        written             bytes written to disk per byte pushed, consumed at once and kept (bench/write_amplification.py)
#        list seek group-delete delete retention
#                            a listing of messages that looks at a million lanes, a seek of a group over them, its delete, that of the queue, and
#                            retention of a message in each, under 10,000 msg/s of other traffic
#        All of them by default.
#
#   QUEEN_BENCH_QUICK, QUEEN_BENCH_DIR, QUEEN_BENCH_ROWS, QUEEN_BENCH_KEEP: as of bench/run.sh
#
# Exit code: 0 measured, whether or not a goal was met; 1 something could not be measured.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
all_rows="idle-1m idle-10m keys once retained dedup dedup-1g replay written list seek group-delete delete retention"
. "$here/lib.sh"
pid=
trap 'broker_end; rm -rf "$work"' EXIT

if [ "$quick" = 1 ]; then
  seconds=5 keys=100000 lanes=100000 lanes_many=1000000 retained=5000000 retained_gb=2 ids_gone=0 ids=5000000 dedup_gb=1 old=200000
else
  seconds=20 keys=1000000 lanes=1000000 lanes_many=10000000 retained=100000000 retained_gb=20 ids_gone=1050 ids=180000000 dedup_gb=10 old=1000000
fi

# ---- a broker of our own ----

# http <method> <path> [<body>]: the status code, then the body.
http() {
  local status line body=${3:-}
  exec 3<>"/dev/tcp/127.0.0.1/$port" || return 1
  printf '%s %s HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s' "$1" "$2" "${#body}" "$body" >&3
  read -r _ status _ <&3 || status=0
  while read -r line <&3 && [ "$line" != $'\r' ]; do :; done
  echo "$status"
  cat <&3
  exec 3<&- 3>&-
}

# broker_begin <data>: started and ready; $pid and $port are set.
broker_begin() {
  port=$((20000 + RANDOM % 12000))
  "$queen" serve --data "$1" --port "$port" >"$work/data.log" 2>&1 &
  pid=$!
  until [ "$(http GET /health "" 2>/dev/null | head -n 1)" = 200 ]; do
    kill -0 "$pid" 2>/dev/null || { tail -n 5 "$work/data.log" >&2; pid=; return 1; }
    sleep 0.05
  done
}

broker_end() {
  [ -n "$pid" ] || return 0
  kill "$pid" 2>/dev/null && wait "$pid" || true
  pid=
}

resident_mb() { awk '/^VmRSS/ { printf "%.1f\n", $2 * 1024 / 1e6 }' "/proc/$pid/status"; }

# Resident memory once it has not changed by more than 0.5 % for 3 s; a minute at most.
settled_mb() {
  local base=0 now same=0 waited
  for waited in $(seq 120); do
    sleep 0.5
    now=$(resident_mb)
    if awk -v now="$now" -v base="$base" 'BEGIN { exit !(now <= base * 1.005 && now >= base * 0.995) }'; then
      same=$((same + 1))
    else
      same=0 base=$now
    fi
    [ "$same" -lt 6 ] || break
  done
  echo "$now"
}

# room_for <row> <GB>: is there so much disk? Says what is lacking.
room_for() {
  local free
  free=$(df -PB1 "$work" | awk 'NR == 2 { printf "%d", $4 / 1e9 }')
  [ "$free" -lt "$2" ] || return 0
  printf '%-58s %-24s %s\n' "$1" "" "not measured: $2 GB of disk are needed, $free are free (QUEEN_BENCH_DIR: another disk)"
  failed=1
  return 1
}

# quotient <over> <under>: a JSON line with `ratio`, or nothing.
quotient() { awk -v over="${1:-0}" -v under="${2:-0}" 'BEGIN { if (over > 0 && under > 0) printf "{\"ratio\":%.2f}", over / under }'; }

# ---- rows ----

# idle <lanes> <MB at most> <seconds at most> [options]
idle_rows() {
  load lanes --lanes "$1" --data "$work/data" "${@:4}"
  row "$1 idle lanes, one group: resident" "$line" rss_mb most "$2" MB
  row "  resident after a restart" "$line" rss_after_restart_mb most "$2" MB
  say "  at most, while it started" "$line" rss_after_restart_peak_mb MB
  row "  ready again after kill -9" "$line" ready_again_s most "$3" s
}

# keys_rows <name> <what> [options]: keys of 10 bytes, values of 40: what they take is what the broker grew by. The broker runs afterwards.
keys_rows() {
  local empty rest began
  broker_begin "$work/data" || { failed=1; return 0; }
  empty=$(resident_mb)
  load kv --port "$port" --get --keys "$keys" --size 40 --duration 1 "${@:3}"
  sleep 15 # nothing happens: rows leave
  rest=$(settled_mb)
  line=$(awk -v name="$1" -v empty="$empty" -v rest="$rest" -v keys="$keys" 'BEGIN { printf "{\"bench\":\"%s\",\"rss_mb\":%.1f,\"key_bytes\":%.1f}", name, rest, (rest - empty) * 1e6 / keys }')
  echo "$line" >>"$lines"
  say "$keys $2 at rest: resident" "$line" rss_mb MB
  row "  of it for a key" "$line" key_bytes most 50 bytes
  broker_end
  began=$(date +%s%N)
  broker_begin "$work/data" || { failed=1; return 0; }
  line=$(awk -v name="$1" -v ns=$(($(date +%s%N) - began)) -v mb="$(settled_mb)" 'BEGIN { printf "{\"bench\":\"%s-start\",\"start_s\":%.2f,\"rss_mb\":%.1f}", name, ns / 1e9, mb }')
  echo "$line" >>"$lines"
  say "  ready after a restart" "$line" start_s s
  say "  resident after it" "$line" rss_mb MB
}

keys_gone() {
  broker_end
  rm -rf "$work/data" "$work/data.log"
}

# rows_left: of the KV store.
rows_left() { http GET /metrics/prometheus | sed -n 's/^queen_kv_rows //p'; }

# wait_until <time>: in seconds, as of date.
wait_until() { while [ "$(date +%s)" -lt "$1" ]; do sleep 1; done; }

# Keys that live for some minutes; then all of them expire while the broker does not run, and it finds that out at its first entry.
once_rows() {
  local ttl=$((60 + keys / 8000)) quiet began over
  keys_rows once "KV keys with an expiry" --ttl "$ttl"
  over=$(($(date +%s) + ttl))
  [ -n "$pid" ] || return 0
  latencies
  quiet=$line
  broker_end
  wait_until "$over"
  broker_begin "$work/data" || { failed=1; return 0; }
  began=$(date +%s%N)
  latencies
  ratio_row "  all expire: p99 of others' deliveries meanwhile" "$line" p99_ms "$quiet" most 2
  while [ "$(rows_left)" -gt 0 ]; do
    [ $(($(date +%s%N) - began)) -lt 300000000000 ] || break
    http POST /api/v1/kv '[{"op":"delete","ns":"bench","key":"k"}]' >/dev/null # an entry: nothing expires without
    sleep 1
  done
  line=$(awk -v ns=$(($(date +%s%N) - began)) -v left="$(rows_left)" -v mb="$(settled_mb)" 'BEGIN { printf "{\"bench\":\"once-expired\",\"expired_s\":%.0f,\"rows_left\":%d,\"rss_mb\":%.1f}", ns / 1e9, left, mb }')
  echo "$line" >>"$lines"
  say "  until all were removed" "$line" expired_s s
  row "  that are left" "$line" rows_left most 0 rows
  say "  resident then" "$line" rss_mb MB
}

# A directory with a queue `hold` of that many lanes, taken by the group `bench`: $work/data. Made once, by the row of idle lanes when it is
# measured, since it is the same.
base_made=0
lanes_base() {
  [ "$base_made" = 0 ] || return 0
  if wanted idle-1m; then
    idle_rows "$lanes" 250 2 --queue hold
  else
    load lanes --lanes "$lanes" --queue hold --data "$work/data"
  fi
  base_made=1
}

lanes_gone() {
  rm -rf "$work/data" "$work/data.log"
  base_made=0
}

# Delivery to waiting consumers at 1,000 msg/s: the line is in $line.
latencies() { load deliver --port "$port" --rate 1000 --lanes 200 --size 100 --duration "$seconds"; }

retained_rows() {
  room_for "$retained retained messages of 100 B" "$retained_gb" || return 0
  local fill="push --queue hold --dedup off --lanes 10000 --size 100 --warmup 0 --duration 0.1" none_line none_mb filled_mb held_mb held_line
  broker_begin "$work/data" || { failed=1; return 0; }
  load $fill --port "$port" --batch 10 --count 100000
  latencies
  none_line=$line none_mb=$(settled_mb)
  load $fill --port "$port" --batch 1000 --count "$retained"
  filled_mb=$(settled_mb)
  echo "{\"bench\":\"retained\",\"none_mb\":$none_mb,\"filled_mb\":$filled_mb}" >>"$lines"
  printf '%-58s %-24s %s\n' "$retained retained messages of 100 B, 10,000 lanes: resident" "" "with 100,000 of them $none_mb MB, right after the fill $filled_mb MB"
  # Ids are kept for a quarter of an hour at least, and those of the fill came faster than any that the goal means.
  sleep "$ids_gone"
  load deliver --port "$port" --rate 1000 --lanes 200 --size 100 --duration 5
  held_mb=$(settled_mb)
  latencies
  held_line=$line
  printf '%-58s %-24s %s\n' "  $ids_gone s later" "" "$held_mb MB"
  row "  against it" "$(quotient "$held_mb" "$none_mb")" ratio most 1.1 times
  ratio_row "  push, 1,000 msg/s: p50" "$held_line" second_p50_ms "$none_line" most 1.2
  ratio_row "    p99" "$held_line" second_p99_ms "$none_line" most 1.2
  ratio_row "  push to delivery: p50" "$held_line" p50_ms "$none_line" most 1.2
  ratio_row "    p99" "$held_line" p99_ms "$none_line" most 1.2
  broker_end
  rm -rf "$work/data" "$work/data.log"
}

# dedup_rows <text> <MB at most> <budget MiB> <lent MiB>
dedup_rows() {
  local program out
  program=$(dirname "$queen")/bench_dedup
  [ -x "$program" ] || { echo "bench: $program is not there; build it: ninja -C build bench_dedup" >&2; failed=1; return 0; }
  room_for "$1" "$dedup_gb" || return 0
  out=$("$program" "$work/dedup" "$ids" 50000 "$3" "$4") || { echo "$out" >&2; failed=1; }
  rm -rf "$work/dedup"
  line=$(awk '$1 ~ /^[0-9]+$/ && NF >= 8 { if ($NF > most) most = $NF; rate = $3 }
    /^start:/ { start = $2; for (i = 1; i < NF; i++) if ($i == "RSS") after = $(i + 1) }
    END { if (most > 0) printf "{\"bench\":\"dedup\",\"rss_mb\":%.1f,\"ids_per_s\":%d,\"start_s\":%.2f,\"rss_start_mb\":%.1f}", most, rate, start, after }' <<<"$out")
  echo "$line" >>"$lines"
  row "$1: resident at most" "$line" rss_mb most "$2" MB
  row "  ids a second at the end" "$line" ids_per_s least 50000 ids/s
  say "  start" "$line" start_s s
}

# written_row <text> <kept|consumed> <goal>
written_row() {
  local out
  out=$(/usr/bin/python3 "$here/write_amplification.py" --binary "$queen" --data "$work" --seconds "$seconds" "$2") || failed=1
  line=$(awk -v kind="$2" '$1 == kind { for (i = 2; i < NF; i++) if ($i == "a") printf "{\"bench\":\"written\",\"kind\":\"%s\",\"ratio\":%s}", kind, $(i - 1) }' <<<"$out")
  echo "$line" >>"$lines"
  row "$1" "$line" ratio most "$3" times
}

# Others' calls while <do> runs, which begins after a second: pushes of 10 at 9,000 msg/s ($line), deliveries at 1,000 ($other).
traffic() {
  local code=0
  (sleep 1; "$@") >"$work/doing" 2>&1 &
  local doing=$!
  "$queen" bench deliver --json --port "$port" --rate 1000 --lanes 200 --duration "$seconds" >"$work/other" 2>&1 &
  local beside=$!
  load push --port "$port" --rate 9000 --batch 10 --lanes 200 --duration "$seconds"
  wait "$beside" || failed=1
  wait "$doing" || code=$?
  other=$(cat "$work/other")
  echo "$other" >>"$lines"
  [ "$code" = 0 ] || { cat "$work/doing" >&2; failed=1; }
}

# accepted <method> <path> [<body>]: done, and how long it took.
accepted() {
  local from to answer
  from=$(date +%s%N)
  answer=$(http "$1" "$2" "${3:-}")
  to=$(date +%s%N)
  case "$(head -n 1 <<<"$answer")" in
    200 | 202) awk -v ns=$((to - from)) 'BEGIN { printf "{\"took_s\":%.2f}\n", ns / 1e9 }' ;;
    *) echo "bench: $1 $2: $answer"; return 1 ;;
  esac
}

# Cursors that the broker holds, those of deleted groups among them until they are given back.
cursors() { http GET /metrics/prometheus | sed -n 's/^queen_engine_objects{kind="cursors"} //p'; }

# group_gone: the group is deleted, and its cursors are given back.
group_gone() {
  local from to answer
  from=$(date +%s%N)
  answer=$(accepted DELETE /api/v1/consumer-groups/bench/queues/hold) || { echo "$answer"; return 1; }
  until [ "$(cursors)" -lt $((lanes / 2)) ]; do sleep 0.1; done
  to=$(date +%s%N)
  awk -v ns=$((to - from)) 'BEGIN { printf "{\"took_s\":%.2f}\n", ns / 1e9 }'
}

# Messages of the queue that are retained.
retained_in_hold() { http GET /metrics/prometheus | sed -n 's/^queen_queue_depth{queue="hold",kind="retained"} //p'; }

# hold_expired: the queue gets a retention, and all that is in it goes.
hold_expired() {
  local from to answer
  from=$(date +%s%N)
  answer=$(accepted POST /api/v1/configure '{"queue":"hold","options":{"retentionEnabled":true,"retentionSeconds":1}}') || { echo "$answer"; return 1; }
  until [ "$(retained_in_hold)" = 0 ]; do sleep 0.5; done
  to=$(date +%s%N)
  awk -v ns=$((to - from)) 'BEGIN { printf "{\"took_s\":%.2f}\n", ns / 1e9 }'
}

# under_traffic <text> <do>...
under_traffic() {
  local push_line deliver_line
  traffic true
  push_line=$line deliver_line=$other
  traffic "${@:2}"
  say "$1" "$(cat "$work/doing")" took_s s
  say "  p99 of others' pushes meanwhile" "$line" p99_ms ms
  ratio_row "    against none" "$line" p99_ms "$push_line" most 2
  say "  p99 of others' deliveries meanwhile" "$other" p99_ms ms
  ratio_row "    against none" "$other" p99_ms "$deliver_line" most 2
}

table_head
if wanted idle-1m; then
  lanes_base
fi
if wanted list || wanted seek || wanted group-delete || wanted delete; then
  lanes_base
  if broker_begin "$work/data"; then
    if wanted list; then
      under_traffic "listing of messages in $lanes lanes: answered after" accepted GET '/api/v1/messages?queue=hold&from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z'
    fi
    if wanted seek; then
      under_traffic "seek of $lanes lanes: answered after" accepted POST /api/v1/consumer-groups/bench/queues/hold/seek '{"timestamp":"2020-01-01T00:00:00Z"}'
    fi
    if wanted group-delete; then
      under_traffic "delete of a group of $lanes lanes: given back after" group_gone
    fi
    if wanted delete; then
      under_traffic "delete of a queue of $lanes lanes: answered after" accepted DELETE /api/v1/resources/queues/hold
    fi
    broker_end
  else
    failed=1
  fi
fi
lanes_gone
if wanted retention; then
  lanes_base
  if broker_begin "$work/data"; then
    under_traffic "retention of a message in each of $lanes lanes: gone after" hold_expired
    broker_end
  else
    failed=1
  fi
fi
lanes_gone
if wanted idle-10m; then
  idle_rows "$lanes_many" 2500 10
  lanes_gone
fi
if wanted keys; then
  keys_rows keys "KV keys"
  keys_gone
fi
if wanted once; then
  once_rows
  keys_gone
fi
if wanted retained; then
  retained_rows
fi
if wanted dedup; then
  dedup_rows "dedup: $ids ids, default memory" 4000 1024 0
fi
if wanted dedup-1g; then
  dedup_rows "dedup: $ids ids, QUEEN_MEMORY_MAX=1G" 1074 122 190
fi
if wanted replay; then
  measure replay --count "$old"
  row "$old old messages read by a new group" "$line" messages_per_s least 200000 msg/s
fi
if wanted written; then
  written_row "written to disk per byte pushed, consumed at once" consumed 1.3
  written_row "  kept for ever" kept 1.6
fi
table_end
