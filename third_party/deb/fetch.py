"""Unpacks pinned Debian packages into the current folder.

Usage: fetch.py {binary,source} PINS, where PINS is the JSON of a part of the
lock. Packages are taken from the cache, else from apt, and verified by SHA-256
in either case. What is printed are warnings for the user.

A pin that has left the mirror is replaced by the mirror's current version, as
apt's signed index gives it, with a warning; under SYNCLINE_LOCKED=1 it is an
error.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import apt

# Parts of packages that nothing here reads.
_UNUSED = ["usr/share/lintian", "usr/share/man", "usr/share/doc-base"]


def resolve(index, pins):
    """Returns the pins, those that have left the mirror replaced."""
    available = index.versions(pins)
    resolved = {}
    for name, pin in pins.items():
        versions = [entry.version for entry in available[name]]
        if not versions:
            raise apt.AptError(
                "apt's index has no package %s. Run 'apt-get update' as root (./bazelw does it "
                "where there is no index at all)." % name
            )
        if pin["version"] in versions:
            resolved[name] = pin
            continue
        gone = "%s: the pinned version %s has left the mirror" % (name, pin["version"])
        if os.environ.get("SYNCLINE_LOCKED") == "1":
            raise apt.AptError(gone + ". Renew the lock with tools/update_lock.")
        resolved[name] = index.pin(name, versions[0])
        print("WARNING: %s; using %s. Renew the lock with tools/update_lock." % (gone, versions[0]))
    return resolved


def check(path, pin, name):
    actual = apt.sha256(path)
    if actual != pin["sha256"]:
        raise apt.AptError(
            "%s=%s has SHA-256 %s, the lock says %s."
            % (name, pin["version"], actual, pin["sha256"])
        )


def drop_documentation():
    """Removes all documentation but the licences, usr/share/doc/PACKAGE/copyright."""
    for folder, folders, files in os.walk("usr/share/doc", topdown=False):
        for name in folders + files:
            path = os.path.join(folder, name)
            if os.path.isdir(path) and not os.path.islink(path):
                if not os.listdir(path):
                    os.rmdir(path)
            elif name != "copyright" or os.path.islink(path):
                os.remove(path)


def fetch_binary(pins):
    cache = apt.cache_dir()

    def cached(pin):
        return cache / (pin["sha256"] + ".deb")

    missing = {name: pin for name, pin in pins.items() if not cached(pin).exists()}
    if missing:
        index = apt.Index()
        pins = dict(pins, **resolve(index, missing))
        wanted = {name: pins[name] for name in missing if not cached(pins[name]).exists()}
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            if wanted:
                index.download({name: pin["version"] for name, pin in wanted.items()}, folder)
            for name, pin in wanted.items():
                (deb,) = pathlib.Path(folder).glob(name + "_*.deb")
                check(deb, pin, name)
                os.replace(deb, cached(pin))
    for name, pin in sorted(pins.items()):
        check(cached(pin), pin, name)
        subprocess.run(["dpkg-deb", "-x", cached(pin), "."], check=True)
    for folder in _UNUSED:
        shutil.rmtree(folder, ignore_errors=True)
    drop_documentation()


def check_source(folder, pin, name):
    """Checks the .dsc by the lock, the tarballs by the .dsc, and returns its path."""
    (dsc,) = pathlib.Path(folder).glob("*.dsc")
    check(dsc, pin, name)
    in_sums = False
    for line in dsc.read_text().splitlines():
        if not line.startswith(" "):
            in_sums = line.startswith("Checksums-Sha256:")
        elif in_sums:
            digest, _, file = line.split()
            check(pathlib.Path(folder) / file, dict(pin, sha256=digest), name)
    return dsc


def fetch_source(pins):
    cache = apt.cache_dir()
    ((name, pin),) = pins.items()
    if not (cache / (pin["sha256"] + ".src")).exists():
        index = apt.Index(source=True, suite=pin.get("suite"))
        pin = resolve(index, pins)[name]
        if not (cache / (pin["sha256"] + ".src")).exists():
            folder = tempfile.mkdtemp(dir=cache)
            index.download({name: pin["version"]}, folder)
            check_source(folder, pin, name)
            os.chmod(folder, 0o755)
            try:
                os.rename(folder, cache / (pin["sha256"] + ".src"))
            except OSError:  # Another repository was faster.
                shutil.rmtree(folder)
    dsc = check_source(cache / (pin["sha256"] + ".src"), pin, name)
    apt.run("dpkg-source", "--no-check", "-x", str(dsc), ".unpacked")
    for entry in os.listdir(".unpacked"):
        os.rename(os.path.join(".unpacked", entry), entry)
    for folder in [".unpacked", ".pc", "debian"]:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    _, kind, pins = sys.argv
    try:
        {"binary": fetch_binary, "source": fetch_source}[kind](json.loads(pins))
    except apt.AptError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
