// A launcher's part in the rendezvous of its job, beside its own work.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_PARTICIPANT_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_PARTICIPANT_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launch/clock.h"
#include "launch/options/options.h"
#include "launch/rendezvous/records.h"

namespace syncline {

// Something that the launcher is told.
struct ParticipantNews {
  enum class Kind {
    kAnnouncement,  // Of the leader; never kMoved.
    kFailed,        // The rendezvous is lost, for `text`: there will be no more news.
    kMoved,         // The store is another one now, at `text`.
    kRemark,        // `text` for the operator.
  } kind = Kind::kRemark;
  Announcement announcement;
  std::string text;
};

// Says what this node does and hears what is decided. No call waits for the network; Depart waits
// for a bounded time. Thread-compatible.
class Participant {
 public:
  virtual ~Participant() = default;

  virtual int fd() const = 0;  // Readable when there is news.
  virtual std::vector<ParticipantNews> Take() = 0;
  // When Take has something to do even if there is no news.
  virtual absl::Time next() const { return absl::InfiniteFuture(); }

  // As in Rendezvous. `master_port` is what MASTER_PORT is to be if this node gets rank 0.
  virtual void Wait(std::optional<FailureNote> failure, int master_port) = 0;
  virtual void Run(const Round& round) = 0;
  virtual void Fail(FailureNote failure) = 0;
  virtual void Finish() = 0;
  virtual void SetStatus(std::string json) = 0;

  // The last call. Without a reason: after the job was closed; one that hosts the store stays until
  // all others have gone. With a reason: this node leaves, and the others go on. Returns after
  // `patience` at the latest.
  virtual void Depart(std::optional<std::string> reason, absl::Duration patience) = 0;

  virtual const NodeIdentity& identity() const = 0;
};

// For a job of this node alone: everything is decided here, without a network.
std::unique_ptr<Participant> MakeSoloParticipant(const LaunchOptions& options,
                                                 NodeIdentity identity, const Clock& clock);

// For a job of several nodes. Begins to look for them, on threads of its own.
std::unique_ptr<Participant> MakeNetworkParticipant(const LaunchOptions& options,
                                                    NodeIdentity identity, std::string secret,
                                                    const Clock& clock);

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_PARTICIPANT_H_
