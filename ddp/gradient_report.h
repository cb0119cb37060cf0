// Reports which ranks had no gradient for which parameters: one error for all ranks.
#ifndef SYNCLINE_DDP_GRADIENT_REPORT_H_
#define SYNCLINE_DDP_GRADIENT_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ddp/host_exchange.h"

namespace syncline::ddp {

enum class Fault : uint8_t {
  kNone,
  kMissing,  // It had to have a gradient.
  kSurplus,  // It had one, although it was said, or recorded, to have none.
};

// The error of this rank alone: an ArgumentError that lists its faults and ends with `advice`.
absl::Status FaultsOf(int rank, const std::vector<Fault>& mine,
                      const std::vector<std::string>& names, absl::string_view advice);

// Collective; ranks call it once one of them is known to have a fault. `mine` are this rank's
// faults, by parameter. Returns an ArgumentError, the same on all ranks, that lists all faults and
// ends with `advice`; or the error of the group.
absl::Status ReportFaults(const HostExchange& exchange, const std::vector<Fault>& mine,
                          const std::vector<std::string>& names, absl::string_view advice);

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_GRADIENT_REPORT_H_
