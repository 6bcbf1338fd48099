#!/usr/bin/env bash
# control.sh [CONTROLLERS...]: latency, processor time and memory of one coordinator under 16, 128 and 512
# controllers of 8 workers each, by bench_control; then, in the same run, a peer. Prints lines of JSON; the load of the
# machine stands in the first and the last. The journal is a file log that syncs, in a new folder below TMPDIR.
#   BUILD=build/release  SECONDS_EACH=20  ARGS="group_ms=8000 ..." (of bench_control)
#   PEER="command ...", run once, with the counts of controllers up to PEER_MAX=128 behind it
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${BUILD:-$here/../build/release}/bin seconds=${SECONDS_EACH:-20} peer_max=${PEER_MAX:-128}
read -ra more <<<"${ARGS:-}"
read -ra peer <<<"${PEER:-}"
counts=("$@")
((${#counts[@]})) || counts=(16 128 512)

fail() { printf 'control.sh: %s\n' "$*" >&2; exit 2; }
for program in bench_control tandem-coordinator; do
  [ -x "$bin/$program" ] || fail "no $bin/$program: build it, or set BUILD"
done

work=$(mktemp -d) pid=
stop() {
  [ -z "$pid" ] || { kill "$pid" && wait "$pid"; } || true
  pid=
}
trap 'stop; rm -rf "$work"' EXIT

machine() {
  printf '{"what":"machine","cpu":"%s","processors":%s,"load":%s,"date":"%s"}\n' \
    "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" "$(cut -d ' ' -f 1 /proc/loadavg)" \
    "$(date -u +%FT%TZ)"
}

# Each on a coordinator of its own. It tells its address when it is up.
measure() { # CONTROLLERS
  local dir=$work/$1 address
  mkdir "$dir"
  cat >"$dir/coordinator.yaml" <<YAML
{dir: $dir/run, listen: "127.0.0.1:0", shared_dir: $dir/shared, log: {folder: $dir/log},
 timers: {takeover_ms: 1500, beat_ms: 500}}
YAML
  : >"$dir/said"
  "$bin/tandem-coordinator" -f "$dir/coordinator.yaml" >>"$dir/said" 2>&1 &
  pid=$!
  for ((i = 0; i < 100; i++)); do
    address=$(sed -n 's/.*coordinator is up.* address=\([^ ]*\).*/\1/p' "$dir/said")
    [ -z "$address" ] || break
    kill -0 "$pid" 2>/dev/null || fail "the coordinator ended: $(tail -n 3 "$dir/said")"
    sleep 0.1
  done
  [ -n "$address" ] || fail "the coordinator did not come up: $(tail -n 3 "$dir/said")"
  "$bin/bench_control" "$address" "$dir/log" "$pid" controllers="$1" seconds="$seconds" "${more[@]}" ||
    fail "bench_control failed; the coordinator said: $(tail -n 3 "$dir/said")"
  stop
}

machine
for count in "${counts[@]}"; do
  measure "$count"
done
if ((${#peer[@]})); then
  few=()
  for count in "${counts[@]}"; do
    ((count > peer_max)) || few+=("$count")
  done
  "${peer[@]}" "${few[@]}"
fi
machine
