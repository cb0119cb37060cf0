#include "core/byte_collectives.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "core/tensor.h"

namespace syncline {
namespace {

using Timeout = ProcessGroup::Timeout;

// A view of `text`, which is only read.
Tensor View(const std::string& text) {
  return Tensor(const_cast<char*>(text.data()), DType::kUInt8, {static_cast<int64_t>(text.size())},
                {}, {}, nullptr, Access::kReadOnly);
}

Tensor Buffer(int64_t bytes) { return Tensor::Zeros(DType::kUInt8, {bytes}); }

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

// `text` at the start of `bytes` bytes.
Tensor Padded(const std::string& text, int64_t bytes) {
  Tensor tensor = Buffer(bytes);
  std::copy(text.begin(), text.end(), tensor.data_as<char>());
  return tensor;
}

int64_t Largest(const std::vector<int64_t>& sizes) {
  return *std::max_element(sizes.begin(), sizes.end());
}

}  // namespace

absl::StatusOr<std::vector<std::string>> AllGatherBytes(ProcessGroup& group,
                                                        const std::string& value, Timeout timeout) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                            ExchangeSizes(group, SizeOfText(value), timeout));
  std::vector<Tensor> outputs;
  for (int64_t size : sizes) outputs.push_back(Buffer(size));
  SYNCLINE_RETURN_IF_ERROR(group.AllGather(outputs, View(value), timeout));
  std::vector<std::string> values;
  for (const Tensor& output : outputs) values.push_back(TextOf(output, output.numel()));
  return values;
}

absl::StatusOr<std::string> BroadcastBytes(ProcessGroup& group, const std::string& value,
                                           int64_t root, Timeout timeout) {
  std::vector<int64_t> size = {SizeOfText(value)};
  SYNCLINE_RETURN_IF_ERROR(group.Broadcast(Tensor::Of(size), root, timeout));
  const bool is_root = group.rank() == root;
  const Tensor tensor = is_root ? View(value) : Buffer(size[0]);
  SYNCLINE_RETURN_IF_ERROR(group.Broadcast(tensor, root, timeout));
  return TextOf(tensor, size[0]);
}

absl::StatusOr<std::vector<std::string>> GatherBytes(ProcessGroup& group, const std::string& value,
                                                     int64_t root, Timeout timeout) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                            ExchangeSizes(group, SizeOfText(value), timeout));
  const int64_t largest = Largest(sizes);  // gather takes one size.
  std::vector<Tensor> outputs;
  if (group.rank() == root) {
    for (size_t r = 0; r < sizes.size(); ++r) outputs.push_back(Buffer(largest));
  }
  SYNCLINE_RETURN_IF_ERROR(group.Gather(outputs, Padded(value, largest), root, timeout));
  std::vector<std::string> values;
  for (size_t r = 0; r < outputs.size(); ++r) values.push_back(TextOf(outputs[r], sizes[r]));
  return values;
}

absl::StatusOr<std::string> ScatterBytes(ProcessGroup& group,
                                         const std::vector<std::string>& values, int64_t root,
                                         Timeout timeout) {
  const bool is_root = group.rank() == root;
  const size_t expected = is_root ? static_cast<size_t>(group.size()) : 0;
  if (values.size() != expected) {
    return ArgumentError(absl::StrCat("scatter_bytes: rank ", group.rank(), " must pass ", expected,
                                      " values, not ", values.size(),
                                      ": the root one for each rank, the others none"));
  }
  std::vector<int64_t> sizes(static_cast<size_t>(group.size()));
  for (size_t r = 0; r < values.size(); ++r) sizes[r] = SizeOfText(values[r]);
  SYNCLINE_RETURN_IF_ERROR(group.Broadcast(Tensor::Of(sizes), root, timeout));
  const int64_t largest = Largest(sizes);  // scatter takes one size.
  std::vector<Tensor> inputs;
  for (const std::string& value : values) inputs.push_back(Padded(value, largest));
  const Tensor output = Buffer(largest);
  SYNCLINE_RETURN_IF_ERROR(group.Scatter(output, inputs, root, timeout));
  return TextOf(output, sizes[static_cast<size_t>(group.rank())]);
}

absl::Status SendBytes(ProcessGroup& group, const std::string& value, int64_t dst, int64_t tag,
                       Timeout timeout) {
  std::vector<int64_t> size = {SizeOfText(value)};
  SYNCLINE_RETURN_IF_ERROR(group.Send(Tensor::Of(size), dst, tag, timeout));
  return group.Send(View(value), dst, tag, timeout);
}

absl::StatusOr<std::shared_ptr<Message>> RecvBytes(ProcessGroup& group, int64_t src, int64_t tag,
                                                   Timeout timeout) {
  std::vector<int64_t> size = {0};
  SYNCLINE_ASSIGN_OR_RETURN(const int64_t source, group.Recv(Tensor::Of(size), src, tag, timeout));
  const Tensor tensor = Buffer(size[0]);
  SYNCLINE_RETURN_IF_ERROR(group.Recv(tensor, source, tag, timeout).status());
  return std::make_shared<Message>(TextOf(tensor, size[0]), source);
}

}  // namespace syncline
