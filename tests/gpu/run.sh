#!/bin/bash
# Runs the tests and benchmarks that need a CUDA device, on a machine that has one and no Bazel.
#
# Usage: tests/gpu/run.sh pack ARCHIVE    where Bazel is: builds them, and packs them with this script
#        ./run.sh test [FOLDER]           in the unpacked archive: runs them, with a log of each in
#                                         FOLDER (out)
#
# Needs a driver of CUDA 13 (R580) and a device of compute capability 8.0 or later. Where
# SYNCLINE_CUDA_LIBRARY is set, that library stands in for libcuda.so.1.
set -euo pipefail

# What is packed: labels of programs without data. Tests first; benchmarks print tables.
tests=(
  //tests/gpu:device_gpu_test
  //tests/gpu:kernels_gpu_test
)
benchmarks=(
  //benchmarks/cuda:cuda
)

limit_bytes=$((60 << 20))
limit_seconds=300 # Of one program.

usage() {
  sed -n '2,/^set/{/^set/d;s/^# \?//p}' "$0"
  exit 2
}

# The program of a label, below a folder: of //<folder>:<name>, <folder>/<name>.
path_of() {
  local label="${1#//}"
  echo "${label/://}"
}

pack() {
  local archive label path size
  archive="$(realpath -m "$1")"
  cd "$(dirname "$0")/../.."
  ./bazelw build "${tests[@]}" "${benchmarks[@]}"
  folder="$(mktemp -d)" # Global: the trap outlives this function.
  trap 'rm -rf "$folder"' EXIT
  cp tests/gpu/run.sh "$folder"
  for label in "${tests[@]}" "${benchmarks[@]}"; do
    path="$(path_of "$label")"
    mkdir -p "$folder/bin/$(dirname "$path")"
    strip -o "$folder/bin/$path" "bazel-bin/$path"
    chmod 755 "$folder/bin/$path"
  done
  tar -C "$folder" -czf "$archive" .
  size="$(stat -c %s "$archive")"
  if [ "$size" -gt "$limit_bytes" ]; then
    echo "run.sh: $archive has $size bytes, more than $limit_bytes" >&2
    exit 1
  fi
  echo "$archive: $((size >> 10)) KiB"
}

run_all() {
  local out label path log passed=0 failed=0
  out="$(realpath -m "${1:-out}")"
  mkdir -p "$out"
  cd "$(dirname "$0")"
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv | tee "$out/devices.txt"
  fi
  for label in "${tests[@]}" "${benchmarks[@]}"; do
    path="$(path_of "$label")"
    log="$out/$(basename "$path").txt"
    echo "== $label"
    if timeout "$limit_seconds" "bin/$path" >"$log" 2>&1; then
      passed=$((passed + 1))
    else
      echo "== $label: FAILED with $?"
      failed=$((failed + 1))
    fi
    tail -n 40 "$log"
  done
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
}

case "${1:-}" in
  pack) [ $# = 2 ] || usage; pack "$2" ;;
  test) [ $# -le 2 ] || usage; run_all "${2:-}" ;;
  *) usage ;;
esac
