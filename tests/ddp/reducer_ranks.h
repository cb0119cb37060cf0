// Helpers for tests of reducers on several ranks, as threads of one process.
#ifndef SYNCLINE_TESTS_DDP_REDUCER_RANKS_H_
#define SYNCLINE_TESTS_DDP_REDUCER_RANKS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "syncline/process_group.h"
#include "syncline/reducer.h"
#include "syncline/store.h"
#include "syncline/tensor.h"

namespace syncline {

using Group = std::shared_ptr<ProcessGroup>;
using Reducers = std::shared_ptr<Reducer>;

std::string Message(const absl::Status& status);

#define EXPECT_TRUE_OR_RETURN(condition) \
  if (!(condition)) return absl::InternalError(absl::StrCat(__LINE__, ": not so: " #condition))

// Backends; those that end with "@cuda" are to average gradients on devices: on streams, on streams
// in a group that serves no tensors of the host, and through memory of the host.
inline constexpr const char* kOnDevices[] = {"auto@cuda", "nccl@cuda", "shm@cuda"};

// Runs `body` on each of `size` ranks of a group; the statuses are those that it returns. Nobody
// leaves before all have returned.
std::vector<absl::Status> OnRanks(int size, const std::function<absl::Status(Group)>& body,
                                  const std::string& backend = "local");

// Expects all of these to be OK; by default with backend local, and on devices.
void ExpectOnRanks(int size, const std::function<absl::Status(Group)>& body,
                   const std::string& backend = "");

// Where gradients are on this thread: on the device of its rank in a body that runs "@cuda".
Device TestDevice();

// A contiguous tensor with the elements of `host`, enqueued on the current stream of `on`,
// if that is a device. It owns its memory, which may be let go when what uses it is kept by
// somebody else.
absl::StatusOr<Tensor> Placed(const Tensor& host, const Device& on = TestDevice());

// The elements of a tensor of any device, as they are behind the current stream.
absl::StatusOr<Tensor> Fetched(const Tensor& tensor);

// What a reducer is made for: no elements.
Tensor Parameter(DType dtype, const std::vector<int64_t>& shape);

// Parameters of 6, 3 and 5 elements, and options that call them 'w', 'b' and 'v' and give a bucket
// to each.
std::vector<Tensor> SmallModel(DType dtype = DType::kFloat32);
Reducer::Options SmallOptions();

// Copies a gradient of float32, all of whose elements are `value`.
absl::Status Copy(Reducer& reducer, int64_t index, float value);

// All elements of gradient `index`, if they are equal; else an error.
absl::StatusOr<float> Value(const Reducer& reducer, int64_t index);

// OK if that is `expected`.
absl::Status Holds(const Reducer& reducer, int64_t index, float expected);

}  // namespace syncline

#endif  // SYNCLINE_TESTS_DDP_REDUCER_RANKS_H_
