// A store for groups that have nobody to meet.
#ifndef SYNCLINE_CORE_TESTING_NO_STORE_H_
#define SYNCLINE_CORE_TESTING_NO_STORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "syncline/status.h"
#include "syncline/store.h"

namespace syncline {

// Refuses every call with a StoreError.
class NoStore final : public Store {
 public:
  absl::Status Set(absl::string_view, absl::string_view) override { return Refused(); }
  absl::StatusOr<std::string> Get(absl::string_view, absl::Duration) override { return Refused(); }
  absl::StatusOr<int64_t> Add(absl::string_view, int64_t) override { return Refused(); }
  absl::StatusOr<CompareSetResult> CompareSet(absl::string_view, absl::string_view,
                                              absl::string_view) override {
    return Refused();
  }
  absl::Status Wait(absl::Span<const std::string>, absl::Duration) override { return Refused(); }
  absl::StatusOr<bool> Check(absl::Span<const std::string>) override { return Refused(); }
  absl::StatusOr<bool> Delete(absl::string_view) override { return Refused(); }
  absl::StatusOr<std::vector<std::string>> Keys(absl::string_view) override { return Refused(); }
  absl::Status Append(absl::string_view, absl::string_view) override { return Refused(); }
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string>,
                                                    absl::Duration) override {
    return Refused();
  }
  absl::Status MultiSet(absl::Span<const std::string>, absl::Span<const std::string>) override {
    return Refused();
  }
  absl::Duration timeout() const override { return absl::Seconds(20); }
  std::string ToString() const override { return "none"; }

 private:
  static absl::Status Refused() { return StoreError("this test has no store"); }
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_TESTING_NO_STORE_H_
