// The third-party headers that most of our C++ files include: see thread_safety.bzl.
#ifndef SYNCLINE_BAZEL_THREAD_SAFETY_HEADER_H_
#define SYNCLINE_BAZEL_THREAD_SAFETY_HEADER_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#endif  // SYNCLINE_BAZEL_THREAD_SAFETY_HEADER_H_
