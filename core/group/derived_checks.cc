#include "core/group/derived_checks.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/tensor/tensor_checks.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

absl::Status CheckAlike(const Tensor& a, const std::string& a_name, const Tensor& b,
                        const std::string& b_name) {
  if (a.dtype() == b.dtype() && a.numel() == b.numel()) return absl::OkStatus();
  const std::string text = absl::StrCat(a_name, " is ", a.ToString(), " but ", b_name, " is ",
                                        b.ToString(), ": their types and sizes must be equal");
  return a.dtype() == b.dtype() ? ArgumentError(text) : TypeError(text);
}

}  // namespace

absl::Status CheckEach(const Tensors& tensors, absl::string_view what, Access needed) {
  if (tensors.empty()) return ArgumentError(absl::StrCat(what, " is empty: pass at least one"));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string item = absl::StrCat(what, "[", i, "]");
    SYNCLINE_RETURN_IF_ERROR(tensor::CheckContiguous(tensors[i], item));
    if (tensors[i].device().type != tensors[0].device().type) {
      return ArgumentError(absl::StrCat(item, " is on ", ToString(tensors[i].device()), " but ",
                                        what, "[0] is on ", ToString(tensors[0].device()),
                                        ": devices of one type are needed"));
    }
    if (needed == Access::kReadWrite)
      SYNCLINE_RETURN_IF_ERROR(tensor::CheckWritable(tensors[i], item));
  }
  return absl::OkStatus();
}

absl::Status CheckOneDevice(const Tensors& tensors, absl::string_view what) {
  const Device& device = tensors[0].device();
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].device() == device) continue;
    return ArgumentError(absl::StrCat(what, "[", i, "] is on ", ToString(tensors[i].device()),
                                      " and ", what, "[0] on ", ToString(device),
                                      ": one device is needed"));
  }
  return absl::OkStatus();
}

absl::Status CheckOneType(const Tensors& tensors, absl::string_view what) {
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].dtype() != tensors[0].dtype()) {
      return TypeError(absl::StrCat(what, "[", i, "] is ", tensors[i].ToString(), " but ", what,
                                    "[0] is ", tensors[0].ToString(), ": one type is needed"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAllAlike(const Tensors& tensors, absl::string_view what) {
  for (size_t i = 1; i < tensors.size(); ++i) {
    SYNCLINE_RETURN_IF_ERROR(CheckAlike(tensors[i], absl::StrCat(what, "[", i, "]"), tensors[0],
                                        absl::StrCat(what, "[0]")));
  }
  return absl::OkStatus();
}

absl::Status CheckMany(const Tensors& many, absl::string_view many_name, const Tensors& few,
                       absl::string_view few_name, size_t each) {
  if (many.size() != few.size() * each) {
    return ArgumentError(absl::StrCat(many_name, " needs ", each, " tensors for each of the ",
                                      few.size(), " of ", few_name, ", ", few.size() * each,
                                      " in all, not ", many.size()));
  }
  for (size_t i = 0; i < many.size(); ++i) {
    const Device& device = few[i / each].device();
    if (many[i].device() != device) {
      return ArgumentError(absl::StrCat(many_name, "[", i, "] is on ", ToString(many[i].device()),
                                        " and ", few_name, "[", i / each, "] on ", ToString(device),
                                        ": one device is needed"));
    }
    SYNCLINE_RETURN_IF_ERROR(CheckAlike(many[i], absl::StrCat(many_name, "[", i, "]"),
                                        few[i / each], absl::StrCat(few_name, "[", i / each, "]")));
  }
  return absl::OkStatus();
}

absl::Status CheckRootTensor(int64_t root_tensor, const Tensors& tensors) {
  if (root_tensor >= 0 && root_tensor < static_cast<int64_t>(tensors.size())) {
    return absl::OkStatus();
  }
  return ArgumentError(absl::StrCat("root_tensor must be the index of one of the ", tensors.size(),
                                    " tensors, not ", root_tensor));
}

}  // namespace syncline::group
