#include "tests/ddp/reducer_ranks.h"

#include <utility>

#include "gtest/gtest.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/support/ranks.h"

namespace syncline {

std::string Message(const absl::Status& status) { return std::string(status.message()); }

std::vector<absl::Status> OnRanks(int size, const std::function<absl::Status(Group)>& body,
                                  const std::string& backend) {
  auto store = std::make_shared<HashStore>();
  std::vector<Group> groups(size);
  return RunRanks(size, [&](int rank) -> absl::Status {
    ProcessGroup::Options options;
    options.backend = backend;
    options.store = store;
    options.rank = rank;
    options.size = size;
    options.timeout = absl::Seconds(60);
    SYNCLINE_ASSIGN_OR_RETURN(groups[rank], ProcessGroup::Create(options));
    return body(groups[rank]);
  });
}

void ExpectOnRanks(int size, const std::function<absl::Status(Group)>& body,
                   const std::string& backend) {
  for (const absl::Status& status : OnRanks(size, body, backend)) {
    EXPECT_TRUE(status.ok()) << backend << ": " << status;
  }
}

std::vector<Tensor> SmallModel(DType dtype) {
  return {Tensor::Zeros(dtype, {2, 3}), Tensor::Zeros(dtype, {3}), Tensor::Zeros(dtype, {5})};
}

Reducer::Options SmallOptions() {
  Reducer::Options options;
  options.names = {"w", "b", "v"};
  options.caps = {1, 1};
  return options;
}

absl::Status Copy(Reducer& reducer, int64_t index, float value) {
  SYNCLINE_ASSIGN_OR_RETURN(const Tensor place, reducer.gradient(index));
  std::vector<float> values(place.numel(), value);
  return reducer.CopyReady(index, Tensor::Of(values));
}

absl::StatusOr<float> Value(const Reducer& reducer, int64_t index) {
  SYNCLINE_ASSIGN_OR_RETURN(const Tensor gradient, reducer.gradient(index));
  const float* values = gradient.data_as<float>();
  for (int64_t k = 0; k < gradient.numel(); ++k) {
    if (values[k] != values[0]) return absl::InternalError("not all elements are equal");
  }
  return values[0];
}

absl::Status Holds(const Reducer& reducer, int64_t index, float expected) {
  SYNCLINE_ASSIGN_OR_RETURN(const float value, Value(reducer, index));
  if (value == expected) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("gradient ", index, " is ", value, ", not ", expected));
}

}  // namespace syncline
