// Which reductions the ranks of a group can carry out: what depends on their NCCL, their driver and
// their devices.
#ifndef SYNCLINE_BACKENDS_NCCL_GROUP_SUPPORT_H_
#define SYNCLINE_BACKENDS_NCCL_GROUP_SUPPORT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "backends/common/peer_table.h"
#include "backends/nccl/nccl_api.h"
#include "core/device/device_runtime.h"

namespace syncline::nccl {

// What one rank has. Ranks tell each other when they join.
struct RankSupport {
  int nccl_version = 0;
  // The least compute capability of the process's devices, and which one has it. Any of them may be
  // that of a call. 0 where the driver does not tell.
  int compute_capability = 0;
  int least_device = 0;
  std::string no_kernels;  // Why a device of the process cannot run our kernels; empty if all can.

  // Makes no context on any device.
  static RankSupport OfThisProcess(const NcclApi& api, device::DeviceRuntime& runtime);

  std::string Serialize() const;
  static RankSupport Parse(absl::string_view text);  // Of text that is not understood: nothing.
};

// What all ranks of a group have: the least of each. It decides how a reduction is carried out, so
// it must be, and is, the same on all ranks. Immutable.
class GroupSupport {
 public:
  // `ranks` has a value for each of `peers`.
  GroupSupport(absl::Span<const RankSupport> ranks, const backends::PeerTable& peers);

  bool has_kernels() const { return !no_kernels_.has_value(); }
  bool has_float8() const { return !no_float8_.has_value(); }

  // An UnsupportedError about a rank that lacks our kernels, or that cannot have NCCL reduce floats
  // of eight bits. `what` needs these. Requires that one lacks them.
  absl::Status NoKernelsError(absl::string_view what) const;
  absl::Status NoFloat8Error(absl::string_view what) const;

 private:
  struct Lack {
    int rank;
    std::string reason;
  };

  absl::optional<Lack> no_kernels_, no_float8_;
};

}  // namespace syncline::nccl

#endif  // SYNCLINE_BACKENDS_NCCL_GROUP_SUPPORT_H_
