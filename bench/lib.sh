# What bench/run.sh and bench/hold.sh share; to be sourced. `all_rows` names the caller's rows, `names_too` what may be said besides.
#
# Takes the caller's arguments ([BINARY] [ROW...]) and gives: queen, quick, rows, work (a folder, removed at the end), lines (the JSON
# lines so far), failed (1: something could not be measured), and the functions below.

queen=$here/../build/queen
case "${1:-}" in
  */*)
    queen=$1
    shift
    ;;
esac
[ -x "$queen" ] || { echo "bench: $queen is not there; build it first: ./dev build" >&2; exit 1; }
queen=$(realpath "$queen")

quick=${QUEEN_BENCH_QUICK:-0}
rows=${*:-${QUEEN_BENCH_ROWS:-$all_rows}}
for one in $rows; do
  [[ " $all_rows ${names_too:-} " == *" $one "* ]] || { echo "bench: there is no row $one; there are: $all_rows${names_too:+, and $names_too}" >&2; exit 1; }
done
base=${QUEEN_BENCH_DIR:-$here/../build/bench}
mkdir -p "$base"
work=$(mktemp -d "$(realpath "$base")/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
lines=$work/lines.jsonl
: >"$lines"
failed=0

wanted() { [[ " $rows " == *" $1 "* ]]; }

table_head() { printf '%-58s %-24s %-22s %s\n' "work" "goal" "measured" "verdict"; }

# The last thing a caller does.
table_end() {
  [ -z "${QUEEN_BENCH_KEEP:-}" ] || cat "$lines" >>"$QUEEN_BENCH_KEEP"
  [ "$quick" != 1 ] || echo "quick: short runs, fewer lanes and messages; the goals are those of the full ones"
  exit "$failed"
}

# figure <line> <name>: one figure of a JSON line.
figure() { sed -n "s/.*\"$2\":\"\{0,1\}\([^,\"}]*\).*/\1/p" <<<"$1"; }

# row <text> <line> <figure> <least|most> <goal> <unit>
row() {
  local value
  value=$(figure "$2" "$3")
  if [ -z "$value" ]; then
    printf '%-58s %-24s %s\n' "$1" "" "not measured"
    failed=1
    return
  fi
  awk -v text="$1" -v value="$value" -v kind="$4" -v goal="$5" -v unit="$6" 'BEGIN {
    met = kind == "least" ? value >= goal : value <= goal
    if (met) verdict = "met"
    else if (goal > 0) verdict = sprintf("missed by %.0f %%", (kind == "least" ? 1 - value / goal : value / goal - 1) * 100)
    else verdict = "missed"
    printf "%-58s %-24s %-22s %s\n", text, (kind == "least" ? ">= " : "<= ") goal " " unit, value " " unit, verdict
  }'
}

# say <text> <line> <figure> <unit>: a figure without a goal.
say() {
  local value
  value=$(figure "$2" "$3")
  [ -n "$value" ] || { failed=1; value="not measured"; }
  printf '%-58s %-24s %s %s\n' "$1" "" "$value" "$4"
}

# load <workload> [options]: one run; the line is left in $line.
load() {
  local code=0
  line=$("$queen" bench "$1" --json "${@:2}") || code=$?
  if [ "$code" -ne 0 ]; then
    echo "bench: queen bench $* ended with $code" >&2
    [ ! -f "$work/data.log" ] || tail -n 5 "$work/data.log" >&2
    failed=1
  fi
  [ -z "$line" ] || echo "$line" >>"$lines"
  note_noise "$line"
}

# measure <workload> [options]: the same on a fresh broker, of which nothing is left.
measure() {
  load "$1" --data "$work/data" "${@:2}"
  rm -rf "$work/data" "$work/data.log"
}

# ratio_row <text> <line> <figure> <line it is divided by> <least|most> <goal>
ratio_row() {
  local over under
  over=$(figure "$2" "$3") under=$(figure "$4" "$3")
  row "$1" "$(awk -v over="${over:-0}" -v under="${under:-0}" 'BEGIN { if (over > 0 && under > 0) printf "{\"ratio\":%.2f}", over / under }')" \
    ratio "$5" "$6" times
}

note_noise() {
  local other
  other=$(figure "$1" other_cores)
  awk -v other="${other:-0}" 'BEGIN { if (other > 0.25) printf "  (noisy: %.2f cores were used by others)\n", other }'
}
