#!/usr/bin/env bash
# The step in what people build it with today, on the same disk: PostgreSQL, as one SQL transaction, and Redis, as one Lua script. Private
# servers on 127.0.0.1, each point on a fresh folder that is removed again; the SQL, the scripts of pgbench and the Lua are in bench/peers/.
#
#   bench/peers_step.sh BINARY [LINES]    LINES: JSON lines of our own runs, for the ratios; these are appended
#
#   QUEEN_BENCH_DIR=DIR        where the servers' data goes (a temporary folder); other users must be able to enter it, PostgreSQL
#                              does not run as root
#   QUEEN_BENCH_SECONDS=N      measured seconds of a point (10)
#   QUEEN_BENCH_PEERS="..."    only these (rows lease redis)
#   QUEEN_BENCH_PG_USER=NAME   who PostgreSQL runs as when we are root (postgres, else nobody)
#
# Exit code: 0 measured (a peer that is not installed is left out, and said); 1 something could not be measured.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
queen=$(realpath "${1:?the path of the queen binary}")
lines=${2:-}
seconds=${QUEEN_BENCH_SECONDS:-10}
peers=${QUEEN_BENCH_PEERS:-rows lease redis}
lanes=200
failed=0

work=$(mktemp -d "$(realpath "${QUEEN_BENCH_DIR:-${TMPDIR:-/tmp}}")/peers.XXXXXX")
chmod 755 "$work"
server=
# stop: ends the server we started, by its process.
stop() {
  local tries
  [ -n "$server" ] || return 0
  kill -INT "$server" 2>/dev/null || true
  for tries in $(seq 200); do
    kill -0 "$server" 2>/dev/null || break
    [ "$tries" != 200 ] || kill -QUIT "$server" 2>/dev/null || true
    sleep 0.05
  done
  wait "$server" 2>/dev/null || true
  server=
}
trap 'stop; rm -rf "$work"' EXIT

port_free() {
  local port
  for _ in $(seq 100); do
    port=$((20000 + RANDOM % 10000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return 0; }
  done
  echo "bench: no free port" >&2
  return 1
}

figure() { sed -n "s/.*\"$2\":\"\{0,1\}\([^,\"}]*\).*/\1/p" <<<"$1"; }

# ours <calls>: steps a second of our own open-throttle step over 200 lanes ("two" or "one": with next).
ours() {
  [ -n "$lines" ] && [ -s "$lines" ] || return 0
  figure "$(grep '"bench":"step"' "$lines" | grep '"lanes":200,"batch":10,' | grep '"rate":0,' | grep "\"calls\":\"$1" | tail -n 1)" steps_per_s
}

# print <text> <line>: one row of the table.
print() {
  awk -v text="$1" -v rate="$(figure "$2" steps_per_s)" -v p50="$(figure "$2" p50_ms)" -v p99="$(figure "$2" p99_ms)" \
    -v cost="$(figure "$2" broker_us_per_step)" -v two="$(ours two)" -v one="$(ours one)" 'BEGIN {
    ratio = rate > 0 && two > 0 ? sprintf("%.1f", two / rate) : "-"
    ratio = ratio " / " (rate > 0 && one > 0 ? sprintf("%.1f", one / rate) : "-")
    printf "%-58s %-24s %-22s %s\n", text, cost " us/step", rate " steps/s", ratio "   (p50 " p50 ", p99 " p99 " ms)"
  }'
}

keep() { [ -z "$lines" ] || echo "$1" >>"$lines"; }

heading() { printf '%-58s %-24s %-22s %s\n' "$1" "CPU of the server" "measured" "ours / theirs: two calls / with next"; }

# ---- PostgreSQL ----

pg_bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1 || true)
pg_user=${QUEEN_BENCH_PG_USER:-$(id -un postgres 2>/dev/null || echo nobody)}

# as_pg <command...>: as the unprivileged user, in the same process.
as_pg() {
  if [ "$(id -u)" = 0 ]; then
    exec setpriv --reuid="$pg_user" --regid="$(id -g "$pg_user")" --clear-groups "$@"
  fi
  exec "$@"
}

pg_sql() { "$pg_bin/psql" -h 127.0.0.1 -p "$port" -U bench -d postgres -qAtX -v ON_ERROR_STOP=1 "$@"; }

pg_start() {
  local tries
  port=$(port_free)
  mkdir "$work/pg"
  [ "$(id -u)" != 0 ] || chown "$pg_user" "$work/pg"
  (cd "$work/pg" && as_pg "$pg_bin/initdb" -D "$work/pg/data" -A trust -U bench --no-sync -E UTF8 --locale=C) >"$work/initdb.log" 2>&1 ||
    { tail -n 5 "$work/initdb.log" >&2; return 1; }
  cat >>"$work/pg/data/postgresql.conf" <<CONF
listen_addresses = '127.0.0.1'
port = $port
unix_socket_directories = ''
max_connections = 100
shared_buffers = 1GB
max_wal_size = 4GB
fsync = on
full_page_writes = on
synchronous_commit = on
wal_sync_method = fdatasync
CONF
  : >"$work/pg.log"
  (cd "$work/pg" && as_pg "$pg_bin/postgres" -D "$work/pg/data") >"$work/pg.log" 2>&1 &
  server=$!
  for tries in $(seq 200); do
    kill -0 "$server" 2>/dev/null || break
    ! pg_sql -c 'select 1' >/dev/null 2>&1 || return 0
    sleep 0.05
  done
  echo "bench: PostgreSQL does not start (asked $tries times):" >&2
  tail -n 5 "$work/pg.log" >&2
  return 1
}

pg_stop() {
  stop
  rm -rf "$work/pg" "$work"/step.*
}

# Waits until no client has a backend any more and the postmaster has seen all of them end: then their CPU is in its own books.
pg_idle() {
  local tries pid busy
  for tries in $(seq 400); do
    busy=0
    for pid in $(cat "/proc/$server/task/$server/children"); do
      ! tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qE '^$|^postgres: (bench|autovacuum worker)' || busy=1
    done
    [ "$busy" = 1 ] || return 0
    sleep 0.05
  done
  echo "bench: backends of PostgreSQL did not end (looked $tries times)" >&2
  return 1
}

# CPU of the server so far in clock ticks: the postmaster, its children that ended, those that live.
pg_ticks() {
  local files=("/proc/$server/stat") pid
  for pid in $(cat "/proc/$server/task/$server/children"); do files+=("/proc/$pid/stat"); done
  { cat "${files[@]}" 2>/dev/null || true; } | awk '{ sub(/.*\) /, ""); sum += $12 + $13; if (NR == 1) sum += $14 + $15 } END { print sum }'
}

# pg_fill <kind> <messages a lane>
pg_fill() {
  local fill
  case "$1" in
    rows) fill="insert into jobs (lane, txid, payload) select i % $lanes, 'input-0000-7abc-8def-' || lpad(i::text, 15, '0'), repeat(md5(i::text), 8)
                from generate_series(0, $lanes * $2 - 1) i" ;;
    lease) fill="insert into log select i % $lanes, i / $lanes + 1, 'input-0000-7abc-8def-' || lpad(i::text, 15, '0'), repeat(md5(i::text), 8)
                from generate_series(0, $lanes * $2 - 1) i;
                insert into cursors (lane) select generate_series(0, $lanes - 1)" ;;
  esac
  pg_sql -f "$here/peers/step.sql" >/dev/null && pg_sql <<SQL
$fill;
vacuum analyze;
checkpoint;
SQL
}

# pg_point <kind> <connections> <text>. Measured after a second of warm-up: rate and latency from pgbench's log of every step, CPU by
# the clock.
pg_point() {
  local kind=$1 conns=$2 load code=0 from to ticks line outputs once all
  # Enough for 7,000 steps a second in the lanes that are used: every client has as many, so a few stay untouched.
  pg_start && pg_fill "$kind" $(((seconds + 1) * 70000 / (lanes / conns * conns))) && pg_idle || { failed=1; pg_stop; return 0; }
  "$pg_bin/pgbench" -h 127.0.0.1 -p "$port" -U bench -n -M prepared -c "$conns" -j 1 -T $((seconds + 1)) -l --log-prefix="$work/step" \
    -D turn=0 -D conns="$conns" -D lanes=$lanes -D payload="$(head -c 192 /dev/urandom | base64 -w 0)" \
    -D value="$(head -c 48 /dev/urandom | base64 -w 0)" -f "$here/peers/step_$kind.pgbench" postgres >"$work/pgbench.log" 2>&1 &
  load=$!
  sleep 1.2
  from=$EPOCHREALTIME ticks=$(pg_ticks)
  sleep $((seconds - 1)).6
  ticks=$(($(pg_ticks) - ticks)) to=$EPOCHREALTIME
  wait "$load" || code=$?
  if [ "$code" -ne 0 ]; then
    echo "bench: pgbench failed:" >&2
    grep -m 3 -iE 'error|fatal' "$work/pgbench.log" >&2 || tail -n 3 "$work/pgbench.log" >&2
    failed=1
  fi
  outputs=$(pg_sql -c 'select count(*) from outputs')
  once=$(pg_sql -c 'select count(*) from once')
  all=$(cat "$work"/step.* | wc -l)
  # The log's columns: client, number, microseconds, script, end in seconds, and microseconds.
  line=$(cat "$work"/step.* | sort -k3,3n | awk -v kind="$kind" -v conns="$conns" -v lanes=$lanes -v ticks="$ticks" -v from="$from" -v to="$to" \
    -v hz="$(getconf CLK_TCK)" -v outputs="$outputs" -v once="$once" -v all="$all" '
    { at = $5 + $6 / 1e6; if (at >= from && at < to) us[++n] = $3 }
    END {
      if (n == 0) exit
      printf "{\"bench\":\"postgresql-step\",\"how\":\"%s\",\"conns\":%d,\"lanes\":%d,\"batch\":10,\"size\":256,", kind, conns, lanes
      printf "\"seconds\":%.2f,\"steps_per_s\":%.0f,\"steps\":%d,", to - from, n / (to - from), n
      printf "\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"broker_us_per_step\":%.1f,", us[int(n / 2) + 1] / 1e3, us[int(n * 0.99) + 1] / 1e3, ticks * 1e6 / hz / n
      printf "\"steps_in_all\":%d,\"outputs_found\":%d,\"once_found\":%d}\n", all, outputs, once
    }')
  if [ "$once" != "$all" ] || [ "$outputs" != $((all * 10)) ]; then
    echo "bench: PostgreSQL did $all steps but holds $outputs outputs and $once markers" >&2
    failed=1
  fi
  if [ -n "$line" ]; then
    keep "$line"
    print "$3, $conns connections" "$line"
  else
    echo "bench: no step of PostgreSQL ended in the measured time ($3, $conns connections)" >&2
    failed=1
  fi
  pg_stop
}

pg_all() {
  local conns
  if [ -z "$pg_bin" ] || [ ! -x "$pg_bin/pgbench" ]; then
    echo "bench: PostgreSQL is not installed; no comparison (./dev deps bench)" >&2
    return 0
  fi
  if [ "$(id -u)" = 0 ] && ! (as_pg test -x "$work"); then
    echo "bench: $pg_user cannot enter $work; name another folder with QUEEN_BENCH_DIR. No comparison with PostgreSQL" >&2
    return 0
  fi
  heading "PostgreSQL $("$pg_bin/postgres" --version | awk '{ print $3 }'), synchronous_commit = on, pgbench, prepared"
  for conns in 16 64; do
    [[ " $peers " != *" rows "* ]] || pg_point rows "$conns" "SKIP LOCKED rows, one transaction"
    [[ " $peers " != *" lease "* ]] || pg_point lease "$conns" "lease (not waited for), then one transaction"
  done
}

# ---- Redis ----

redis_start() {
  local tries
  port=$(port_free)
  mkdir "$work/redis"
  redis-server --port "$port" --bind 127.0.0.1 --dir "$work/redis" --save '' --appendonly yes --appendfsync always \
    --auto-aof-rewrite-percentage 0 --daemonize no --logfile "$work/redis.log" >/dev/null 2>&1 &
  server=$!
  for tries in $(seq 100); do
    kill -0 "$server" 2>/dev/null || break
    [ "$(redis-cli -p "$port" ping 2>/dev/null)" != PONG ] || return 0
    sleep 0.05
  done
  echo "bench: redis-server does not start on port $port (asked $tries times):" >&2
  tail -n 5 "$work/redis.log" >&2 || true
  return 1
}

redis_all() {
  local conns line
  if ! command -v redis-server >/dev/null; then
    echo "bench: redis-server is not installed; no comparison (./dev deps bench)" >&2
    return 0
  fi
  heading "Redis $(redis-server --version | sed -n 's/.*v=\([0-9.]*\).*/\1/p'), appendfsync always"
  for conns in 16 64; do
    if redis_start && line=$("$queen" bench redis-step --json --port "$port" --pid "$server" --script "$here/peers/step.lua" \
      --workers "$conns" --lanes $lanes --duration "$seconds"); then
      keep "$line"
      print "XREADGROUP, then one Lua script, $conns connections" "$line"
    else
      failed=1
    fi
    stop
    rm -rf "$work/redis"
  done
}

case " $peers " in *" rows "* | *" lease "*) pg_all ;; esac
[[ " $peers " != *" redis "* ]] || redis_all
exit "$failed"
