// The call on whose behalf a thread waits.
#ifndef SYNCLINE_BACKENDS_SHM_WAIT_CONTEXT_H_
#define SYNCLINE_BACKENDS_SHM_WAIT_CONTEXT_H_

#include <atomic>
#include <cstdint>

#include "backends/common/call_description.h"
#include "backends/shm/segment_layout.h"
#include "syncline/backend.h"
#include "syncline/deadline.h"

namespace syncline::shm {

// Says when a wait ends and how messages name it. Borrows the call and the deadline, which must
// outlive it: it lives on the stack of the call.
struct WaitContext {
  // In full, for messages.
  backends::CallDescription Describe() const { return backends::CallDescription(call); }

  const CallContext& call;
  const Deadline& deadline;
  // Counts the entries of this backend's collectives, from 1; 0 for send and recv. Messages name
  // calls by CallContext::sequence, which counts from 0, and not by this.
  uint64_t number = 0;
  // Of a wait for ranks that still need what this one wrote for an earlier collective: the number
  // of that, and which counter says that they do not. Else 0 and null.
  uint64_t needed_number = 0;
  std::atomic<uint64_t> RankRegion::* counter = nullptr;
  // Whether this rank needs the data of one other alone: ranks that have not come may do so later.
  bool takes_from_one = false;
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_WAIT_CONTEXT_H_
