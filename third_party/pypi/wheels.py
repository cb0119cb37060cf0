"""Unpacks pinned wheels into ./site-packages, and writes <repository>_status.py.

Usage: wheels.py PIP REPOSITORY PINS, where PIP is pip's own wheel and PINS the
JSON of a part of the lock. Wheels are taken from the cache, else downloaded by
pip, as it is configured on this machine, without their dependencies. What is
printed are warnings for the user.

If a wheel cannot be had, site-packages stays empty, and the status module says
so: tests that need the repository skip, all others go on.

A wheel whose SHA-256 is not the lock's is used with a warning; under
SYNCLINE_LOCKED=1 it is an error.
"""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

# Where pip looks after its configured indexes: PyPI's torch needs CUDA.
_MORE_INDEXES = {"torch": "https://download.pytorch.org/whl/cpu"}

_STATUS = '''"""Whether the packages of this repository could be downloaded."""

AVAILABLE = {available}
REASON = {reason!r}
'''


class Unavailable(Exception):
    """A wheel cannot be downloaded; the text says why."""


def cache_dir():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = pathlib.Path(base, "syncline", "wheels")
    path.mkdir(parents=True, exist_ok=True)
    return path


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def download(pip, name, version, folder):
    """Downloads one wheel into the folder and returns its path."""
    command = [sys.executable, pip + "/pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", folder, "%s==%s" % (name, version)]
    attempts = [command]
    if name in _MORE_INDEXES:
        attempts.append(command + ["--index-url", _MORE_INDEXES[name]])
    for attempt in attempts:
        done = subprocess.run(attempt, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode == 0:
            (wheel,) = pathlib.Path(folder).glob("*.whl")
            return wheel
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    raise Unavailable(errors[-1][len("ERROR: ") :] if errors else done.stderr.strip())


def wheel(pip, name, pin):
    """Returns the path of the pinned wheel in the cache."""
    cache = cache_dir()
    path = cache / (pin["sha256"] + ".whl")
    if path.exists() and sha256(path) == pin["sha256"]:
        return path
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        file = download(pip, name, pin["version"], folder)
        actual = sha256(file)
        if actual != pin["sha256"]:
            text = "%s==%s has SHA-256 %s, the lock says %s" % (
                name,
                pin["version"],
                actual,
                pin["sha256"],
            )
            if os.environ.get("SYNCLINE_LOCKED") == "1":
                sys.exit(text + ". See tools/update_lock.")
            print("WARNING: %s; using it." % text)
        path = cache / (actual + ".whl")
        os.replace(file, path)
    return path


def extract(archive, folder):
    """Extracts all, with the permissions that ZipFile.extractall() drops."""
    for entry in archive.infolist():
        path = archive.extract(entry, folder)
        if entry.external_attr >> 16 & 0o111 and not entry.is_dir():
            os.chmod(path, 0o755)


def main():
    _, pip, repository, pins = sys.argv
    site_packages = pathlib.Path("site-packages")
    site_packages.mkdir()
    status = {"available": True, "reason": ""}
    try:
        for name, pin in sorted(json.loads(pins).items()):
            with zipfile.ZipFile(wheel(pip, name, pin)) as archive:
                extract(archive, site_packages)
    except Unavailable as error:
        shutil.rmtree(site_packages)
        site_packages.mkdir()
        reason = "%s could not be downloaded: %s" % (name, error)
        status = {"available": False, "reason": reason}
        print(
            "WARNING: %s. Tests that need it are skipped; to try again: "
            "./bazelw sync --only=%s" % (reason, repository)
        )
    module = site_packages / (repository + "_status.py")
    module.write_text(_STATUS.format(**status))


if __name__ == "__main__":
    main()
