"""The version of Syncline, written here alone.

From here have it: the wheel, and `syncline.__version__`; the launcher (`syncline-run --version`); C++, as the macros of
`syncline/version.h`, a header that Bazel makes (//include:version), and as Info::Version(). What else ships a version
loads VERSION, in a BUILD file.
"""

# MAJOR.MINOR.PATCH.
VERSION = "0.1.0"
