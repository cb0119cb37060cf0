#include "backends/nccl/group_support.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "backends/nccl/nccl_library.h"
#include "syncline/check.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::nccl {
namespace {

// The first version of NCCL that has floats of eight bits, and the least compute capability of
// devices on which it reduces them.
constexpr int kFloat8Version = NcclVersion(2, 24, 0);
constexpr int kFloat8Capability = 90;

}  // namespace

RankSupport RankSupport::OfThisProcess(const NcclApi& api, device::DeviceRuntime& runtime) {
  RankSupport support;
  support.nccl_version = api.version;
  for (int index = 0; index < runtime.device_count(); ++index) {
    const Device device = {DeviceType::kCuda, index};
    const int capability = runtime.ComputeCapability(device).value_or(0);
    if (index == 0 || capability < support.compute_capability) {
      support.compute_capability = capability;
      support.least_device = index;
    }
    const absl::Status kernels = runtime.CheckKernels(device);
    if (!kernels.ok() && support.no_kernels.empty()) {
      support.no_kernels = std::string(kernels.message());
    }
  }
  return support;
}

std::string RankSupport::Serialize() const {
  return absl::StrCat(nccl_version, " ", compute_capability, " ", least_device, " ", no_kernels);
}

RankSupport RankSupport::Parse(absl::string_view text) {
  RankSupport support;
  const std::vector<absl::string_view> words = absl::StrSplit(text, absl::MaxSplits(' ', 3));
  if (words.size() != 4 || !absl::SimpleAtoi(words[0], &support.nccl_version) ||
      !absl::SimpleAtoi(words[1], &support.compute_capability) ||
      !absl::SimpleAtoi(words[2], &support.least_device)) {
    support = RankSupport();
    support.no_kernels = "what it has is not understood";
    return support;
  }
  support.no_kernels = std::string(words[3]);
  return support;
}

GroupSupport::GroupSupport(absl::Span<const RankSupport> ranks, const backends::PeerTable& peers) {
  SYNCLINE_DCHECK(static_cast<int>(ranks.size()) == peers.size());
  for (int rank = 0; rank < peers.size(); ++rank) {
    const RankSupport& support = ranks[static_cast<size_t>(rank)];
    if (!support.no_kernels.empty() && !no_kernels_.has_value()) {
      no_kernels_ = {rank, absl::StrCat(peers.Describe(rank), ": ", support.no_kernels)};
    }
    if (no_float8_.has_value()) continue;
    if (support.nccl_version < kFloat8Version) {
      no_float8_ = {rank, absl::StrCat("NCCL 2.24 or later, and ", peers.Describe(rank),
                                       " has NCCL ", VersionText(support.nccl_version))};
    } else if (support.compute_capability < kFloat8Capability) {
      no_float8_ = {
          rank, absl::StrCat("devices of compute capability 9.0 or later, and cuda:",
                             support.least_device, " of ", peers.Describe(rank), " has ",
                             support.compute_capability / 10, ".", support.compute_capability % 10,
                             "; CUDA_VISIBLE_DEVICES leaves out a device that is not used")};
    }
  }
}

absl::Status GroupSupport::NoKernelsError(absl::string_view what) const {
  SYNCLINE_DCHECK(!has_kernels());
  return WithRanks(UnsupportedError(absl::StrCat("NCCL lacks ", what,
                                                 ", which takes kernels of ours on all ranks; ",
                                                 no_kernels_->reason)),
                   {no_kernels_->rank});
}

absl::Status GroupSupport::NoFloat8Error(absl::string_view what) const {
  SYNCLINE_DCHECK(!has_float8());
  return WithRanks(
      UnsupportedError(absl::StrCat(what, " need all ranks to have ", no_float8_->reason)),
      {no_float8_->rank});
}

}  // namespace syncline::nccl
