// A launcher's handle on the rendezvous of its job.
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

namespace syncline::launch {

// What the rendezvous reports to the launcher.
struct RendezvousEvent {
  enum class Kind {
    kAnnouncement,  // `announcement` of the leader; never of kind kMoved.
    kFailed,        // The rendezvous is lost because of `text`. No event follows.
    kMoved,         // The rendezvous now runs over the store at `text`.
    kMessage,       // `text` is a line for the operator.
  } kind = Kind::kMessage;
  Announcement announcement;
  std::string text;
};

// Publishes what this node does and delivers what the leader decides. The launcher owns it and
// calls it from one thread; no call waits for the network, except that Leave blocks for at most its
// timeout. Failures never come as errors of a call: they are events of kind kFailed.
//
//   participant->Wait(std::nullopt, port);
//   poll() participant->fd() until readable, or until participant->next();
//   for (RendezvousEvent& event : participant->Take()) ...   // kRound: start workers, then
//   participant->Run(event.announcement.round);
//   ... participant->Finish();                               // until kClosed:
//   participant->Leave(std::nullopt, timeout);
class Participant {
 public:
  virtual ~Participant() = default;

  virtual int fd() const = 0;  // Readable while events are queued.
  virtual std::vector<RendezvousEvent> Take() = 0;
  // When Take must be called even though fd() is not readable.
  virtual absl::Time next() const { return absl::InfiniteFuture(); }

  // These set the node's state, as the methods of Rendezvous with the same names. `master_port`
  // becomes MASTER_PORT of the next round if this node gets rank 0.
  virtual void Wait(std::optional<FailureNote> failure, int master_port) = 0;
  virtual void Run(const Round& round) = 0;
  virtual void Fail(FailureNote failure) = 0;
  virtual void Finish() = 0;
  // Publishes the node's status for `syncline-run status`.
  virtual void SetStatus(std::string json) = 0;

  // Must be the last call. Without a reason the job was closed: a node that hosts the store keeps
  // serving it until all others have read that. With a reason this node leaves and the others go
  // on. Returns after `timeout` at the latest.
  virtual void Leave(std::optional<std::string> reason, absl::Duration timeout) = 0;

  virtual const NodeIdentity& identity() const = 0;
};

// For a job with one node: decides everything in this process, without threads or a network.
// `clock` must outlive the result.
std::unique_ptr<Participant> MakeSoloParticipant(const LaunchOptions& options,
                                                 NodeIdentity identity, const Clock& clock);

// For a job with several nodes: starts two threads, which look for the rendezvous at once. `secret`
// is the job's. `clock` must outlive the result and be thread-safe.
std::unique_ptr<Participant> MakeNetworkParticipant(const LaunchOptions& options,
                                                    NodeIdentity identity, std::string secret,
                                                    const Clock& clock);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_PARTICIPANT_H_
