// What the ranks of a group of backend nccl tell each other in the store when they join.
#ifndef SYNCLINE_BACKENDS_NCCL_INTRODUCTION_H_
#define SYNCLINE_BACKENDS_NCCL_INTRODUCTION_H_

#include <string>

#include "absl/strings/string_view.h"
#include "backends/nccl/group_support.h"

namespace syncline::nccl {

// A rank's payload in the PeerTable.
struct Introduction {
  bool compares = false;   // Its calls.
  bool is_eager = false;   // It has a device for which it connects at once,
  bool has_split = false;  // and a communicator that was split off another for it.
  std::string endpoint;    // Of rank 0: where the others of its host get the board.
  RankSupport support;

  std::string Serialize() const;
  // Of text that is not understood: nothing, and a RankSupport that says so.
  static Introduction Parse(absl::string_view text);
};

}  // namespace syncline::nccl

#endif  // SYNCLINE_BACKENDS_NCCL_INTRODUCTION_H_
