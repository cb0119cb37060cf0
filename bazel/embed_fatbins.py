"""Makes the C++ source that has fat binaries as data: OUT HEADER NAMESPACE FILE..."""

import pathlib
import sys


def main(out: str, header: str, namespace: str, *files: str) -> None:
    lines = [f'#include "{header}"', "", f"namespace {namespace} {{", ""]
    for file in files:
        words = pathlib.Path(file).stem.split("_")
        name = f"k{''.join(word.capitalize() for word in words)}Fatbin"
        data = pathlib.Path(file).read_bytes()
        # The driver reads words of eight bytes.
        lines.append(f"alignas(16) const unsigned char {name}[] = {{")
        for begin in range(0, len(data), 32):
            lines.append(",".join(str(byte) for byte in data[begin : begin + 32]) + ",")
        if not data:
            lines.append("0")  # An array has an element.
        lines += ["};", f"const size_t {name}Size = {len(data)};", ""]
    lines.append(f"}}  // namespace {namespace}")
    pathlib.Path(out).write_text("\n".join(lines) + "\n")


main(*sys.argv[1:])
