#include "backends/gloo/mesh.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "backends/common/call_comparison.h"
#include "backends/common/call_description.h"
#include "backends/common/giving_up.h"
#include "backends/common/tls_join.h"
#include "backends/gloo/slots.h"
#include "backends/gloo/thresholds.h"
#include "backends/gloo/tls_channel.h"
#include "core/base/thread.h"
#include "core/tls/context.h"
#include "gloo/transport/address.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/tcp/pair.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::gloo_backend {
namespace {

using gloo::transport::UnboundBuffer;

constexpr absl::Duration kForever = absl::InfiniteDuration();

// The first byte of a rank's payload in the PeerTable: its MismatchCheck.
constexpr char kChecks = '+', kDoesNotCheck = '-';

absl::Status ConnectionsClosed() { return NetworkError("the connections were closed"); }

// Connections to be, and what listens for them.
struct Listening {
  std::shared_ptr<gloo::transport::Context> transport;
  std::shared_ptr<gloo::transport::tcp::Device> device;  // Null for a group of one rank.
};

// Opens a listening socket, and appends the address of each peer's connection to `payload`, in the
// order of the ranks. There is a secret in each address, which the store keeps: only a peer that
// knows it can connect.
absl::StatusOr<Listening> Listen(const Mesh::Options& options, const Deadline& deadline,
                                 std::string& payload) {
  if (options.size == 1) return Listening{MakeSingleRankTransport(), nullptr};
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<tls::Context> tls, tls::Context::FromEnvironment());
  Listening listening;
  absl::Status status = CatchGloo([&] {
    gloo::transport::tcp::attr attr(options.address.c_str());
    // It does not wait in connect(), which Connecting does.
    const auto device = gloo::transport::tcp::CreateLazyDevice(attr);
    listening.device = std::dynamic_pointer_cast<gloo::transport::tcp::Device>(device);
    if (tls != nullptr) listening.device->setChannelFactory(TlsChannels(std::move(tls)));
    auto& transport = listening.transport;
    transport = device->createContext(options.rank, options.size);
    transport->setTimeout(ToGlooTimeout(deadline.Remaining()));
    for (int peer = 0; peer < options.size; ++peer) {
      if (peer == options.rank) continue;
      const std::vector<char> address = transport->createPair(peer)->address().bytes();
      payload.append(address.begin(), address.end());
    }
  });
  if (!status.ok()) {
    return Annotate(status, absl::StrCat("cannot listen on address '", options.address, "'"));
  }
  return listening;
}

// The address at which rank `from` listens for rank `to`; empty if its payload has none.
std::vector<char> AddressOf(const backends::PeerTable& peers, int from, int to) {
  absl::string_view addresses = peers.payload(from);
  if (!addresses.empty()) addresses.remove_prefix(1);
  const size_t length = addresses.size() / (peers.size() - 1);
  const size_t index = to < from ? to : to - 1;
  const auto begin = addresses.begin() + index * length;
  return std::vector<char>(begin, begin + length);
}

// Gloo copies an address without a look at its length, so a wrong length must not get there. The
// payloads of all ranks are equally long.
absl::Status CheckAddresses(const backends::PeerTable& peers) {
  for (int rank = 0; rank < peers.size(); ++rank) {
    if (peers.payload(rank).size() == peers.payload(peers.rank()).size()) continue;
    const absl::Status damaged =
        StoreError(absl::StrCat("the store's entry for ", peers.Describe(rank),
                                " does not say where it listens: do two jobs, or two versions of ",
                                "Syncline, share a store?"));
    return WithRanks(damaged, {rank});
  }
  return absl::OkStatus();
}

absl::Status CheckSettings(const backends::PeerTable& peers) {
  std::vector<MismatchCheck> of_ranks;
  for (int rank = 0; rank < peers.size(); ++rank) {
    const bool checks = absl::StartsWith(peers.payload(rank), absl::string_view(&kChecks, 1));
    of_ranks.push_back(checks ? MismatchCheck::kOn : MismatchCheck::kOff);
  }
  return backends::CheckAllCompareOrNone(of_ranks);
}

// Connects to all other ranks at once: with TLS both sides of a connection take part until it is
// made, so a rank that waited for one peer would keep the others waiting.
class Connecting {
 public:
  Connecting(const backends::PeerTable& peers, gloo::transport::Context& transport)
      : peers_(peers), transport_(transport), states_(peers.size(), State::kPending) {
    states_[peers.rank()] = State::kConnected;
    for (int peer = 0; peer < peers_.size(); ++peer) {
      if (peer == peers_.rank()) continue;
      Note(peer, CatchGloo([&] {
             transport_.getPair(peer)->connect(AddressOf(peers_, peer, peers_.rank()));
           }));
    }
  }

  // Waits until all are connected. Errors are those of Mesh::Connect. `check` is asked all the
  // time.
  absl::Status Await(const Deadline& deadline, absl::FunctionRef<absl::Status()> check) {
    while (true) {
      const std::vector<int> late = Look();
      if (late.empty() && failure_.ok()) return absl::OkStatus();
      SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
      SYNCLINE_RETURN_IF_ERROR(check());
      if (!failure_.ok()) return failure_;
      if (deadline.Expired()) return Late(late, deadline);
    }
  }

 private:
  enum class State { kPending, kConnected, kFailed };

  // Returns the ranks whose connections are not made yet, after a wait for one of them.
  std::vector<int> Look() {
    std::vector<int> late;
    std::chrono::milliseconds wait = kConnectSlice;
    for (int peer = 0; peer < peers_.size(); ++peer) {
      if (peer == peers_.rank() || states_[peer] == State::kFailed) continue;
      auto& pair = static_cast<gloo::transport::tcp::Pair&>(*transport_.getPair(peer));
      bool is_connected = false;
      const bool was_pending = states_[peer] == State::kPending;
      Note(peer,
           CatchGloo([&] { is_connected = pair.waitConnected(was_pending ? wait : kNoWait); }));
      if (was_pending) wait = kNoWait;
      if (is_connected) states_[peer] = State::kConnected;
      if (states_[peer] == State::kPending) late.push_back(peer);
    }
    return late;
  }

  void Note(int peer, const absl::Status& status) {
    if (status.ok()) return;
    const std::string name = peers_.Describe(peer);
    failure_.Update(
        WithRanks(states_[peer] == State::kConnected
                      ? NetworkError(absl::StrCat(name, " has given up joining, or died"))
                      : Annotate(status, absl::StrCat("cannot connect to ", name)),
                  {peer}));
    states_[peer] = State::kFailed;
  }

  absl::Status Late(const std::vector<int>& ranks, const Deadline& deadline) const {
    std::vector<std::string> names;
    for (const int rank : ranks) names.push_back(peers_.Describe(rank));
    return WithRanks(
        TimeoutError(absl::StrCat(absl::StrJoin(names, ", "), " did not connect within ",
                                  absl::FormatDuration(deadline.timeout()))),
        ranks);
  }

  const backends::PeerTable& peers_;
  gloo::transport::Context& transport_;
  std::vector<State> states_;  // By rank.
  absl::Status failure_;       // The first.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Mesh>> Mesh::Connect(const std::shared_ptr<Store>& store,
                                                    const Options& options,
                                                    const Deadline& deadline) {
  std::string payload(1, options.mismatch_check == MismatchCheck::kOn ? kChecks : kDoesNotCheck);
  auto listening = Listen(options, deadline, payload);
  absl::StatusOr<std::string> published = payload;
  if (!listening.ok()) published = listening.status();
  SYNCLINE_ASSIGN_OR_RETURN(backends::PeerTable peers,
                            backends::JoinEncrypting(*store, options.rank, options.size, published,
                                                     deadline, options.check_peers));
  SYNCLINE_RETURN_IF_ERROR(CheckAddresses(peers));
  SYNCLINE_RETURN_IF_ERROR(CheckSettings(peers));
  backends::GivingUp giving_up(store, peers);
  const auto check = [&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(peers.CheckAlive());
    if (options.check_peers) SYNCLINE_RETURN_IF_ERROR(options.check_peers());
    return giving_up.Check();
  };
  const absl::Status connected = Connecting(peers, *listening->transport).Await(deadline, check);
  if (!connected.ok()) return giving_up.Tell(connected);
  // Whoever else connects from now on would only take a descriptor.
  if (listening->device != nullptr) listening->device->stopListening();
  return std::unique_ptr<Mesh>(
      new Mesh(options, std::move(peers), std::move(listening->transport)));
}

Mesh::Mesh(const Options& options, backends::PeerTable peers,
           std::shared_ptr<gloo::transport::Context> transport)
    : rank_(options.rank),
      size_(options.size),
      peers_(std::move(peers)),
      transport_(std::move(transport)),
      leave_messages_(size_),
      drain_bytes_(size_),
      links_(size_, Link::kOpen) {
  if (size_ == 1) return;
  absl::MutexLock lock(&mutex_);
  UpdateLinks();  // The receive for leave messages.
  UpdateLinks();  // The receive that nothing completes.
  drain_receive_ = transport_->createUnboundBuffer(drain_bytes_.data(), drain_bytes_.size());
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    CatchGloo([&] {
      drain_receive_->recv(std::vector<int>{peer}, kDrainSlot, peer, 1);
    }).IgnoreError();
  }
}

absl::Status Mesh::Watch(std::function<void()> on_change) {
  if (size_ == 1) return absl::OkStatus();
  auto watch = [this, on_change = std::move(on_change)] {
    if (RunWatch(on_change) == WatchState::kDisconnected) CloseConnections();
  };
  SYNCLINE_ASSIGN_OR_RETURN(watch_,
                            base::StartThread("the watch over connections", std::move(watch)));
  return absl::OkStatus();
}

PersistentBuffer& Mesh::MakePersistentBuffer(void* data, size_t size) {
  persistent_.push_back(std::make_unique<PersistentBuffer>(*transport_, buffers_, data, size));
  return *persistent_.back();
}

Mesh::~Mesh() { Leave("it was destroyed"); }

std::shared_ptr<gloo::Context> Mesh::ForOperation(const Deadline& deadline) {
  return MakeOperationContext(transport_, buffers_, deadline);
}

void Mesh::AwaitDisconnects(absl::Span<const int> ranks) {
  std::vector<int> dead;
  for (int rank : ranks) {
    if (peers_.LivenessOf(rank) == base::Liveness::kDead) dead.push_back(rank);
  }
  absl::MutexLock lock(&mutex_);
  auto are_known = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return watch_state_ != WatchState::kRunning ||
           std::none_of(dead.begin(), dead.end(),
                        [&](int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                          return links_[rank] == Link::kOpen;
                        });
  };
  Deadline(kDisconnectGrace).Await(mutex_, absl::Condition(&are_known));
}

void Mesh::Disconnect() {
  {
    absl::MutexLock lock(&mutex_);
    if (watch_state_ == WatchState::kRunning) UpdateLinks();
    EndWatch(WatchState::kDisconnected);
  }
  buffers_.Abort(ConnectionsClosed());
}

void Mesh::Leave(absl::string_view reason) {
  if (transport_ == nullptr) return;
  {
    absl::MutexLock lock(&mutex_);
    EndWatch(WatchState::kStopped);
  }
  if (watch_.joinable()) watch_.join();
  {
    absl::MutexLock lock(&mutex_);
    if (watch_state_ == WatchState::kStopped) SendLeaveMessages(reason);
    watch_receives_.clear();
  }
  drain_receive_ = nullptr;
  persistent_.clear();
  transport_.reset();
}

std::map<int, std::string> Mesh::left() const {
  absl::MutexLock lock(&mutex_);
  std::map<int, std::string> left;
  for (int peer = 0; peer < size_; ++peer) {
    if (links_[peer] == Link::kLeft) left[peer] = leave_messages_[peer].Reason();
  }
  return left;
}

std::vector<int> Mesh::lost() const {
  absl::MutexLock lock(&mutex_);
  std::vector<int> lost;
  for (int peer = 0; peer < size_; ++peer) {
    if (links_[peer] == Link::kLost) lost.push_back(peer);
  }
  return lost;
}

Mesh::WatchState Mesh::RunWatch(const std::function<void()>& on_change) {
  absl::MutexLock lock(&mutex_);
  while (watch_state_ == WatchState::kRunning) {
    UnboundBuffer* const receive = watch_receives_.back().get();
    // The receive stays valid without the lock: receives are only ever added while the watch runs.
    mutex_.Unlock();
    absl::Status status = CatchGloo([&] { receive->waitRecv(nullptr, ToGlooTimeout(kForever)); });
    mutex_.Lock();
    if (status.ok()) continue;  // EndWatch has ended the wait.
    UpdateLinks();
    // All operations end, whichever peer they wait for: they cannot complete without the lost one.
    if (std::count(links_.begin(), links_.end(), Link::kLost) > 0) {
      buffers_.Abort(KindOf(status) == ErrorKind::kMismatch ? status : ConnectionsClosed());
    }
    // on_change may take locks under which others call left() and lost().
    mutex_.Unlock();
    on_change();
    mutex_.Lock();
  }
  return watch_state_;
}

// Posts a new receive on every open connection; Gloo refuses it where the connection has ended.
// That is the only way to ask: a failed wait does not say which of its connections has ended.
void Mesh::UpdateLinks() {
  if (size_ == 1) return;
  const uint64_t slot = kWatchSlot + watch_receives_.size();
  watch_receives_.push_back(transport_->createUnboundBuffer(
      leave_messages_.data(), leave_messages_.size() * sizeof(LeaveMessage)));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || links_[peer] != Link::kOpen) continue;
    absl::Status status = CatchGloo([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      watch_receives_.back()->recv(peer, slot, peer * sizeof(LeaveMessage), sizeof(LeaveMessage));
    });
    if (!status.ok()) links_[peer] = leave_messages_[peer].has_come ? Link::kLeft : Link::kLost;
  }
}

void Mesh::CloseConnections() {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) CatchGloo([&] { transport_->getPair(peer)->close(); }).IgnoreError();
  }
}

void Mesh::EndWatch(WatchState how) {
  if (watch_state_ != WatchState::kRunning) return;
  watch_state_ = how;
  for (const auto& receive : watch_receives_) receive->abortWaitRecv();
}

// Data that is on its way when a connection closes may be lost. So each leave message is followed
// by one byte for which the peer has posted a receive from "any of" one rank: Gloo sends such a
// message only when the peer, whose Gloo reads in order, has asked for it. Once the byte has gone,
// the peer has read everything else.
void Mesh::SendLeaveMessages(absl::string_view reason) {
  if (size_ == 1) return;
  LeaveMessage message = {};
  message.has_come = 1;
  reason.copy(message.reason, sizeof(message.reason) - 1);
  const Deadline deadline(kLeaveTimeout);
  std::vector<std::unique_ptr<UnboundBuffer>> sent;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || links_[peer] != Link::kOpen) continue;
    auto buffer = transport_->createUnboundBuffer(&message, sizeof(message));
    const absl::Status status = CatchGloo([&] {
      buffer->send(peer, kWatchSlot);
      buffer->send(peer, kDrainSlot, 0, 1);
    });
    if (status.ok()) sent.push_back(std::move(buffer));
  }
  for (const auto& buffer : sent) {
    CatchGloo([&] {
      for (int i = 0; i < 2; ++i) buffer->waitSend(nullptr, ToGlooTimeout(deadline.Remaining()));
    }).IgnoreError();
  }
}

}  // namespace syncline::gloo_backend
