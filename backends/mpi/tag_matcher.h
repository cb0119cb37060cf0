// Matches messages whose tags are beyond those that MPI can carry.
#ifndef SYNCLINE_BACKENDS_MPI_TAG_MATCHER_H_
#define SYNCLINE_BACKENDS_MPI_TAG_MATCHER_H_

#include <list>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "backends/mpi/message.h"
#include "backends/mpi/mpi_connections.h"
#include "backends/mpi/mpi_requests.h"
#include "syncline/deadline.h"

namespace syncline::mpi {

// MPI's tags end at MPI_TAG_UB, which is less than an int's largest number in MPICH. Tags from
// there on all travel as MPI_TAG_UB; the message says the one that is meant. This receives all of
// these, whatever they are meant for, and hands each to the receive that was called first of those
// that it fits; what fits none waits here, as MPI's unexpected messages do.
//
// Thread-safe. Borrows the connections.
class TagMatcher {
 public:
  explicit TagMatcher(MpiConnections& connections) : connections_(connections) {}
  ~TagMatcher();

  // Receives a message with `tag`, at least MPI_TAG_UB, from rank `from` or kMpiAnySource. Sets the
  // rank that sent. Errors are those of WaitUntil.
  absl::Status Receive(int from, int64_t tag, const Deadline& deadline, Message& message,
                       int& source);

 private:
  struct Arrived {
    std::shared_ptr<Message> message;
    int source;
  };
  // A receive that waits.
  struct Posted {
    bool Fits(const Arrived& arrived) const {
      return arrived.message->header.tag == tag &&
             (from == kMpiAnySource || from == arrived.source);
    }

    int from;
    int64_t tag;
    Arrived arrived;  // Without a message while it waits.
  };

  // Takes what has come by now. Whether `posted` has its message; also if MPI has failed, see
  // error_.
  bool Poll(const Posted& posted);
  void Match(Arrived arrived) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  MpiConnections& connections_;
  absl::Mutex mutex_;
  std::list<Posted*> posted_ ABSL_GUARDED_BY(mutex_);      // In the order of the calls.
  std::list<Arrived> unexpected_ ABSL_GUARDED_BY(mutex_);  // In the order in which they came.
  MpiHandle request_ ABSL_GUARDED_BY(mutex_) = 0;  // Of a message that MPI is about to complete.
  std::shared_ptr<Message> receiving_ ABSL_GUARDED_BY(mutex_);  // Its memory; null: there is none.
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline::mpi

#endif  // SYNCLINE_BACKENDS_MPI_TAG_MATCHER_H_
