#!/bin/bash
# Formats the C++ and Python files of the tree, and lints the Python files.
#
# Usage: tools/format.sh [--check]
#
# With --check nothing is changed: the files that are not formatted are listed,
# and the exit status tells. clang-format and ruff are pinned wheels, see
# third_party/pypi; where they cannot be downloaded the exit status is 77.
# BUILD files are formatted where buildifier is on the PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

check=false
case "${1:-}" in
  '') ;;
  --check) check=true ;;
  *)
    sed -n '2,/^set/s/^# \?//p' "$0"
    exit 2
    ;;
esac

# All files of the tree whose names match one of the patterns. Bazel's output
# folders are links, which find does not follow.
files() {
  local names=(-name "$1") name
  for name in "${@:2}"; do names+=(-o -name "$name"); done
  find . -name .git -prune -o -type f \( "${names[@]}" \) -print0
}

python_files() {
  files '*.py' '*.pyi'
  find tools .ci -type f ! -name '*.*' -exec grep -lIZ '^#!.*python' {} +
}

./bazelw build --noshow_progress --ui_event_filters=-info @pypi_formatters//:formatters
wheels="$(./bazelw info output_base 2>/dev/null)/external/pypi_formatters/site-packages"
clang_format="$wheels/clang_format/data/bin/clang-format"
ruff="$(compgen -G "$wheels/ruff-*.data/scripts/ruff" || true)"
if [ ! -x "$clang_format" ] || [ ! -x "$ruff" ]; then
  echo "tools/format.sh: skipped, for $(sed -n 's/^REASON = //p' "$wheels"/*_status.py)" >&2
  exit 77
fi

failed=false
if $check; then
  clang_options=(--dry-run --Werror) ruff_options=(--check) fix_options=() build_options=(-mode=check)
else
  clang_options=(-i) ruff_options=() fix_options=(--fix) build_options=(-mode=fix)
fi
files '*.cc' '*.h' | xargs -0 -r "$clang_format" "${clang_options[@]}" || failed=true
python_files |
  xargs -0 -r "$ruff" format --no-cache --quiet "${ruff_options[@]}" || failed=true
python_files |
  xargs -0 -r "$ruff" check --no-cache --quiet "${fix_options[@]}" || failed=true
if command -v buildifier >/dev/null; then
  files WORKSPACE BUILD '*.BUILD' '*.bzl' |
    xargs -0 -r buildifier "${build_options[@]}" || failed=true
fi
if $failed; then
  echo "tools/format.sh: see above" >&2
  exit 1
fi
