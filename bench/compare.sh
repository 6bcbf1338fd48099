#!/usr/bin/env bash
# compare.sh FOLDER: train, scoring and decode speed of a model folder, ours and PyTorch's, in one run.
# Each case runs on both sides in turn, several rounds, once other processes leave the machine alone;
# the best of each side counts. Prints a table and appends it to results.md beside this script.
# One thread is measured in processor time, two in wall time.
#   BUILD=build/release  PYTHON=python3 (with torch and transformers)  ROUNDS=3  THREADS="1 2"
#   QUIET_S=30: how long to wait for a quiet moment before each measurement, at most
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${BUILD:-$here/../build/release} python=${PYTHON:-python3} rounds=${ROUNDS:-3}
counts=${THREADS:-1 2} quiet_s=${QUIET_S:-30}

fail() { printf 'compare.sh: %s\n' "$*" >&2; exit 2; }
[ $# = 1 ] && [ -f "$1/config.json" ] || fail "usage: compare.sh FOLDER (with config.json)"
folder=$1
for program in bench_train bench_decode; do
  [ -x "$build/bin/$program" ] || fail "no $build/bin/$program: build it, or set BUILD"
done
"$python" -c 'import torch, transformers' 2>/dev/null ||
  fail "$python has no torch and transformers: set PYTHON to one that has"

# Rows of the long case stay within the model's positions.
long=$("$python" -c 'import json, sys; print(min(128, json.load(open(sys.argv[1])).get("max_position_embeddings", 128)))' \
  "$folder/config.json")
cases=("train sft=1 rows=128 length=8" "train sft=0 rows=512 length=8" "train sft=0 rows=64 length=$long"
  "decode sequences=64 prompt=6 new=12" "decode sequences=512 prompt=6 new=12")

# Share of the processors that did nothing in the last 0.2 s, in percent.
idle_percent() {
  local a b
  read -ra a </proc/stat; sleep 0.2; read -ra b </proc/stat
  local idle=$((b[4] - a[4])) all=0 i
  for i in 1 2 3 4 5 6 7 8; do all=$((all + b[i] - a[i])); done
  echo $((all ? 100 * idle / all : 100))
}

wait_quiet() {
  local end=$((SECONDS + quiet_s))
  while [ "$SECONDS" -lt "$end" ] && [ "$(idle_percent)" -lt 85 ]; do :; done
}

rows=$(mktemp)
trap 'rm -f "$rows"' EXIT

# measure CASE THREADS: both sides once; one thread needs no quiet.
measure() {
  local words
  read -ra words <<<"$1"
  [ "$2" = 1 ] || wait_quiet
  printf 'ours\t%s\t%s\t%s\n' "$1" "$2" \
    "$("$build/bin/bench_${words[0]}" "$folder" "${words[@]:1}" threads="$2" repeat=20)" >>"$rows"
  [ "$2" = 1 ] || wait_quiet
  printf 'torch\t%s\t%s\t%s\n' "$1" "$2" \
    "$("$python" -W ignore "$here/torch_peer.py" "$folder" --threads "$2" "$1")" >>"$rows"
}

for ((round = 1; round <= rounds; round++)); do
  for threads in $counts; do
    for case in "${cases[@]}"; do
      printf 'round %d of %d, %s thread(s): %s\n' "$round" "$rounds" "$threads" "$case" >&2
      measure "$case" "$threads"
    done
  done
done

"$python" "$here/table.py" "$folder" <"$rows" | tee -a "$here/results.md"
