#include "tests/ddp/reducer_ranks.h"

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/strip.h"
#include "core/device/device_runtime.h"
#include "ddp/device_lane.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "syncline/device_memory.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "syncline/stream.h"
#include "tests/support/device_calls.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

thread_local Device test_device;

}  // namespace

Device TestDevice() { return test_device; }

absl::StatusOr<Tensor> Placed(const Tensor& host, const Device& on) {
  // The copy is kept, as the device may be late.
  const Tensor copy = Tensor::Zeros(host.dtype(), host.shape());
  if (host.nbytes() > 0) std::memcpy(copy.data(), host.data(), host.nbytes());
  if (on.type == DeviceType::kCpu) return copy;
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  SYNCLINE_ASSIGN_OR_RETURN(Tensor placed, EmptyOnDevice(on, host.dtype(), host.shape()));
  const Stream stream = CurrentStream(on);
  SYNCLINE_RETURN_IF_ERROR(runtime->Copy(placed.data(), copy.data(), copy.nbytes(), stream));
  using Tensors = std::pair<Tensor, Tensor>;
  ddp::KeepUntilDone(stream, std::make_shared<Tensors>(copy, placed));
  return placed;
}

absl::StatusOr<Tensor> Fetched(const Tensor& tensor) {
  if (tensor.device().type == DeviceType::kCpu) return tensor;
  SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
  const Tensor host = Tensor::Zeros(tensor.dtype(), tensor.shape());
  const Stream stream = CurrentStream(tensor.device());
  // Before the copy, too: see DeviceTensors::CopyBack.
  SYNCLINE_RETURN_IF_ERROR(runtime->Synchronize(stream, Deadline(kTimeout)));
  SYNCLINE_RETURN_IF_ERROR(runtime->Copy(host.data(), tensor.data(), host.nbytes(), stream));
  SYNCLINE_RETURN_IF_ERROR(runtime->Synchronize(stream, Deadline(kTimeout)));
  return host;
}

Tensor Parameter(DType dtype, const std::vector<int64_t>& shape) {
  return Tensor(nullptr, dtype, shape, {}, test_device);
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

std::vector<absl::Status> OnRanks(int size, const std::function<absl::Status(Group)>& body,
                                  const std::string& backend) {
  absl::string_view name = backend;
  const bool is_on_devices = absl::ConsumeSuffix(&name, "@cuda");
  auto store = std::make_shared<HashStore>();
  std::vector<Group> groups(size);
  return RunRanks(size, [&](int rank) -> absl::Status {
    ProcessGroup::Options options;
    options.backend = std::string(name);
    options.store = store;
    options.rank = rank;
    options.size = size;
    options.timeout = absl::Seconds(60);
    // Ranks that share a device would wait for each other on its default stream.
    std::shared_ptr<const Stream> own_stream;
    std::optional<StreamScope> scope;
    if (is_on_devices) {
      SYNCLINE_ASSIGN_OR_RETURN(test_device, DeviceOfRank(rank));
      SYNCLINE_ASSIGN_OR_RETURN(device::DeviceRuntime* const runtime, device::DeviceRuntime::Get());
      if (size > runtime->device_count()) {
        SYNCLINE_ASSIGN_OR_RETURN(own_stream, runtime->MakeStream(test_device));
        scope.emplace(*own_stream);
      }
    }
    SYNCLINE_ASSIGN_OR_RETURN(groups[rank], ProcessGroup::Create(options));
    return body(groups[rank]);
  });
}

void ExpectOnRanks(int size, const std::function<absl::Status(Group)>& body,
                   const std::string& backend) {
  if (backend.empty()) {
    ExpectOnRanks(size, body, "local");
    for (const char* on_devices : kOnDevices) ExpectOnRanks(size, body, on_devices);
    return;
  }
  for (const absl::Status& status : OnRanks(size, body, backend)) {
    EXPECT_TRUE(status.ok()) << backend << ": " << status;
  }
}

std::vector<Tensor> SmallModel(DType dtype) {
  return {Parameter(dtype, {2, 3}), Parameter(dtype, {3}), Parameter(dtype, {5})};
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
  SYNCLINE_ASSIGN_OR_RETURN(const Tensor placed, Placed(Tensor::Of(values), place.device()));
  return reducer.CopyReady(index, placed);
}

absl::StatusOr<float> Value(const Reducer& reducer, int64_t index) {
  SYNCLINE_ASSIGN_OR_RETURN(const Tensor gradient, reducer.gradient(index));
  SYNCLINE_ASSIGN_OR_RETURN(const Tensor host, Fetched(gradient));
  const float* values = host.data_as<float>();
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
