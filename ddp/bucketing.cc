#include "ddp/bucketing.h"

#include <map>
#include <tuple>
#include <utility>

namespace syncline {

std::vector<std::vector<int64_t>> AssignBuckets(absl::Span<const Tensor> parameters,
                                                const BucketCaps& caps) {
  struct Open {
    size_t bucket = 0;  // Where in `buckets` it stands.
    int64_t bytes = 0;
    int64_t cap = 0;
    bool closed = true;
  };
  std::vector<std::vector<int64_t>> buckets;
  std::map<std::tuple<DType, DeviceType, int>, Open> open;
  for (int64_t i = static_cast<int64_t>(parameters.size()) - 1; i >= 0; --i) {
    const Tensor& parameter = parameters[i];
    const auto [it, is_first] =
        open.try_emplace({parameter.dtype(), parameter.device().type, parameter.device().index});
    Open& current = it->second;
    if (current.closed) {
      current = {buckets.size(), 0, is_first ? caps.first : caps.others, false};
      buckets.emplace_back();
    }
    buckets[current.bucket].push_back(i);
    current.bytes += static_cast<int64_t>(parameter.nbytes());
    current.closed = current.bytes >= current.cap;
  }
  return buckets;
}

}  // namespace syncline
