// Collectives of byte strings whose sizes only their owners know: what object collectives are made
// of, in every language.
#ifndef SYNCLINE_BYTE_COLLECTIVES_H_
#define SYNCLINE_BYTE_COLLECTIVES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "syncline/process_group.h"

namespace syncline {

// What RecvBytes received, and from whom.
class Message {
 public:
  Message(std::string value, int source_rank)
      : value_(std::move(value)), source_rank_(source_rank) {}

  const std::string& value() const { return value_; }
  int source_rank() const { return source_rank_; }

 private:
  const std::string value_;
  const int source_rank_;
};

// All are collective and go by the group's ordinary operations: first the sizes, then the bytes.
// `timeout` is for each of the two. Errors are those of ProcessGroup; and a MismatchError, which
// ends the group, if a rank announces a size that cannot be: it has called something else.

// Every rank's `value`, in the order of ranks, on every rank.
absl::StatusOr<std::vector<std::string>> AllGatherBytes(ProcessGroup& group,
                                                        const std::string& value,
                                                        ProcessGroup::Timeout timeout = {});

// `root`'s value on every rank; what others pass is ignored.
absl::StatusOr<std::string> BroadcastBytes(ProcessGroup& group, const std::string& value, int root,
                                           ProcessGroup::Timeout timeout = {});

// Every rank's `value` on `root`; nothing on the others.
absl::StatusOr<std::vector<std::string>> GatherBytes(ProcessGroup& group, const std::string& value,
                                                     int root, ProcessGroup::Timeout timeout = {});

// values[r] of `root`, which has one for each rank, on rank r; the others pass none.
absl::StatusOr<std::string> ScatterBytes(ProcessGroup& group,
                                         const std::vector<std::string>& values, int root,
                                         ProcessGroup::Timeout timeout = {});

// Sends to `dst`; receives what SendBytes sent, from `src` or kAnySource.
// One message is two of the group's, so no other thread may use the same peer and tag meanwhile.
absl::Status SendBytes(ProcessGroup& group, const std::string& value, int dst, int64_t tag = 0,
                       ProcessGroup::Timeout timeout = {});
absl::StatusOr<std::shared_ptr<Message>> RecvBytes(ProcessGroup& group, int src, int64_t tag = 0,
                                                   ProcessGroup::Timeout timeout = {});

}  // namespace syncline

#endif  // SYNCLINE_BYTE_COLLECTIVES_H_
