#include "benchmarks/collectives/buffers.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace syncline::benchmarks {
namespace {

constexpr absl::string_view kNames[] = {"all_reduce", "broadcast", "reduce",         "all_gather",
                                        "gather",     "scatter",   "reduce_scatter", "all_to_all",
                                        "barrier",    "send_recv", "copy",           "add"};

constexpr int64_t kPatternPeriod = 7;
constexpr int64_t kChecked = 200;  // Elements.

float Pattern(int rank, int64_t i) { return static_cast<float>(rank + 1 + i % kPatternPeriod); }

bool HasParts(Operation operation) {
  switch (operation) {
    case Operation::kAllGather:
    case Operation::kGather:
    case Operation::kScatter:
    case Operation::kReduceScatter:
    case Operation::kAllToAll:
      return true;
    default:
      return false;
  }
}

bool IsInPlace(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kBroadcast ||
         operation == Operation::kReduce;
}

}  // namespace

absl::StatusOr<Operation> OperationOf(absl::string_view name) {
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) {
    return absl::InvalidArgumentError(absl::StrCat("there is no operation '", name, "'"));
  }
  return static_cast<Operation>(found - std::begin(kNames));
}

Buffers::Buffers(Operation operation, int64_t bytes, int rank, int size, System& system)
    : rank_(rank), size_(size) {
  const int64_t parts = HasParts(operation) ? size : 1;
  const int64_t part = std::max<int64_t>(1, bytes / (int64_t{sizeof(float)} * parts));
  call_ = {operation, part * parts, part, nullptr, nullptr};
  const bool small_input = operation == Operation::kAllGather || operation == Operation::kGather;
  const int64_t input_count = small_input ? part : call_.count;
  input_ = system.Allocate(input_count * sizeof(float));
  call_.input = static_cast<float*>(input_.get());
  for (int64_t i = 0; i < input_count; ++i) call_.input[i] = Pattern(rank, i);
  if (IsInPlace(operation)) {
    call_.output = call_.input;
    return;
  }
  output_ = system.Allocate(OutputCount() * sizeof(float));
  call_.output = static_cast<float*>(output_.get());
}

int64_t Buffers::OutputCount() const {
  const Operation operation = call_.operation;
  return operation == Operation::kScatter || operation == Operation::kReduceScatter ? call_.part
                                                                                    : call_.count;
}

float Buffers::Expected(int64_t i) const {
  const int64_t mine = rank_ * call_.part + i;
  const auto sum = [&](int64_t at) {
    return static_cast<float>(size_ * (size_ + 1) / 2 + size_ * (at % kPatternPeriod));
  };
  switch (call_.operation) {
    case Operation::kAllReduce:
      return sum(i);
    case Operation::kReduce:  // Gloo leaves partial sums in the others' buffers.
      return rank_ == 0 ? sum(i) : call_.output[i];
    case Operation::kBroadcast:
      return Pattern(0, i);
    case Operation::kAllGather:
      return Pattern(i / call_.part, i % call_.part);
    case Operation::kGather:
      return rank_ == 0 ? Pattern(i / call_.part, i % call_.part) : 0;
    case Operation::kScatter:
      return Pattern(0, mine);
    case Operation::kReduceScatter:
      return sum(mine);
    case Operation::kAllToAll:
      return Pattern(i / call_.part, rank_ * call_.part + i % call_.part);
    case Operation::kSendRecv:
      return (rank_ ^ 1) < size_ ? Pattern(rank_ ^ 1, i) : 0;
    default:
      return call_.output[i];
  }
}

absl::Status Buffers::Check() const {
  const int64_t count = OutputCount();
  const int64_t step = std::max<int64_t>(1, count / kChecked);
  for (int64_t i = 0; i < count; i = i + step < count || i == count - 1 ? i + step : count - 1) {
    if (call_.output[i] == Expected(i)) continue;
    return absl::InternalError(absl::StrCat("wrong result: element ", i, " of ", count, " is ",
                                            call_.output[i], " on rank ", rank_, ", not ",
                                            Expected(i)));
  }
  return absl::OkStatus();
}

}  // namespace syncline::benchmarks
