#include "backends/mpi/mpi_connections.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "backends/common/call_description.h"
#include "backends/common/tls_join.h"
#include "backends/mpi/members.h"
#include "backends/mpi/mpi_requests.h"
#include "backends/mpi/thresholds.h"
#include "core/base/rank_ranges.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::mpi {
namespace {

constexpr int kControlTag = 0;

absl::StatusOr<Member> DescribeSelf(const MpiApi& api, const BackendConfig& config) {
  Member self;
  self.checks = config.mismatch_check == MismatchCheck::kOn;
  self.hosts_store = config.store->is_hosted_here();
  self.family = api.family;
  self.nonce = std::random_device()() | uint64_t{std::random_device()()} << 32;
  int error = api.comm_rank(api.comm_world(), &self.world_rank);
  if (error != kMpiSuccess) return MpiError(api, "MPI_Comm_rank", error);
  error = api.comm_size(api.comm_world(), &self.world_size);
  if (error != kMpiSuccess) return MpiError(api, "MPI_Comm_size", error);
  return self;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MpiConnections>> MpiConnections::Connect(
    const BackendConfig& config) {
  absl::StatusOr<std::string> payload;
  absl::StatusOr<MpiRuntime*> runtime = MpiRuntime::Get(config.deadline);
  if (!runtime.ok()) {
    payload = runtime.status();
  } else if (absl::StatusOr<Member> self = DescribeSelf((*runtime)->api(), config); self.ok()) {
    payload = self->Serialize();
  } else {
    payload = self.status();
  }
  SYNCLINE_ASSIGN_OR_RETURN(backends::PeerTable peers,
                            backends::JoinPlain("mpi", *config.store, config.rank, config.size,
                                                payload, config.deadline, config.check_peers));
  const MpiApi& api = (*runtime)->api();
  SweepLeftovers(Sweep::kNow);
  auto state = std::make_shared<State>();
  std::vector<std::string> payloads;
  for (int rank = 0; rank < peers.size(); ++rank) payloads.push_back(peers.payload(rank));
  SYNCLINE_ASSIGN_OR_RETURN(const Members members, ReadMembers(peers, payloads));
  state->nonce = members.nonce;
  // Tags of MPI_Comm_create_group tell groups apart that threads of one process make at once. Every
  // MPI has those up to 32767.
  const int tag = static_cast<int>(state->nonce % 32768);
  const auto make = [&api, world_ranks = members.world_ranks, tag, state] {
    int error =
        api.comm_create_group(api.comm_world(), world_ranks.data(),
                              static_cast<int>(world_ranks.size()), tag, &state->collectives);
    for (MpiHandle* made : {&state->messages, &state->control}) {
      if (error == kMpiSuccess) error = api.comm_dup(state->collectives, made);
    }
    return error;
  };
  SYNCLINE_RETURN_IF_ERROR(
      (*runtime)->CallBlocking("MPI_Comm_create_group", config.deadline, make));
  int tag_upper_bound = 0;
  const int error = api.tag_upper_bound(state->messages, &tag_upper_bound);
  if (error != kMpiSuccess) return MpiError(api, "MPI_Comm_get_attr", error);
  std::unique_ptr<MpiConnections> connections(
      new MpiConnections(**runtime, std::move(peers), std::move(state), tag_upper_bound,
                         config.store, members.hosting_rank));
  return connections;
}

MpiConnections::MpiConnections(MpiRuntime& runtime, backends::PeerTable peers,
                               std::shared_ptr<State> state, int tag_upper_bound,
                               std::shared_ptr<Store> store, int hosting_rank)
    : runtime_(runtime),
      api_(runtime.api()),
      peers_(std::move(peers)),
      processes_(peers_),
      other_hosts_(std::move(store), peers_, hosting_rank),
      state_(std::move(state)),
      tag_upper_bound_(tag_upper_bound),
      links_(peers_.size(), Link::kOpen) {
  // If it cannot be posted, only leave messages are missed.
  if (api_.irecv(&state_->received, sizeof(ControlMessage), kMpiAnySource, kControlTag,
                 state_->control, &state_->control_receive) != kMpiSuccess) {
    state_->control_receive = api_.request_null();
  }
}

MpiConnections::~MpiConnections() { Leave("the backend was destroyed"); }

absl::Status MpiConnections::Check(absl::Span<const int> peers, bool any, absl::Duration waited) {
  if (waited > kOtherHostsCheckAfter) CheckOtherHosts();
  absl::MutexLock lock(&mutex_);
  ReceiveControl();
  CheckProcesses();
  if (!death_.ok()) return death_;
  if (!lost_.empty()) {
    return WithRanks(
        NetworkError(absl::StrCat(base::NameRanks(lost_), " ", backends::Have(lost_), " failed")),
        lost_);
  }
  if (is_disconnected_.load()) return NetworkError("the group has failed");
  const absl::Time now = absl::Now();
  const auto is_gone = [&](int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return links_[rank] == Link::kLeft && now - left_at_[rank] > kLeftGrace;
  };
  for (const int rank : peers) {
    if (is_gone(rank)) {
      return WithRanks(NetworkError(absl::StrCat("rank ", rank, " has left the group")), {rank});
    }
  }
  if (!any) return absl::OkStatus();
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (rank != peers_.rank() && !is_gone(rank)) return absl::OkStatus();
  }
  return NetworkError("all other ranks have left the group");
}

void MpiConnections::Abandon(std::vector<MpiHandle> requests,
                             std::vector<std::shared_ptr<void>> memory) {
  Disconnect();
  memory.push_back(state_);
  KeepRequests(api_, std::move(requests), std::move(memory));
}

void MpiConnections::AwaitDisconnects(absl::Span<const int>) {
  absl::MutexLock lock(&mutex_);
  ReceiveControl();
}

void MpiConnections::Disconnect() {
  if (is_disconnected_.exchange(true)) return;
  runtime_.MarkDoubtful();
  absl::MutexLock lock(&mutex_);
  if (!has_left_) SendControl(/*has_failed=*/true, "");
}

void MpiConnections::Close(absl::string_view reason) {
  Leave(reason);
  absl::MutexLock lock(&mutex_);
  is_closed_ = true;
}

void MpiConnections::Leave(absl::string_view reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(has_left_, true)) return;
    if (!is_disconnected_.load()) SendControl(/*has_failed=*/false, reason);
  }
  const Deadline deadline(kLeaveTimeout);
  while (true) {
    absl::MutexLock lock(&mutex_);
    if (is_closed_) return;
    ReceiveControl();
    std::vector<MpiHandle>& sends = state_->control_sends;
    for (size_t i = 0; i < sends.size();) {
      int done = 0;
      api_.test(&sends[i], &done, nullptr);
      if (done == 0) {
        ++i;
      } else {
        sends[i] = sends.back();
        sends.pop_back();
      }
    }
    if (sends.empty() || deadline.Expired()) break;
    absl::SleepFor(kSleepTime);
  }
  absl::MutexLock lock(&mutex_);
  if (is_closed_) return;
  if (is_disconnected_.load()) {
    // The communicators are never freed, but MPI may still use the memory of the control messages.
    std::vector<MpiHandle> requests = std::exchange(state_->control_sends, {});
    if (state_->control_receive != api_.request_null()) {
      requests.push_back(std::exchange(state_->control_receive, api_.request_null()));
    }
    return KeepRequests(api_, std::move(requests), {state_});
  }
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (rank != peers_.rank() && links_[rank] == Link::kOpen) state_->open.push_back(rank);
  }
  FreeLater(
      [&api = api_, state = state_](Sweep sweep) { return FreeIfAllHaveLeft(api, *state, sweep); });
}

bool MpiConnections::FreeIfAllHaveLeft(const MpiApi& api, State& state, Sweep sweep) {
  while (!state.open.empty() && state.control_receive != api.request_null()) {
    int done = 0;
    MpiMessage message;
    const int error = api.test(&state.control_receive, &done, &message);
    if (done == 0) {
      if (sweep == Sweep::kNow) return false;
      break;
    }
    // Nothing is under way any more; the communicators are never freed.
    if (error != kMpiSuccess || state.received.has_failed != 0) return true;
    if (state.received.nonce == state.nonce) {
      state.open.erase(std::remove(state.open.begin(), state.open.end(), message.source),
                       state.open.end());
    }
    if (api.irecv(&state.received, sizeof(ControlMessage), kMpiAnySource, kControlTag,
                  state.control, &state.control_receive) != kMpiSuccess) {
      return true;
    }
  }
  if (state.control_receive != api.request_null()) {
    api.cancel(&state.control_receive);
    int done = 0;
    api.test(&state.control_receive, &done, nullptr);
    if (done == 0) return false;
  }
  for (MpiHandle& send : state.control_sends) {
    int done = 0;
    if (send != api.request_null()) api.test(&send, &done, nullptr);
    if (send != api.request_null() && done == 0) return false;
  }
  for (MpiHandle* comm : {&state.control, &state.messages, &state.collectives}) {
    api.comm_free(comm);
  }
  return true;
}

std::map<int, std::string> MpiConnections::left() const {
  absl::MutexLock lock(&mutex_);
  return reasons_;
}

std::vector<int> MpiConnections::lost() const {
  absl::MutexLock lock(&mutex_);
  return lost_;
}

void MpiConnections::ReceiveControl() {
  if (is_closed_) return;
  while (state_->control_receive != api_.request_null()) {
    int done = 0;
    MpiMessage message;
    const int error = api_.test(&state_->control_receive, &done, &message);
    // ULFM reports the death of any rank here, again and again, and the receive stays.
    if (done == 0) return;
    if (error != kMpiSuccess) {
      state_->control_receive = api_.request_null();
      return;
    }
    const ControlMessage received = state_->received;
    if (api_.irecv(&state_->received, sizeof(ControlMessage), kMpiAnySource, kControlTag,
                   state_->control, &state_->control_receive) != kMpiSuccess) {
      state_->control_receive = api_.request_null();
    }
    if (received.nonce != state_->nonce) continue;
    const int rank = message.source;
    if (links_[rank] != Link::kOpen) continue;
    if (received.has_failed != 0) {
      links_[rank] = Link::kLost;
      lost_.push_back(rank);
      next_check_ = absl::InfinitePast();  // Perhaps because of a death.
    } else {
      links_[rank] = Link::kLeft;
      left_at_[rank] = absl::Now();
      reasons_[rank] =
          std::string(received.reason, strnlen(received.reason, sizeof(received.reason)));
    }
  }
}

void MpiConnections::CheckProcesses() {
  const absl::Time now = absl::Now();
  if (now < next_check_) return;
  next_check_ = now + kPeerCheckInterval;
  MarkDead(processes_.Check([this](int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return links_[rank] == Link::kOpen;
  }));
}

// The store may be silent for a while, so without the mutex.
void MpiConnections::CheckOtherHosts() {
  std::vector<Link> links;
  {
    absl::MutexLock lock(&mutex_);
    links = links_;
  }
  const absl::Status death =
      other_hosts_.Check([&](int rank) { return links[rank] == Link::kOpen; });
  absl::MutexLock lock(&mutex_);
  MarkDead(death);
}

void MpiConnections::MarkDead(const absl::Status& death) {
  if (death.ok()) return;
  death_ = death;
  runtime_.MarkFailed();  // MPI_Finalize would wait for the dead.
  for (const int rank : RanksOf(death_)) {
    if (links_[rank] != Link::kOpen) continue;
    links_[rank] = Link::kLost;
    lost_.push_back(rank);
  }
}

void MpiConnections::SendControl(bool has_failed, absl::string_view reason) {
  if (is_closed_) return;
  ControlMessage& message = state_->sent;
  message.nonce = state_->nonce;
  message.has_failed = has_failed ? 1 : 0;
  reason.substr(0, sizeof(message.reason)).copy(message.reason, sizeof(message.reason));
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (rank == peers_.rank() || links_[rank] == Link::kLost) continue;
    MpiHandle request;
    if (api_.isend(&message, sizeof(message), rank, kControlTag, state_->control, &request) ==
        kMpiSuccess) {
      state_->control_sends.push_back(request);
    }
  }
}

}  // namespace syncline::mpi
