#!/usr/bin/python3
"""Merges coverage data into one lcov file.

Stands in for both tools that Bazel calls, with the flags it gives them:
lcov_merger: --coverage_dir, --output_file, --filter_sources (repeated);
coverage_report_generator: --reports_file, --output_file.
"""

import collections
import glob
import gzip
import json
import os
import re
import sys


def add_gcov(path, counts):
    with gzip.open(path) as file:
        for source in json.load(file)["files"]:
            for line in source["lines"]:
                counts[source["file"]][line["line_number"]] += line["count"]


def add_lcov(path, counts):
    source = None
    with open(path, errors="replace") as file:
        for line in file:
            if line.startswith("SF:"):
                source = line[3:].strip()
            elif line.startswith("DA:") and source:
                number, count = line[3:].split(",")[:2]
                counts[source][int(number)] += int(count)


def write_lcov(path, counts):
    with open(path, "w") as file:
        for source, lines in sorted(counts.items()):
            file.write("SF:%s\n" % source)
            for number, count in sorted(lines.items()):
                file.write("DA:%d,%d\n" % (number, count))
            hit = sum(1 for count in lines.values() if count)
            file.write("LH:%d\nLF:%d\nend_of_record\n" % (hit, len(lines)))


def main():
    flags = {}
    filters = []
    for argument in sys.argv[1:]:
        name, _, value = argument.lstrip("-").partition("=")
        if name == "filter_sources":
            filters.append(re.compile(value))
        else:
            flags[name] = value
    counts = collections.defaultdict(lambda: collections.defaultdict(int))
    if "coverage_dir" in flags:
        root = flags["coverage_dir"]
        for path in glob.glob(root + "/**/*.gcov.json.gz", recursive=True):
            add_gcov(path, counts)
        for path in glob.glob(root + "/**/*.dat", recursive=True):
            add_lcov(path, counts)
    if "reports_file" in flags:
        with open(flags["reports_file"]) as file:
            for path in filter(os.path.exists, file.read().split("\n")):
                add_lcov(path, counts)
    for source in list(counts):
        if source.startswith("/") or any(pattern.fullmatch(source) for pattern in filters):
            del counts[source]
    write_lcov(flags["output_file"], counts)


if __name__ == "__main__":
    main()
