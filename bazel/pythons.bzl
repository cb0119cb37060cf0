"""The interpreters that there are wheels for.

What includes Python's headers is compiled for each, and linked with the objects that all have in common.
"""

load("@local_python//:defs.bzl", "PYTHON_TAG")

def _python(tag, suffix, headers, pybind11, tags = []):
    return struct(headers = headers, pybind11 = pybind11, suffix = suffix, tag = tag, tags = tags)

# The one that runs the tests, /usr/bin/python3. Its targets have no suffix.
DEFAULT_PYTHON = _python("cp311", "", "@python_headers", "@pybind11")

# Those of newer Debians. Each takes minutes to compile, so targets are built when they are named.
OTHER_PYTHONS = [
    _python("cp313", "_cp313", "@python3.13_headers//:headers", "@pybind11_3", ["manual"]),
    _python("cp314", "_cp314", "@python3.14_headers//:headers", "@pybind11_3", ["manual"]),
]

# One of this machine: see third_party/local_python.bzl. Its targets are built when they are named.
LOCAL_PYTHON = _python(PYTHON_TAG, "_local", "@local_python//:headers", "@pybind11_3", ["manual"])

PYTHONS = [DEFAULT_PYTHON] + OTHER_PYTHONS + [LOCAL_PYTHON]

def extension_module(python):
    """The name of the extension for `python`: that of the default one is the package's.

    Args:
      python: of PYTHONS.

    Returns:
      the target's name in package python; NAME.so is the library.
    """
    return "%s_syncline" % ("syncline/" if python == DEFAULT_PYTHON else python.suffix[1:] + "/")
