#include "ddp/bucketing.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace syncline::ddp {
namespace {

// Of the bucket with this number among those of its element type and device.
int64_t CapOf(const BucketCaps& caps, size_t number) {
  if (!caps.list.empty()) return caps.list[std::min(number, caps.list.size() - 1)];
  return number == 0 ? caps.first : caps.others;
}

}  // namespace

std::vector<std::vector<int64_t>> AssignBuckets(absl::Span<const Tensor> parameters,
                                                absl::Span<const int64_t> order,
                                                const BucketCaps& caps) {
  struct Bucket {
    size_t last = 0;  // Where in `order` its last parameter stands.
    std::vector<int64_t> parameters;
  };
  struct Open {
    size_t bucket = 0;  // Where in `buckets` it stands.
    size_t number = 0;
    int64_t bytes = 0;
    bool closed = true;
  };
  std::vector<Bucket> buckets;
  std::map<std::tuple<DType, DeviceType, int>, Open> open;
  for (size_t position = 0; position < order.size(); ++position) {
    const Tensor& parameter = parameters[order[position]];
    const auto [it, is_first] =
        open.try_emplace({parameter.dtype(), parameter.device().type, parameter.device().index});
    Open& current = it->second;
    if (current.closed) {
      current = {buckets.size(), is_first ? 0 : current.number + 1, 0, false};
      buckets.emplace_back();
    }
    buckets[current.bucket].parameters.push_back(order[position]);
    buckets[current.bucket].last = position;
    current.bytes += static_cast<int64_t>(parameter.nbytes());
    current.closed = current.bytes >= CapOf(caps, current.number);
  }
  std::sort(buckets.begin(), buckets.end(),
            [](const Bucket& a, const Bucket& b) { return a.last < b.last; });
  std::vector<std::vector<int64_t>> result;
  for (Bucket& bucket : buckets) result.push_back(std::move(bucket.parameters));
  return result;
}

}  // namespace syncline::ddp
