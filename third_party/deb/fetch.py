"""Unpacks pinned Debian packages into the current folder.

Usage: fetch.py {binary,source} PINS, where PINS is the JSON of a part of the
lock. A binary package of another suite than the machine's is called PACKAGE/SUITE
there, so that both can be pinned; PACKAGE:arm64 is that of another machine.
Packages are taken from the cache, else from apt, and verified by SHA-256 in
either case. What is printed are warnings for the user.

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


def cached_binary(pin):
    return apt.cache_dir() / (pin["sha256"] + ".deb")


def download_binaries(suite, machine, pins):
    """Fills the cache with packages of one suite and machine; returns their pins of now."""
    index = apt.Index(suite=suite, machine=machine)
    pins = resolve(index, pins)
    wanted = {name: pin for name, pin in pins.items() if not cached_binary(pin).exists()}
    with tempfile.TemporaryDirectory(dir=apt.cache_dir()) as folder:
        if wanted:
            index.download({name: pin["version"] for name, pin in wanted.items()}, folder)
        for name, pin in wanted.items():
            (deb,) = pathlib.Path(folder).glob(name + "_*.deb")
            check(deb, pin, name)
            os.replace(deb, cached_binary(pin))
    return pins


def fetch_binary(pins):
    missing = {}
    for key, pin in pins.items():
        if not cached_binary(pin).exists():
            name, suite, machine = apt.split_key(key)
            missing.setdefault((suite, machine), {})[name] = pin
    for (suite, machine), of_suite in missing.items():
        for name, pin in download_binaries(suite, machine, of_suite).items():
            pins[apt.join_key(name, suite, machine)] = pin
    for name, pin in sorted(pins.items()):
        check(cached_binary(pin), pin, name)
        subprocess.run(["dpkg-deb", "-x", cached_binary(pin), "."], check=True)
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
