// SegmentManager: the process that frees a job's named segments.
#ifndef SYNCLINE_CORE_SEGMENTS_SEGMENT_MANAGER_H_
#define SYNCLINE_CORE_SEGMENTS_SEGMENT_MANAGER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"
#include "core/segments/segment_ledger.h"
#include "syncline/peer.h"

namespace syncline::segments {

// Serves the clients of one manager: processes of this user that make or map segments. A client has
// ended when its connection has, however it ended. Not thread-safe.
class SegmentManager {
 public:
  // How long the manager stays when the job's process and all clients have ended: for a process of
  // the job that has not connected yet.
  static constexpr absl::Duration kGrace = absl::Seconds(1);

  // Listens at the address of `self`, this process. BackendError if it cannot.
  static absl::StatusOr<std::unique_ptr<SegmentManager>> Listen(const Peer& self);

  const std::string& name() const { return name_; }

  // Serves until `job`, a process, and all clients have ended, or `stop`, a descriptor, is
  // readable. Then removes all segments that are left.
  void Serve(const Peer& job, int stop);

 private:
  SegmentManager(const Peer& self, base::UniqueFd listener);

  void Accept();
  // Carries out the requests that have arrived. False if the client has ended.
  bool Read(int connection, ClientId client);

  const Peer self_;
  const std::string name_;
  base::UniqueFd listener_;
  SegmentLedger ledger_;
  struct Client {
    base::UniqueFd connection;
    ClientId id;
  };
  std::vector<Client> clients_;
  bool listens_ = true;  // Not for a while, where descriptors are lacking.
};

}  // namespace syncline::segments

#endif  // SYNCLINE_CORE_SEGMENTS_SEGMENT_MANAGER_H_
