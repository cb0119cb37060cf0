// Of //bazel:cuda_unavailable_test, which does not compile it.
