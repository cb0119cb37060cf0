#include "python/extension/c_api.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "python/extension/errors.h"
#include "python/extension/gil.h"
#include "python/syncline/torch/native/c_api.h"
#include "syncline/dtype.h"
#include "syncline/interrupt.h"
#include "syncline/process_group.h"
#include "syncline/reduce_op.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "syncline/work.h"

struct SynclineGroup {
  std::shared_ptr<syncline::ProcessGroup> group;
};

struct SynclineWork {
  std::shared_ptr<syncline::Work> work;
};

struct SynclineError {
  absl::Status status;
  std::string message;
};

namespace syncline::python {
namespace {

namespace py = ::pybind11;

static_assert(static_cast<int>(DType::kFloat8E5M2) == kSynclineFloat8E5M2);
static_assert(static_cast<int>(DType::kComplex64) == kSynclineComplex64);
static_assert(static_cast<int>(DType::kFloat16) == kSynclineFloat16);
static_assert(static_cast<int>(DType::kUInt8) == kSynclineUInt8);

SynclineError* ErrorOf(absl::Status status) {
  if (status.ok()) return nullptr;
  std::string message(status.message());
  return new SynclineError{std::move(status), std::move(message)};
}

// As ErrorOf. A handler of a signal that has raised ends a call that has succeeded, too.
SynclineError* OutcomeOf(absl::Status status, const InterruptScope& scope) {
  return ErrorOf(status.ok() ? scope.status() : std::move(status));
}

ProcessGroup::Timeout TimeoutOf(int64_t nanoseconds) {
  if (nanoseconds < 0) return std::nullopt;
  return absl::Nanoseconds(nanoseconds);
}

Tensor TensorOf(const SynclineTensor& tensor, const std::shared_ptr<void>& owner) {
  return Tensor(tensor.data, static_cast<DType>(tensor.dtype),
                absl::MakeConstSpan(tensor.shape, static_cast<size_t>(tensor.dimensions)), {},
                Device{}, owner);
}

std::vector<Tensor> TensorsOf(const SynclineTensor* tensors, size_t count,
                              const std::shared_ptr<void>& owner) {
  std::vector<Tensor> result;
  result.reserve(count);
  for (size_t i = 0; i < count; ++i) result.push_back(TensorOf(tensors[i], owner));
  return result;
}

std::vector<int64_t> SplitsOf(const int64_t* splits, size_t count) {
  return std::vector<int64_t>(splits, splits + count);
}

// The functions of ProcessGroup that run an operation, and those that start one, under one name.
struct Running {
  using Result = absl::Status;
  ProcessGroup& group;

  template <typename... Arguments>
  Result Recv(const Arguments&... arguments) const {
    return group.Recv(arguments...).status();
  }
#define SYNCLINE_RUN(name)                           \
  template <typename... Arguments>                   \
  Result name(const Arguments&... arguments) const { \
    return group.name(arguments...);                 \
  }
#define SYNCLINE_FOR_EACH_OPERATION(use)                                                         \
  use(Broadcast) use(AllReduce) use(AllReduceCoalesced) use(Reduce) use(AllGather)               \
      use(AllGatherSingle) use(AllGatherCoalesced) use(Gather) use(Scatter) use(ReduceScatter)   \
          use(ReduceScatterSingle) use(ReduceScatterCoalesced) use(AllToAll) use(AllToAllSingle) \
              use(Barrier) use(Send)
  SYNCLINE_FOR_EACH_OPERATION(SYNCLINE_RUN)
#undef SYNCLINE_RUN
};

struct Starting {
  using Result = ProcessGroup::StartedWork;
  ProcessGroup& group;

#define SYNCLINE_START(name)                         \
  template <typename... Arguments>                   \
  Result name(const Arguments&... arguments) const { \
    return group.name##Async(arguments...);          \
  }
  SYNCLINE_FOR_EACH_OPERATION(SYNCLINE_START)
  SYNCLINE_START(Recv)
#undef SYNCLINE_START
#undef SYNCLINE_FOR_EACH_OPERATION
};

template <typename Way>
typename Way::Result Call(const Way& way, const SynclineCall& call,
                          const std::shared_ptr<void>& owner) {
  const auto op = static_cast<ReduceOp>(call.reduce_op);
  const ProcessGroup::Timeout timeout = TimeoutOf(call.timeout_ns);
  // A rank that is no int is none of the group: any that is out of range will do.
  const int peer = static_cast<int>(std::clamp<int64_t>(call.peer, std::numeric_limits<int>::min(),
                                                        std::numeric_limits<int>::max()));
  const auto output = [&] { return TensorOf(call.outputs[0], owner); };
  const auto input = [&] { return TensorOf(call.inputs[0], owner); };
  const auto outputs = [&] { return TensorsOf(call.outputs, call.output_count, owner); };
  const auto inputs = [&] { return TensorsOf(call.inputs, call.input_count, owner); };
  switch (static_cast<SynclineOperation>(call.operation)) {
    case kSynclineBroadcast:
      return way.Broadcast(output(), peer, timeout);
    case kSynclineAllReduce:
      return way.AllReduce(output(), op, timeout, call.factor);
    case kSynclineAllReduceCoalesced:
      return way.AllReduceCoalesced(outputs(), op, timeout, call.factor);
    case kSynclineReduce:
      return way.Reduce(output(), peer, op, timeout, call.factor);
    case kSynclineAllGather:
      return way.AllGather(outputs(), input(), timeout);
    case kSynclineAllGatherSingle:
      return way.AllGatherSingle(output(), input(), timeout);
    case kSynclineAllGatherCoalesced:
      return way.AllGatherCoalesced(outputs(), inputs(), timeout);
    case kSynclineGather:
      return way.Gather(outputs(), input(), peer, timeout);
    case kSynclineScatter:
      return way.Scatter(output(), inputs(), peer, timeout);
    case kSynclineReduceScatter:
      return way.ReduceScatter(output(), inputs(), op, timeout, call.factor);
    case kSynclineReduceScatterSingle:
      return way.ReduceScatterSingle(output(), input(), op, timeout, call.factor);
    case kSynclineReduceScatterCoalesced:
      return way.ReduceScatterCoalesced(outputs(), inputs(), op, timeout, call.factor);
    case kSynclineAllToAll:
      return way.AllToAll(outputs(), inputs(), timeout);
    case kSynclineAllToAllSingle:
      return way.AllToAllSingle(output(), input(),
                                SplitsOf(call.output_splits, call.output_split_count),
                                SplitsOf(call.input_splits, call.input_split_count), timeout);
    case kSynclineBarrier:
      return way.Barrier(timeout);
    case kSynclineSend:
      return way.Send(output(), peer, call.tag, timeout);
    case kSynclineRecv:
      return way.Recv(output(), peer, call.tag, timeout);
  }
  return ArgumentError("an operation that this version does not have");
}

SynclineGroup* Group(PyObject* object) {
  try {
    if (py::isinstance<ProcessGroup>(object)) {
      return new SynclineGroup{py::handle(object).cast<std::shared_ptr<ProcessGroup>>()};
    }
    PyErr_SetString(PyExc_TypeError, "group must be a syncline._syncline.ProcessGroup");
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

void DropGroup(SynclineGroup* group) { delete group; }

SynclineError* Run(SynclineGroup* group, const SynclineCall* call) {
  const InterruptScope interruptible(&CheckSignals);
  absl::Status status = Call(Running{*group->group}, *call, nullptr);
  return OutcomeOf(std::move(status), interruptible);
}

SynclineError* Start(SynclineGroup* group, const SynclineCall* call, void* owner,
                     void (*drop)(void* owner), SynclineWork** work) {
  auto started = Call(Starting{*group->group}, *call, std::shared_ptr<void>(owner, drop));
  if (!started.ok()) return ErrorOf(started.status());
  *work = new SynclineWork{*std::move(started)};
  return nullptr;
}

SynclineError* Wait(SynclineWork* work, int64_t timeout_ns) {
  const InterruptScope interruptible(&CheckSignals);
  absl::Status status = work->work->Wait(TimeoutOf(timeout_ns));
  return OutcomeOf(std::move(status), interruptible);
}

int IsCompleted(const SynclineWork* work) { return work->work->IsCompleted() ? 1 : 0; }

int SourceRank(const SynclineWork* work) { return work->work->source_rank(); }

void OnComplete(SynclineWork* work, void (*callback)(void* argument), void* argument) {
  work->work->OnComplete([callback, argument](const absl::Status&) { callback(argument); });
}

void DropWork(SynclineWork* work) { delete work; }

void Raise(SynclineError* error) {
  const std::unique_ptr<SynclineError> owned(error);
  try {
    RaiseIfError(owned->status);
  } catch (py::error_already_set& raised) {
    raised.restore();
  } catch (const std::exception& raised) {
    PyErr_SetString(PyExc_RuntimeError, raised.what());
  }
}

const char* Message(const SynclineError* error) { return error->message.c_str(); }

void DropError(SynclineError* error) { delete error; }

int CallWithGil(void (*action)(void* argument), void* argument) {
  return WithGil([action, argument] { action(argument); }) ? 1 : 0;
}

constexpr SynclineCApi kTable = {
    SYNCLINE_C_API_VERSION,
    &Group,
    &DropGroup,
    &Run,
    &Start,
    &Wait,
    &IsCompleted,
    &SourceRank,
    &OnComplete,
    &DropWork,
    &Raise,
    &Message,
    &DropError,
    &CallWithGil,
};

}  // namespace

void DefineCApi(py::module_& module) {
  module.def("_c_api",
             [] { return py::capsule(static_cast<const void*>(&kTable), SYNCLINE_C_API_NAME); });
}

}  // namespace syncline::python
