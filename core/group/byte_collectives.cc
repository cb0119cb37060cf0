#include "syncline/byte_collectives.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"
#include "syncline/tensor.h"

namespace syncline {
namespace {

using Timeout = ProcessGroup::Timeout;

// A view of `text`, which is only read.
Tensor View(const std::string& text) {
  return Tensor(const_cast<char*>(text.data()), DType::kUInt8, {static_cast<int64_t>(text.size())},
                {}, {}, nullptr, Access::kReadOnly);
}

// A buffer for the `bytes` that `rank` announces. If there can be none, nobody will go on to
// exchange the bytes, so the group ends here for all ranks.
absl::StatusOr<Tensor> BufferFor(ProcessGroup& group, absl::string_view operation, int rank,
                                 int64_t bytes) {
  absl::Status error = ArgumentError("the size of a value is 0 or more");
  if (bytes >= 0) {
    absl::StatusOr<Tensor> buffer = Tensor::TryZeros(DType::kUInt8, {bytes});
    if (buffer.ok()) return buffer;
    error = buffer.status();
  }
  const std::string text = absl::StrCat(
      operation, " of group '", group.name(), "': rank ", rank, " announced a value of ", bytes,
      " bytes, for which ", "rank ", group.rank(), " has no room (", error.message(),
      "): look whether all ranks make the calls that go together");
  group.Abort(text);
  return WithRanks(MismatchError(text), {rank});
}

std::string TextOf(const Tensor& tensor, int64_t bytes) {
  return std::string(tensor.data_as<char>(), static_cast<size_t>(bytes));
}

int64_t SizeOfText(const std::string& text) { return static_cast<int64_t>(text.size()); }

// Every rank's `size`.
absl::StatusOr<std::vector<int64_t>> ExchangeSizes(ProcessGroup& group, int64_t size,
                                                   Timeout timeout) {
  std::vector<int64_t> own = {size};
  std::vector<int64_t> all(static_cast<size_t>(group.size()));
  SYNCLINE_RETURN_IF_ERROR(group.AllGatherSingle(Tensor::Of(all), Tensor::Of(own), timeout));
  return all;
}

int RankOfLargest(const std::vector<int64_t>& sizes) {
  return static_cast<int>(std::max_element(sizes.begin(), sizes.end()) - sizes.begin());
}

absl::Status CheckSizes(ProcessGroup& group, absl::string_view operation,
                        const std::vector<int64_t>& sizes) {
  const auto negative = std::find_if(sizes.begin(), sizes.end(), [](int64_t n) { return n < 0; });
  if (negative == sizes.end()) return absl::OkStatus();
  return BufferFor(group, operation, static_cast<int>(negative - sizes.begin()), *negative)
      .status();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> AllGatherBytes(ProcessGroup& group,
                                                        const std::string& value, Timeout timeout) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                            ExchangeSizes(group, SizeOfText(value), timeout));
  if (std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size == 0; })) {
    return std::vector<std::string>(sizes.size());
  }
  std::vector<Tensor> outputs;
  for (size_t r = 0; r < sizes.size(); ++r) {
    SYNCLINE_ASSIGN_OR_RETURN(outputs.emplace_back(),
                              BufferFor(group, "all_gather_bytes", static_cast<int>(r), sizes[r]));
  }
  SYNCLINE_RETURN_IF_ERROR(group.AllGather(outputs, View(value), timeout));
  std::vector<std::string> values;
  for (const Tensor& output : outputs) values.push_back(TextOf(output, output.numel()));
  return values;
}

absl::StatusOr<std::string> BroadcastBytes(ProcessGroup& group, const std::string& value, int root,
                                           Timeout timeout) {
  std::vector<int64_t> size = {SizeOfText(value)};
  SYNCLINE_RETURN_IF_ERROR(group.Broadcast(Tensor::Of(size), root, timeout));
  Tensor tensor = View(value);
  if (group.rank() != root) {
    SYNCLINE_ASSIGN_OR_RETURN(tensor, BufferFor(group, "broadcast_bytes", root, size[0]));
  }
  SYNCLINE_RETURN_IF_ERROR(group.Broadcast(tensor, root, timeout));
  return TextOf(tensor, size[0]);
}

absl::StatusOr<std::vector<std::string>> GatherBytes(ProcessGroup& group, const std::string& value,
                                                     int root, Timeout timeout) {
  constexpr absl::string_view kName = "gather_bytes";
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                            ExchangeSizes(group, SizeOfText(value), timeout));
  SYNCLINE_RETURN_IF_ERROR(CheckSizes(group, kName, sizes));
  // gather takes one size: all send as much as the largest.
  const int rank = RankOfLargest(sizes);
  const int64_t largest = sizes[rank];
  std::vector<Tensor> outputs;
  for (size_t r = 0; group.rank() == root && r < sizes.size(); ++r) {
    SYNCLINE_ASSIGN_OR_RETURN(outputs.emplace_back(), BufferFor(group, kName, rank, largest));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const Tensor padded, BufferFor(group, kName, rank, largest));
  std::copy(value.begin(), value.end(), padded.data_as<char>());
  SYNCLINE_RETURN_IF_ERROR(group.Gather(outputs, padded, root, timeout));
  std::vector<std::string> values;
  for (size_t r = 0; r < outputs.size(); ++r) values.push_back(TextOf(outputs[r], sizes[r]));
  return values;
}

absl::StatusOr<std::string> ScatterBytes(ProcessGroup& group,
                                         const std::vector<std::string>& values, int root,
                                         Timeout timeout) {
  constexpr absl::string_view kName = "scatter_bytes";
  const bool is_root = group.rank() == root;
  const size_t expected = is_root ? static_cast<size_t>(group.size()) : 0;
  if (values.size() != expected) {
    return ArgumentError(absl::StrCat(kName, ": rank ", group.rank(), " must pass ", expected,
                                      " values, not ", values.size(),
                                      ": the root one for each rank, the others none"));
  }
  std::vector<int64_t> sizes(static_cast<size_t>(group.size()));
  for (size_t r = 0; r < values.size(); ++r) sizes[r] = SizeOfText(values[r]);
  SYNCLINE_RETURN_IF_ERROR(group.Broadcast(Tensor::Of(sizes), root, timeout));
  // scatter takes one size: all receive as much as the largest. All sizes are the root's.
  const int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  const int64_t smallest = *std::min_element(sizes.begin(), sizes.end());
  SYNCLINE_ASSIGN_OR_RETURN(const Tensor output,
                            BufferFor(group, kName, root, smallest < 0 ? smallest : largest));
  std::vector<Tensor> inputs;
  for (const std::string& value : values) {
    SYNCLINE_ASSIGN_OR_RETURN(inputs.emplace_back(), BufferFor(group, kName, root, largest));
    std::copy(value.begin(), value.end(), inputs.back().data_as<char>());
  }
  SYNCLINE_RETURN_IF_ERROR(group.Scatter(output, inputs, root, timeout));
  return TextOf(output, sizes[static_cast<size_t>(group.rank())]);
}

absl::Status SendBytes(ProcessGroup& group, const std::string& value, int dst, int64_t tag,
                       Timeout timeout) {
  std::vector<int64_t> size = {SizeOfText(value)};
  SYNCLINE_RETURN_IF_ERROR(group.Send(Tensor::Of(size), dst, tag, timeout));
  return group.Send(View(value), dst, tag, timeout);
}

absl::StatusOr<std::shared_ptr<Message>> RecvBytes(ProcessGroup& group, int src, int64_t tag,
                                                   Timeout timeout) {
  std::vector<int64_t> size = {0};
  SYNCLINE_ASSIGN_OR_RETURN(const int source, group.Recv(Tensor::Of(size), src, tag, timeout));
  SYNCLINE_ASSIGN_OR_RETURN(const Tensor tensor, BufferFor(group, "recv_bytes", source, size[0]));
  SYNCLINE_RETURN_IF_ERROR(group.Recv(tensor, source, tag, timeout).status());
  return std::make_shared<Message>(TextOf(tensor, size[0]), source);
}

}  // namespace syncline
