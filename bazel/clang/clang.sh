#!/bin/bash
# The pinned clang, where Bazel's actions have it.
exec external/clang/usr/lib/llvm-19/bin/clang "$@"
