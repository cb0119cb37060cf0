#!/bin/bash
# Starts a Java program from its runfiles; filled in by java.bzl.
set -euo pipefail
runfiles="${JAVA_RUNFILES:-${TEST_SRCDIR:-}}"
if [ -z "$runfiles" ]; then
  runfiles="$0.runfiles"
  [ -d "$runfiles" ] || runfiles="$(readlink -f "$0").runfiles"
fi
runfiles="$(cd "$runfiles" && pwd)"
%{env}
exec "%{java}" -XX:-UsePerfData -cp "%{classpath}" -Djava.library.path="%{library_path}" \
  %{jvm_flags} %{main_class} %{args} "$@"
