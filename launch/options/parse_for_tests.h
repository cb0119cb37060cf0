// Shorthand of the tests of options.
#ifndef SYNCLINE_LAUNCH_OPTIONS_PARSE_FOR_TESTS_H_
#define SYNCLINE_LAUNCH_OPTIONS_PARSE_FOR_TESTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/testing/environments.h"
#include "gtest/gtest.h"
#include "launch/options/options.h"

namespace syncline::launch {

using Arguments = std::vector<std::string>;

inline absl::StatusOr<LaunchOptions> Parse(const Arguments& arguments,
                                           const Variables& variables = {},
                                           const HostResources& host = {8, 0}) {
  return ParseOptions(arguments, LookUpIn(variables), host);
}

// The options; the test fails if they are wrong.
inline LaunchOptions Good(const Arguments& arguments, const Variables& variables = {},
                          const HostResources& host = {8, 0}) {
  absl::StatusOr<LaunchOptions> options = Parse(arguments, variables, host);
  EXPECT_TRUE(options.ok()) << options.status();
  return options.ok() ? *options : LaunchOptions();
}

// The error message about wrong options; the test fails if they are right.
inline std::string Error(const Arguments& arguments, const Variables& variables = {},
                         const HostResources& host = {8, 0}) {
  absl::StatusOr<LaunchOptions> options = Parse(arguments, variables, host);
  EXPECT_FALSE(options.ok());
  return std::string(options.status().message());
}

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_PARSE_FOR_TESTS_H_
