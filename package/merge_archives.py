"""Makes one static library of many.

Usage: merge_archives.py --ar AR --ld LD --output LIBRARY --whole ARCHIVE... --others ARCHIVE...

All objects of the archives after --whole become a single one: a program that needs any of it gets
all, the registrations to which nothing refers included. Those of the other archives stay apart, for
the linker to choose from.
"""

import argparse
import os
import pathlib
import subprocess
import tempfile


def main():
    parser = argparse.ArgumentParser(fromfile_prefix_chars="@")
    parser.add_argument("--ar", required=True)
    parser.add_argument("--ld", required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--whole", nargs="+", required=True)
    parser.add_argument("--others", nargs="*", default=[])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole = os.path.join(folder, "syncline.o")
        link = [arguments.ld, "-r", "-o", whole, "--whole-archive", *arguments.whole]
        subprocess.run(link, check=True)
        # A name with "+" means something else to ar's scripts.
        script = [f"create {folder}/merged.a", f"addmod {whole}"]
        for number, archive in enumerate(arguments.others):
            plain = os.path.join(folder, f"{number}.a")
            os.symlink(os.path.abspath(archive), plain)
            script.append(f"addlib {plain}")
        script += ["save", "end", ""]
        subprocess.run([arguments.ar, "-M"], input="\n".join(script).encode(), check=True)
        subprocess.run([arguments.ar, "-sD", f"{folder}/merged.a"], check=True)
        arguments.output.write_bytes(pathlib.Path(folder, "merged.a").read_bytes())


if __name__ == "__main__":
    main()
