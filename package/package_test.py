"""The C++ package, unpacked somewhere, serves projects of other build systems."""

import os
import pathlib
import re
import shlex
import subprocess
import tarfile

import cmake_status
import pytest

ROOT = pathlib.Path(os.environ["TEST_SRCDIR"])
PACKAGE = ROOT / "syncline/package/cpp"
EXAMPLE = ROOT / "syncline/examples/cmake"
CMAKE = ROOT / "cmake/site-packages/cmake/data/bin/cmake"
PKGCONF = ROOT / "pkgconf/usr/bin/pkgconf"

# The C library, and the runtimes of C++ that every program has.
RUNTIME = {"ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6"}


def run(*command, **kwargs):
    result = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        **kwargs,
    )
    assert result.returncode == 0, f"{command}: {result.stdout[-4000:]}"
    return result.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    (tarball,) = PACKAGE.glob("*.tar.gz")
    folder = tmp_path_factory.mktemp("opt of mine")
    with tarfile.open(tarball) as archive:
        archive.extractall(folder)
    (prefix,) = folder.iterdir()
    return prefix


@pytest.fixture(scope="module")
def built(prefix, tmp_path_factory):
    """The example, built by CMake."""
    if not cmake_status.AVAILABLE:
        pytest.skip(cmake_status.REASON)
    source, build = tmp_path_factory.mktemp("hello"), tmp_path_factory.mktemp("build")
    for name in ("CMakeLists.txt", "hello.cc"):
        (source / name).write_text((EXAMPLE / name).read_text())
    run(CMAKE, "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
    run(CMAKE, "--build", build)
    return build


def ranks(output):
    return sorted(re.findall(r"rank \d of \d: \d", output))


def needed(path):
    listing = run("readelf", "-d", path)
    return set(re.findall(r"NEEDED.*\[(.*)\]", listing))


def test_a_cmake_project_finds_it_and_two_ranks_run(built):
    assert "libsyncline.so.0.1" in run("readelf", "-d", built / "hello")
    output = run(CMAKE, "--build", built, "--target", "run")
    assert ranks(output) == ["rank 0 of 2: 1", "rank 1 of 2: 1"]


def test_pkg_config_links_it_statically_with_all_backends(prefix, built, tmp_path):
    where = {"PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig"), "PATH": os.environ["PATH"]}
    options = shlex.split(run(PKGCONF, "--libs", "syncline-static", env=where))
    (compiled,) = built.rglob("hello.cc.o")
    run("g++", compiled, *options, "-o", tmp_path / "hello")
    assert needed(tmp_path / "hello") <= RUNTIME
    launcher = [prefix / "bin/syncline-run", "--standalone", "--nproc-per-node=2", "--no-python"]
    assert ranks(run(*launcher, tmp_path / "hello")) == ["rank 0 of 2: 1", "rank 1 of 2: 1"]
    cflags = shlex.split(run(PKGCONF, "--cflags", "syncline", env=where))
    assert {path.removeprefix("-I") for path in cflags} == {
        f"{prefix}/lib/pkgconfig/../../include",
        f"{prefix}/lib/pkgconfig/../../include/syncline-abseil",
    }


def test_the_shared_library_shows_nothing_of_what_is_linked_in_but_abseil(prefix):
    library = prefix / "lib/libsyncline.so"
    listing = run("nm", "-D", "-C", "--defined-only", "--extern-only", library)
    names = [line.split(" ", 2)[2] for line in listing.splitlines()]
    # Some names are too new for nm to read.
    known = re.compile(r"\b(syncline|absl)::|^AbslInternal|^_ZNK?(8syncline|4absl)")
    foreign = [name for name in names if not known.search(name)]
    assert foreign == []
    assert any(name.startswith("syncline::World::Init(") for name in names)
    assert needed(library) <= RUNTIME


def test_the_launcher_is_one_file_that_needs_the_c_library_alone(prefix):
    libraries = needed(prefix / "bin/syncline-run")
    if "libdl.so.2" not in libraries:  # Which newer C libraries have inside.
        pytest.skip("linked for this machine: Debian 11's C library is not to be had")
    of_old_glibc = {"libdl.so.2", "libpthread.so.0", "librt.so.1"}
    assert libraries <= RUNTIME - {"libstdc++.so.6"} | of_old_glibc
    listing = run("readelf", "-d", prefix / "bin/syncline-run")
    assert "RPATH" not in listing and "RUNPATH" not in listing
    versions = re.findall(r"\bGLIBC_2\.(\d+)", run("objdump", "-T", prefix / "bin/syncline-run"))
    assert max(map(int, versions)) <= 28


def test_bash_completes_the_launchers_options(prefix):
    script = prefix / "share/bash-completion/completions/syncline-run"
    complete = (
        "source '%s'; COMP_WORDS=(syncline-run %s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
        "_syncline_run; echo ${COMPREPLY[*]}"
    )
    assert run("bash", "-c", complete % (script, "--nproc")).split() == ["--nproc-per-node"]
    assert run("bash", "-c", complete % (script, "--rdzv-backend f")).split() == ["file"]


def test_zsh_completions_and_the_manual_have_the_options_of_the_help(prefix):
    text = run(prefix / "bin/syncline-run", "--help")
    options = set(re.findall(r"^ .{4} ?--([a-z-]+)", text, re.MULTILINE))
    assert len(options) > 40
    zsh = (prefix / "share/zsh/site-functions/_syncline-run").read_text()
    assert zsh.startswith("#compdef syncline-run\n")
    assert set(re.findall(r"^    '--([a-z-]+)", zsh, re.MULTILINE)) == options
    manual = (prefix / "share/man/man1/syncline-run.1").read_text()
    entries = re.findall(r"^\.TP\n.*\\fB\\-\\-([a-z\\-]+)\\fR", manual, re.MULTILINE)
    assert {entry.replace("\\-", "-") for entry in entries} == options


def test_all_licenses_come_along(prefix):
    folder = prefix / "share/doc/syncline/licenses"
    table = (folder / "THIRD_PARTY.md").read_text()
    texts = "".join(path.parent.name + "\n" for path in folder.rglob("*") if path.is_file()).lower()
    for source in ("absl", "cares", "grpc", "gloo", "highway", "libssl", "protobuf", "re2", "zlib"):
        assert source in texts.replace("libc-ares", "cares"), texts
    assert "| OpenSSL | Apache-2.0 | openssl |" in table
    assert "Apache License" in (folder / "LICENSE").read_text()


def test_debians_package_has_the_same_files(prefix, tmp_path):
    (debian,) = PACKAGE.glob("*.deb")
    run("dpkg-deb", "-x", debian, tmp_path)
    files = {path.relative_to(prefix) for path in prefix.rglob("*") if not path.is_dir()}
    unpacked = {
        path.relative_to(tmp_path / "usr") for path in tmp_path.rglob("*") if not path.is_dir()
    }
    assert unpacked == files
    assert re.fullmatch(
        r"libc6 \(>= 2\.\d+\), libgcc-s1, libstdc\+\+6 \(>= \d+\)\n",
        run("dpkg-deb", "--field", debian, "Depends"),
    )
    assert os.access(tmp_path / "usr/bin/syncline-run", os.X_OK)
