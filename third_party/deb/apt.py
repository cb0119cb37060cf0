"""Reads apt's signed index: which versions of a package exist, and their hashes.

Binary packages come from the machine's own lists. Source packages need lists
of their own (few machines have deb-src lines), kept in the cache folder, and so
do packages of another suite than the machine's, from the same mirror. Of such a
suite come headers, old libraries to link with, and programs that run with the
suite's own C library: nothing that is linked into what runs on this machine.
"""

import collections
import fcntl
import glob
import hashlib
import os
import pathlib
import re
import subprocess
import time

# Lists of our own are read again after this many seconds.
_LISTS_LIFETIME = 3600

Version = collections.namedtuple("Version", "version suite")


class AptError(Exception):
    """Something apt was asked for and did not do; the text says what."""


def cache_dir():
    """The folder of downloaded packages, named by their hashes."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    default = os.path.join(base, "syncline", "debs")
    path = pathlib.Path(os.environ.get("SYNCLINE_DEB_CACHE") or default)
    path.mkdir(parents=True, exist_ok=True)
    return path


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def run(*command, cwd=None):
    """Returns the standard output; raises AptError with all that was said."""
    done = subprocess.run(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ, LC_ALL="C.UTF-8"),
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise AptError("%s: %s" % (" ".join(command[:2]), said))
    return done.stdout


def with_retries(function, times=4):
    """Calls the function until it does not raise, with growing pauses."""
    for attempt in range(times):
        try:
            return function()
        except AptError:
            if attempt == times - 1:
                raise
            time.sleep(1 << attempt)


class Index:
    """The index of binary or source packages; of `suite` and `machine`, if given."""

    def __init__(self, source=False, suite=None, machine=None):
        self.source = source
        self.suite = suite
        # Root would otherwise be warned that it does not download as _apt.
        self.options = ["-q", "-o", "APT::Sandbox::User=root"]
        if source or suite or machine:
            self.options += _own_lists("deb-src" if source else "deb", suite, machine)

    def versions(self, names):
        """Returns {name: [Version, ...]}, newest first; [] for an unknown name."""
        found = {name: [] for name in names}
        table = run("apt-cache", *self.options, "madison", *names)
        for line in table.splitlines():
            name, version, origin = (part.strip() for part in line.split("|"))
            if name in found and origin.endswith("Sources") == self.source:
                found[name].append(Version(version, origin.split()[1]))
        return found

    def pin(self, name, version):
        """Returns the version's lock entry: version, arch, sha256, and the suite if it has one."""
        if self.source:
            command = ["showsrc", "--only-source", name]
        else:
            command = ["show", "%s=%s" % (name, version)]
        for stanza in run("apt-cache", *self.options, *command).split("\n\n"):
            fields = _fields(stanza)
            if fields.get("Version") != version:
                continue
            if not self.source:
                pin = {
                    "version": version,
                    "arch": fields["Architecture"],
                    "sha256": fields["SHA256"],
                }
                return dict(pin, suite=self.suite) if self.suite else pin
            for line in fields["Checksums-Sha256"].split("\n"):
                if line.endswith(".dsc"):
                    pin = {
                        "version": version,
                        "arch": "source",
                        "sha256": line.split()[0],
                    }
                    return dict(pin, suite=self.suite) if self.suite else pin
        raise AptError("apt's index has no %s=%s" % (name, version))

    def download(self, versions, folder):
        """Downloads {name: version} into the folder, in one call of apt-get."""
        asked = ["%s=%s" % item for item in sorted(versions.items())]
        command = ["source", "--download-only"] if self.source else ["download"]
        options = self.options + ["-o", "Acquire::Retries=3"]
        with_retries(lambda: run("apt-get", *options, *command, *asked, cwd=folder))


def split_key(key):
    """libc6:arm64/trixie -> ("libc6", "trixie", "arm64"): None for what is this machine's."""
    package, _, suite = key.partition("/")
    name, _, machine = package.partition(":")
    return name, suite or None, machine or None


def join_key(name, suite, machine):
    """The other way."""
    return name + (":" + machine if machine else "") + ("/" + suite if suite else "")


def _fields(stanza):
    """The fields of one stanza; continuation lines are joined by newlines."""
    fields = {}
    name = None
    for line in stanza.splitlines():
        if line.startswith(" ") and name:
            fields[name] = (fields[name] + "\n" + line.strip()).strip()
        elif ":" in line:
            name, value = line.split(":", 1)
            fields[name] = value.strip()
    return fields


def _own_lists(kind, suite, machine=None):
    """Keeps lists of `kind` ("deb" or "deb-src") from the machine's Debian mirrors.

    Returns the options that make apt read them.
    """
    name = "sources" if kind == "deb-src" else "binaries"
    root = cache_dir() / "-".join(filter(None, [name, suite, machine]))
    (root / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (root / "cache").mkdir(exist_ok=True)
    sources = root / "mirrors.sources"
    options = [
        "-o",
        "Dir::Etc::sourcelist=%s" % sources,
        "-o",
        "Dir::Etc::sourceparts=/dev/null",
        "-o",
        "Dir::State::lists=%s" % (root / "lists"),
        "-o",
        "Dir::Cache=%s" % (root / "cache"),
        # What is installed here is of no suite.
        "-o",
        "Dir::State::status=/dev/null",
    ]
    if machine:
        options += ["-o", "APT::Architecture=" + machine, "-o", "APT::Architectures=" + machine]
    stamp = root / "updated"
    with open(root / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mirrors = _mirrors(kind, suite)
        known = sources.read_text() if sources.exists() else None
        age = time.time() - stamp.stat().st_mtime if stamp.exists() else None
        if known != mirrors or age is None or age > _LISTS_LIFETIME:
            sources.write_text(mirrors)
            update = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", *options, "update"]
            with_retries(lambda: run(*update))
            stamp.touch()
    return options


def _mirrors(kind, suite):
    """The machine's Debian mirrors, asked for `kind` (of `suite`, if given), as deb822 text."""
    stanzas = []
    for path in sorted(glob.glob("/etc/apt/sources.list.d/*.sources")):
        text = re.sub(r"^#.*\n", "", pathlib.Path(path).read_text(), flags=re.M)
        for stanza in re.split(r"\n\s*\n", text):
            if re.search(r"^URIs:.*debian", stanza, re.M):
                stanzas.append(re.sub(r"^Types:.*", "Types: " + kind, stanza.strip(), flags=re.M))
    lists = ["/etc/apt/sources.list"] + sorted(glob.glob("/etc/apt/sources.list.d/*.list"))
    for path in filter(os.path.exists, lists):
        for line in pathlib.Path(path).read_text().splitlines():
            match = re.match(r"deb\s+(?:\[.*?\]\s+)?(\S*debian\S*)\s+(\S+)\s+(.+)", line)
            if match:
                stanzas.append(
                    "Types: %s\nURIs: %s\nSuites: %s\nComponents: %s" % (kind, *match.groups())
                )
    if suite:
        stanzas = _of_suite(stanzas, suite)
    return "\n\n".join(stanzas) + "\n"


def _of_suite(stanzas, suite):
    """The stanzas of main archives, asked for another suite. Mirrors of updates do not have it."""
    found = []
    for stanza in stanzas:
        suites = re.search(r"^Suites:(.*)", stanza, re.M).group(1).split()
        if any("-" not in name for name in suites):
            found.append(re.sub(r"^Suites:.*", "Suites: " + suite, stanza, flags=re.M))
    return list(dict.fromkeys(found))
