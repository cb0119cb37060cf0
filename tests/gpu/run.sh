#!/bin/bash
# Runs the tests and benchmarks that need a CUDA device, on a machine that has one and no Bazel.
#
# Where Bazel is:
#   tests/gpu/run.sh pack ARCHIVE          builds them, and packs them with what they need
#   tests/gpu/run.sh parts WHEEL FOLDER    splits NCCL's wheel into parts that can be carried
# On the machine with the device:
#   run.sh keep PART...                    puts parts aside, in $SYNCLINE_GPU_KEPT
#   run.sh join                            joins them there, looks at the sum, and unpacks NCCL
#   run.sh unpack ARCHIVE FOLDER           unpacks what was packed
#   FOLDER/run.sh test [OUT] [OPTION...]   runs it: run_tests.py --help lists the options
#
# The machine needs a driver of CUDA 13 (R580), a device of compute capability 8.0 or later, Python
# 3.8 or later, glibc 2.36 and libstdc++ of GCC 12, or later ones. README.md has the order of things.
set -euo pipefail

# What is packed: labels of programs, which have no data.
tests=(
  //tests/gpu:device_gpu_test
  //tests/gpu:kernels_gpu_test
  //tests/groups:device_groups_gpu_test
  //tests/backends:nccl_conformance_gpu_test
  //tests/backends:nccl_backend_gpu_test
  //tests/backends:nccl_kill_gpu_test
  //tests/backends:nccl_communicators_gpu_test
  //tests/backends:nccl_registered_memory_gpu_test
  //tests/ddp:reducer_ranks_gpu_test
  //tests/ddp:reducer_device_gpu_test
  //tests/ddp:device_hooks_gpu_test
)
benchmarks=(
  //benchmarks/cuda:collectives
  //benchmarks/cuda:cuda
)
wheel=//python:wheel_local

limit_bytes=$((63 << 20)) # Of the archive and the checkout together.
part_bytes=$((50 << 20))
kept="${SYNCLINE_GPU_KEPT:-/var/tmp/syncline-gpu}"
# The extension is built for this Python, which the machine with the device has.
python_version="${SYNCLINE_GPU_PYTHON:-3.12}"

usage() {
  sed -n '2,/^set/{/^set/d;s/^# \?//p}' "$0"
  exit 2
}

fail() {
  echo "run.sh: $*" >&2
  exit 1
}

# The program of a label, below a folder: of //<folder>:<name>, <folder>/<name>.
path_of() {
  local label="${1#//}"
  echo "${label/://}"
}

# A Python of that version that this machine has with its headers, or nothing.
python_with_headers() {
  local python
  for python in "$HOME/.pyenv/versions/$python_version".*/bin/python3 "python$python_version"; do
    command -v "$python" >/dev/null || continue
    "$python" -c 'import os, sys, sysconfig
if os.path.exists(sysconfig.get_path("include") + "/Python.h"): print(sys.executable)' 2>/dev/null || continue
  done | head -n 1
}

# Python's package with an extension for the other interpreter, in $folder/site.
pack_python() {
  local python
  python="$(python_with_headers)"
  if [ -z "$python" ]; then
    echo "run.sh: no headers of Python $python_version here (SYNCLINE_GPU_PYTHON names another" \
      "version): packed without Python" | tee "$folder/no_python.txt" >&2
    return
  fi
  ./bazelw build --repo_env=SYNCLINE_PYTHON="$python" "$wheel"
  mkdir -p "$folder/pack/site"
  python3 -m zipfile -e bazel-bin/python/wheel_local/*.whl "$folder/pack/site"
  echo "$python_version" >"$folder/pack/python_version.txt"
}

pack() {
  local archive label path size checkout
  archive="$(realpath -m "$1")"
  cd "$(dirname "$0")/../.."
  folder="$(mktemp -d)" # Global: the trap outlives this function.
  trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
  mkdir -p "$folder/pack/lib"
  pack_python
  ./bazelw build "${tests[@]}" "${benchmarks[@]}"
  for label in "${tests[@]}" "${benchmarks[@]}"; do
    path="$(path_of "$label")"
    mkdir -p "$folder/pack/bin/$(dirname "$path")"
    strip -o "$folder/pack/bin/$path" "bazel-bin/$path"
    chmod 755 "$folder/pack/bin/$path"
    # Libraries that are not the machine's.
    ldd "bazel-bin/$path" | awk '$3 ~ /bazel/ {print $3}' | while read -r library; do
      cp -Lf --no-preserve=mode "$library" "$folder/pack/lib"
    done
  done
  cp tests/gpu/run.sh tests/gpu/run_tests.py "$folder/pack"
  mkdir -p "$folder/pack/torch"
  cp benchmarks/cuda/*.py "$folder/pack"
  if compgen -G 'tests/gpu/torch/*.py' >/dev/null; then
    cp tests/gpu/torch/*.py "$folder/pack/torch"
  fi
  mkdir -p "$folder/pack/arrays"
  cp tests/gpu/arrays/*.py "$folder/pack/arrays"
  git rev-parse HEAD >"$folder/pack/commit.txt"
  # -9: its dictionary holds several of the programs, which have most code in common.
  tar -C "$folder/pack" -c . | xz -T0 -9 >"$archive"
  size="$(stat -c %s "$archive")"
  checkout="$(git ls-files -z | xargs -0 du -cb | tail -n 1 | cut -f 1)"
  if [ $((size + checkout)) -gt "$limit_bytes" ]; then
    fail "$archive has $size bytes and the checkout $checkout, together more than $limit_bytes"
  fi
  echo "$archive: $((size >> 10)) KiB; the checkout $((checkout >> 10)) KiB"
}

# <number>/nccl.<number of parts>.<sum of the whole>.<number>: a folder each, to carry one.
parts() {
  local sum count part
  local out="$2"
  mkdir -p "$out"
  [ -z "$(ls -A "$out")" ] || fail "$out is not empty"
  python3 -m zipfile -l "$1" | grep -q '^nvidia/nccl/lib/libnccl.so.2 ' ||
    fail "$1 has no nvidia/nccl/lib/libnccl.so.2"
  folder="$(mktemp -d)"
  trap 'rm -rf "$folder"' EXIT
  split -b "$part_bytes" -d -a 2 "$1" "$folder/part."
  count="$(find "$folder" -name 'part.*' | wc -l)"
  sum="$(sha256sum <"$1" | cut -d ' ' -f 1)"
  for part in "$folder"/part.*; do
    mkdir -p "$out/${part##*.}"
    mv "$part" "$out/${part##*.}/nccl.$count.$sum.${part##*.}"
  done
  du -sh "$out"/*
}

keep() {
  local part
  mkdir -p "$kept"
  for part in "$@"; do cp "$part" "$kept"; done
  ls -l "$kept"
}

join() {
  local first parts count sum
  parts=("$kept"/nccl.*.*.[0-9][0-9])
  first="$(basename "${parts[0]}")"
  [ -e "${parts[0]}" ] || fail "$kept has no parts"
  IFS=. read -r _ count sum _ <<<"$first"
  [ "${#parts[@]}" = "$count" ] || fail "$kept has ${#parts[@]} of $count parts: ${parts[*]##*/}"
  cat "${parts[@]}" >"$kept/nccl.whl"
  echo "$sum  $kept/nccl.whl" | sha256sum -c --quiet || fail "the parts are not what was split"
  python3 -m zipfile -e "$kept/nccl.whl" "$kept"
  rm "${parts[@]}" "$kept/nccl.whl"
  ls -l "$kept/nvidia/nccl/lib/libnccl.so.2"
}

unpack() {
  mkdir -p "$2"
  # Without the program xz: Python can do it.
  python3 -c 'import sys, tarfile
with tarfile.open(sys.argv[1]) as archive:
    archive.extractall(sys.argv[2])' "$1" "$2"
}

case "${1:-}" in
  pack) [ $# = 2 ] || usage; pack "$2" ;;
  parts) [ $# = 3 ] || usage; parts "$2" "$3" ;;
  keep) [ $# -ge 2 ] || usage; shift; keep "$@" ;;
  join) [ $# = 1 ] || usage; join ;;
  unpack) [ $# = 3 ] || usage; unpack "$2" "$3" ;;
  test) shift; SYNCLINE_GPU_KEPT="$kept" exec python3 "$(dirname "$0")/run_tests.py" "$@" ;;
  *) usage ;;
esac
