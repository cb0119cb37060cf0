#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/tensor/segment_handle.h"
#include "core/tensor/shared_place.h"
#include "syncline/shared_memory.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using tensor::ParseDigits;
using tensor::SegmentHandle;

constexpr absl::string_view kBegin = "syncline-tensor-1";
constexpr absl::string_view kScalar = "scalar";
constexpr size_t kFieldsAfter = 3;
constexpr size_t kMostDimensions = 64;
constexpr size_t kMostQuoted = 200;

// Elements lie on a multiple of it.
size_t AlignmentOf(DType dtype) { return std::min<size_t>(SizeOf(dtype), 8); }

std::string TextOfShape(absl::Span<const int64_t> shape) {
  return shape.empty() ? std::string(kScalar) : absl::StrJoin(shape, "x");
}

std::optional<std::vector<int64_t>> ParseShape(absl::string_view text) {
  std::vector<int64_t> shape;
  if (text == kScalar) return shape;
  for (const absl::string_view length : absl::StrSplit(text, 'x')) {
    const auto number = ParseDigits(length, std::numeric_limits<int64_t>::max());
    if (!number || shape.size() == kMostDimensions) return std::nullopt;
    shape.push_back(static_cast<int64_t>(*number));
  }
  return shape;
}

// The parts of a handle, besides its beginning.
struct Parsed {
  SegmentHandle segment;
  size_t offset;
  DType dtype;
  std::vector<int64_t> shape;
};

absl::StatusOr<Parsed> Parse(absl::string_view handle) {
  const std::vector<absl::string_view> fields = absl::StrSplit(handle, ',');
  if (fields[0] != kBegin) return ArgumentError(absl::StrCat("it does not begin with ", kBegin));
  if (fields.size() != 1 + SegmentHandle::kFields + kFieldsAfter) {
    return ArgumentError(absl::StrCat("it has ", fields.size(), " fields, not ",
                                      1 + SegmentHandle::kFields + kFieldsAfter));
  }
  Parsed parsed;
  SYNCLINE_ASSIGN_OR_RETURN(
      parsed.segment,
      SegmentHandle::Parse(absl::MakeConstSpan(fields).subspan(1, SegmentHandle::kFields)));
  const auto offset = ParseDigits(fields[10], std::numeric_limits<int64_t>::max());
  if (!offset) return ArgumentError("its offset is no number");
  parsed.offset = static_cast<size_t>(*offset);
  SYNCLINE_ASSIGN_OR_RETURN(parsed.dtype, ParseDType(fields[11]));
  auto shape = ParseShape(fields[12]);
  if (!shape) return ArgumentError("its shape is none");
  parsed.shape = *std::move(shape);
  SYNCLINE_RETURN_IF_ERROR(CheckShape(parsed.dtype, parsed.shape));
  const size_t bytes = Tensor(nullptr, parsed.dtype, parsed.shape).nbytes();
  if (bytes == 0) return ArgumentError("its shape has no elements");
  if (parsed.offset % AlignmentOf(parsed.dtype) != 0) {
    return ArgumentError("its offset is not aligned for its type");
  }
  if (parsed.offset > parsed.segment.size || bytes > parsed.segment.size - parsed.offset) {
    return ArgumentError(absl::StrCat("its ", bytes, " bytes from byte ", parsed.offset,
                                      " on are not within the memory of process ",
                                      parsed.segment.pid, ", which has ", parsed.segment.size));
  }
  return parsed;
}

}  // namespace

absl::StatusOr<std::string> SharedHandle(const Tensor& tensor) {
  const auto refused = [&](absl::string_view why) {
    return ArgumentError(absl::StrCat("there is no handle of ", tensor.ToString(), ": ", why));
  };
  if (tensor.device() != Device()) return refused("it is not on the CPU");
  if (!tensor.is_contiguous()) return refused("it is not contiguous");
  if (tensor.nbytes() == 0) return refused("it has no elements");
  if (tensor.access() == Access::kReadOnly) {
    return refused("it is read-only, and whoever opens the handle could write");
  }
  const auto place = tensor::FindShared(tensor.data(), tensor.nbytes());
  if (!place.has_value() && tensor::FindNamed(tensor.data(), tensor.nbytes()).has_value()) {
    return refused(
        "it is in a named segment, of the strategy file_system of syncline.multiprocessing, whose "
        "processes alone open it");
  }
  if (!place.has_value()) {
    return refused("its memory is not shared; only that of empty_shared and the like is");
  }
  if (place->offset % AlignmentOf(tensor.dtype()) != 0) return refused("it is not aligned");
  SYNCLINE_ASSIGN_OR_RETURN(const SegmentHandle segment, SegmentHandle::Make(place->descriptor));
  tensor::KeepContents(tensor.data());
  return absl::StrCat(kBegin, ",", absl::StrJoin(segment.Fields(), ","), ",", place->offset, ",",
                      Name(tensor.dtype()), ",", TextOfShape(tensor.shape()));
}

absl::StatusOr<Tensor> OpenShared(absl::string_view handle) {
  const absl::StatusOr<Parsed> parsed = Parse(handle);
  if (!parsed.ok()) {
    return ArgumentError(
        absl::StrCat("'", absl::CHexEscape(handle.substr(0, kMostQuoted)),
                     "' is not the handle of a shared tensor: ", parsed.status().message()));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const int descriptor, parsed->segment.Open());
  SYNCLINE_ASSIGN_OR_RETURN(const Tensor bytes,
                            tensor::MapShared(descriptor, parsed->segment.size));
  return Tensor(bytes.data_as<char>() + parsed->offset, parsed->dtype, parsed->shape, {}, Device(),
                bytes.owner());
}

}  // namespace syncline
