"""Makes the C++ source that has the plug-ins as data: OUT FILE..."""

import pathlib
import sys


def main(out: str, *files: str) -> None:
    lines = [
        '#include "backends/mpi/embedded_plugins.h"',
        "",
        "namespace syncline::mpi {",
        "namespace {",
    ]
    entries = []
    for number, file in enumerate(files):
        # The target is the stripped form of the library.
        name = pathlib.Path(file).name.removesuffix(".stripped")
        data = pathlib.Path(file).read_bytes()
        lines.append(f"constexpr unsigned char kData{number}[] = {{")
        for begin in range(0, len(data), 32):
            lines.append(",".join(str(byte) for byte in data[begin : begin + 32]) + ",")
        lines.append("};")
        entries.append(f'    {{"{name}", kData{number}, sizeof(kData{number})}},')
    lines += ["constexpr EmbeddedPlugin kPlugins[] = {", *entries, "};", "}  // namespace", ""]
    lines += ["absl::Span<const EmbeddedPlugin> EmbeddedPlugins() { return kPlugins; }", ""]
    lines.append("}  // namespace syncline::mpi")
    pathlib.Path(out).write_text("\n".join(lines) + "\n")


main(*sys.argv[1:])
