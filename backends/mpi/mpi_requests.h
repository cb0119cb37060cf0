// Requests of MPI that are under way at once, and the wait for them.
#ifndef SYNCLINE_BACKENDS_MPI_MPI_REQUESTS_H_
#define SYNCLINE_BACKENDS_MPI_MPI_REQUESTS_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "backends/common/message_transport.h"
#include "backends/mpi/mpi_api.h"
#include "backends/mpi/mpi_connections.h"
#include "syncline/backend.h"
#include "syncline/deadline.h"

namespace syncline::mpi {

// A text for an MPI error code: "MPI_Isend: message truncated".
absl::Status MpiError(const MpiApi& api, absl::string_view function, int error);

// Whom a wait needs: each of `peers`, and one rank of all if `any`.
struct NeededPeers {
  std::vector<int> peers;
  bool any = false;
};

// Waits until `ready`, which calls MPI and must not block, returns true. A TimeoutError at the
// deadline, an InterruptedError when this thread is interrupted, a NetworkError if
// MpiConnections::Check says that those whom `needed` returns do not come.
absl::Status WaitUntil(MpiConnections& connections, const Deadline& deadline,
                       absl::FunctionRef<bool()> ready, absl::FunctionRef<NeededPeers()> needed);

// Sends and receives of one operation. No call of MPI in here blocks: Wait tests, until all are
// complete or the wait must end.
//
// Not thread-safe. Borrows the connections and the call. If Wait fails, the destructor asks MPI to
// cancel what is under way, and waits for kCancelTimeout; what MPI holds on to for longer keeps the
// owners of the call's tensors, and whatever Keep was given.
class MpiRequests {
 public:
  MpiRequests(MpiConnections& connections, const CallContext& call)
      : connections_(connections), call_(call) {}
  ~MpiRequests();

  MpiRequests(const MpiRequests&) = delete;
  MpiRequests& operator=(const MpiRequests&) = delete;

  // `from` may be kMpiAnySource. `message`, if given, is what came, once Wait has returned OK.
  void Send(MpiHandle comm, int to, int tag, const void* data, size_t nbytes);
  void Receive(MpiHandle comm, int from, int tag, void* data, size_t nbytes,
               MpiMessage* message = nullptr);

  // Memory that MPI may use until the requests are complete.
  void Keep(std::shared_ptr<void> memory) { memory_.push_back(std::move(memory)); }

  // OK once all are complete. Errors are those of WaitUntil, and a NetworkError if MPI reports one.
  absl::Status Wait();

 private:
  struct Request {
    MpiHandle handle;
    int peer;
    MpiMessage* message;
  };

  // Tests each request once. True once none is left or one has failed; see error_.
  bool Test();

  MpiConnections& connections_;
  const CallContext& call_;
  absl::InlinedVector<Request, 8> requests_;  // Not complete.
  absl::Status error_;
  absl::InlinedVector<std::shared_ptr<void>, 2> memory_;
};

// The messages of one operation, for algorithms: those of collectives, on one tag.
class MpiTransport final : public backends::MessageTransport {
 public:
  // `memory` is that of the messages, as far as it is not the user's: see MpiRequests::Keep.
  MpiTransport(MpiConnections& connections, const CallContext& call, std::shared_ptr<void> memory)
      : backends::MessageTransport(connections.peers().rank(), connections.peers().size()),
        connections_(connections),
        call_(call),
        memory_(std::move(memory)) {}

  std::unique_ptr<backends::Messages> NewMessages() override;

 private:
  MpiConnections& connections_;
  const CallContext& call_;
  const std::shared_ptr<void> memory_;
};

// The tag of all messages of collectives; the elements of long messages have the others.
inline constexpr int kCollectiveTag = 0;

}  // namespace syncline::mpi

#endif  // SYNCLINE_BACKENDS_MPI_MPI_REQUESTS_H_
