// What every backend must do, as one suite. What they do with data is in conformance_data.h; here
// are the ranks (see suite_ranks.h), and what happens when things go wrong:
// backend_conformance_failures.cc, backend_conformance_mismatches.cc.
// tests/backends/backend_conformance_test.cc lists the backends.
#ifndef SYNCLINE_TESTS_BACKENDS_BACKEND_CONFORMANCE_H_
#define SYNCLINE_TESTS_BACKENDS_BACKEND_CONFORMANCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "tests/backends/conformance_data.h"
#include "tests/support/operations.h"

namespace syncline {

// One backend under test. Differences are stated here, and in its Capabilities, as data; the suite
// never asks for the name.
struct BackendCase {
  std::string name;  // In the BackendRegistry.

  // Whether ranks that make different collective calls get a MismatchError. A send and a recv do.
  enum class Mismatches { kDetected, kUndefined } mismatches = Mismatches::kDetected;

  // Whether messages may have tags, and be received from any rank.
  MessageMatching matching = MessageMatching::kByTagAndSource;

  bool ServesTags() const { return matching == MessageMatching::kByTagAndSource; }
};

inline std::ostream& operator<<(std::ostream& os, const BackendCase& c) { return os << c.name; }

// Each backend with each number of ranks, which meet in one store.
class BackendConformance : public testing::TestWithParam<std::tuple<BackendCase, int>> {
 public:
  using Body = std::function<void(std::shared_ptr<Backend>& backend, int rank)>;

  static const BackendCase& Case() { return std::get<0>(GetParam()); }
  static int size() { return std::get<1>(GetParam()); }

  static CallContext Within(absl::Duration timeout, uint64_t sequence = 0) {
    return {sequence, Deadline(timeout)};
  }

  static absl::StatusOr<std::shared_ptr<Backend>> Make(std::shared_ptr<Store> store, int rank,
                                                       absl::Duration timeout = kTimeout);

  // Runs `body` on every rank, each with a backend of its own, which it may reset. A backend that
  // cannot be made is a failure.
  static void Run(const Body& body);
};

// Each backend and number of ranks with each of the DataCases, by name.
class BackendData : public testing::TestWithParam<std::tuple<BackendCase, int, std::string>> {};

// Whether this rank gives data and gets none. The contract of Backend lets it go ahead of the
// others, and hear of a mismatch later.
bool OnlyGives(const Spec& spec, int rank);

// Of the cases that the backend serves.
std::vector<std::string> DataCaseNames(const BackendCase& backend = {});

// Of the names of the tests: "gloo_3", "gloo_3_all_reduce".
std::string CaseName(const testing::TestParamInfo<std::tuple<BackendCase, int>>& info);
std::string DataCaseName(
    const testing::TestParamInfo<std::tuple<BackendCase, int, std::string>>& info);

}  // namespace syncline

#endif  // SYNCLINE_TESTS_BACKENDS_BACKEND_CONFORMANCE_H_
