import base64
import email
import hashlib
import pathlib
import re
import zipfile

import clean_venv
import pytest

NAMED_SEGMENT = """
import pickle, syncline.multiprocessing as mp
mp.set_sharing_strategy("file_system")
reader, writer = mp.Pipe(duplex=False)
writer.send(pickle.PickleBuffer(bytearray(1 << 20)))
print(len(reader.recv()))
"""

WORLD_OF_ONE = """
import array
import syncline as dist

dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
values = array.array("d", [1.5, -2.0])
dist.all_reduce(values)
dist.barrier()
dist.destroy_process_group()
assert list(values) == [1.5, -2.0]
print("done")
"""

WORKER = """
import array
import sys
import syncline as dist

dist.init_process_group()
rank = dist.get_rank()
floats = array.array("f", [rank + 1.0] * 1001)
dist.all_reduce(floats)
raw = bytearray([rank + 1] * 7)
dist.all_reduce(raw, dist.ReduceOp.MAX)
dist.destroy_process_group()
assert list(floats) == [3.0] * 1001 and list(raw) == [2] * 7, (floats, raw)
assert "numpy" not in sys.modules
with open("/proc/self/maps") as maps:
    files = {line.split(None, 5)[5].strip() for line in maps if len(line.split(None, 5)) == 6}
for file in sorted(files):
    print("mapped", file)
"""


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    return clean_venv.CleanVenv(tmp_path_factory.mktemp("clean"))


@pytest.fixture
def archive():
    with zipfile.ZipFile(clean_venv.WHEEL) as archive:
        yield archive


def metadata(archive):
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(archive.read(name))


def test_a_world_of_one_needs_nothing_but_the_wheel(venv):
    assert venv.run(venv.python, "-c", WORLD_OF_ONE) == "done\n"


def test_importing_it_does_not_import_numpy(venv):
    venv.run(venv.python, "-c", "import sys, syncline; assert 'numpy' not in sys.modules")


def test_the_manager_of_named_segments_starts(venv):
    assert venv.run(venv.python, "-c", NAMED_SEGMENT) == "1048576\n"


@pytest.mark.parametrize("command", ["bin/syncline-run", "bin/python -m syncline.run"])
def test_two_workers_of_its_launcher_reduce_plain_buffers(venv, command):
    program, *arguments = command.split()
    (venv.folder / "worker.py").write_text(WORKER)
    launch = [venv.root / program, *arguments, "--standalone", "--nproc-per-node", "2"]
    out = venv.run(*launch, "worker.py")
    mapped = set(re.findall(r"^\[rank\d\]: mapped (/.*)$", out, re.MULTILINE))
    libraries = {path for path in mapped if ".so" in path}
    ours = {path for path in libraries if pathlib.Path(path).is_relative_to(venv.root)}
    assert {pathlib.Path(path).name.split("-")[0] for path in ours} >= {"_syncline.so"}
    outside = [path for path in libraries - ours if not re.match(r"/(usr/)?lib(64)?/", path)]
    assert outside == [] and not [path for path in mapped if "bazel-out" in path]


def test_its_launcher_says_which_rank_failed(venv):
    (venv.folder / "fails.py").write_text("import os; os.environ['RANK'] == '1' and exit(7)\n")
    launch = [venv.root / "bin/syncline-run", "--standalone", "--nproc-per-node", "2"]
    assert "rank 1 (pid" in venv.run(*launch, "fails.py", expect=7)


def test_launcher_and_package_have_its_version(venv, archive):
    version = metadata(archive)["Version"]
    assert version == clean_venv.WHEEL.name.split("-")[1]
    said = venv.run(venv.root / "bin/syncline-run", "--version")
    assert said == f"syncline-run {version}\n"
    said = venv.run(venv.python, "-c", "import syncline; print(syncline.__version__)")
    assert said == f"{version}\n"


def test_record_lists_every_file_with_its_hash_and_size(archive):
    (record,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
    lines = [line.rsplit(",", 2) for line in archive.read(record).decode().splitlines()]
    assert [name for name, _, _ in lines] == archive.namelist()
    assert lines.pop() == [record, "", ""]
    for name, digest, size in lines:
        data = archive.read(name)
        expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert (digest, size) == ("sha256=" + expected, str(len(data))), name


def test_it_requires_no_other_distribution_and_comes_with_all_licenses(archive):
    fields = metadata(archive)
    assert fields["Name"] == "syncline" and fields.get_all("Requires-Dist") is None
    (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    licenses = fields.get_all("License-File")
    assert {f"{folder}/licenses/{path}" for path in licenses} < set(archive.namelist())
    # Nothing that is linked in is missing: each line of the table names a library.
    table = archive.read(f"{folder}/licenses/THIRD_PARTY.md").decode()
    assert "| Gloo | BSD-3-Clause | gloo |" in table and "gloo/LICENSE" in licenses


def test_all_libraries_of_others_are_linked_in(archive):
    assert [name for name in archive.namelist() if ".so" in pathlib.Path(name).name] == [
        "syncline/_syncline.so"
    ]


def test_it_holds_types_and_no_test(archive):
    names = archive.namelist()
    assert {"syncline/py.typed", "syncline/_syncline.pyi", "syncline/_syncline.so"} < set(names)
    assert not [name for name in names if name.startswith("syncline/") and "test" in name]


def test_equal_inputs_give_equal_bytes():
    (again,) = pathlib.Path("python/wheel_again").glob("*.whl")
    assert again.name == clean_venv.WHEEL.name
    assert again.read_bytes() == clean_venv.WHEEL.read_bytes()


def test_uninstalling_it_leaves_nothing(tmp_path):
    venv = clean_venv.CleanVenv(tmp_path)
    assert list(venv.site_packages.glob("syncline*"))
    venv.pip("uninstall", "--yes", "syncline")
    # An empty folder may be gone with it.
    assert list(venv.root.glob("lib/python3.*/site-packages/*")) == []
    assert not (venv.root / "bin/syncline-run").exists()
