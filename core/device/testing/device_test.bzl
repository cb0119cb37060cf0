"""Tests of devices: on simulated ones in CI, and on those of the machine by hand."""

load("//bazel:cc.bzl", "syncline_cc_test")

def gpu_test_name(name):
    """The test of the same sources on the devices of the machine: a_gpu_test of a_test."""
    return name[:-len("_test")] + "_gpu_test"

def device_cc_test(name, deps, nccl = False, shard_count = None, size = "small", tags = [], env = {}, **kwargs):
    """A syncline_cc_test twice: on simulated devices, and on those of the machine.

    The second is named as gpu_test_name has it, has the tags `gpu` and `manual`, and looks for
    CUDA's driver and NCCL where programs do. What it can only do on simulated devices it skips, by
    SYNCLINE_REQUIRE_SIMULATED_DEVICES (fake_cuda_env.h). tests/gpu/run.sh packs it.

    Args:
      name: that of the first, which ends with _test.
      deps: of both, without the stand-ins.
      nccl: whether it uses NCCL, for which there is a stand-in too.
      shard_count: of the first.
      size: of the first.
      tags: of both.
      env: of the first.
      **kwargs: further attributes of both.
    """
    stand_ins = ["//core/device/testing:fake_cuda_env"]
    instead = ["//core/device/testing:real_devices"]
    if nccl:
        stand_ins.append("//backends/nccl/testing:fake_nccl_env")
        instead.append("//backends/nccl/testing:fake_nccl_control")
    syncline_cc_test(
        name = name,
        size = size,
        deps = deps + stand_ins,
        env = env,
        shard_count = shard_count,
        tags = tags,
        **kwargs
    )
    syncline_cc_test(
        name = gpu_test_name(name),
        size = "medium",
        deps = deps + instead,
        tags = tags + [
            "gpu",
            "manual",
        ],
        visibility = ["//tests/gpu:__pkg__"],
        **kwargs
    )
