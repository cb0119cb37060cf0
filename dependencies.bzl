"""What the WORKSPACE file of another project loads to use Syncline: see examples/bazel."""

load("//third_party:repositories.bzl", "cc_dependencies")

def syncline_dependencies():
    """Declares what @syncline//:syncline and @syncline//launch:syncline_run are built of.

    Repositories that the workspace has declared before are taken as they are. Bazel fetches one when a target
    first needs it.
    """
    cc_dependencies()
