#include "backends/gloo/mesh.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "backends/common/call.h"
#include "backends/gloo/slots.h"
#include "core/base/status.h"
#include "core/base/thread.h"
#include "gloo/transport/address.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/device.h"

namespace syncline {
namespace {

using gloo::transport::UnboundBuffer;

constexpr absl::Duration kForever = absl::InfiniteDuration();
constexpr absl::Duration kGoodbyeTimeout = absl::Milliseconds(500);
constexpr absl::Duration kEndTimeout = absl::Milliseconds(200);

// The first byte of a rank's payload in the roster.
constexpr char kChecks = '+', kDoesNotCheck = '-';

// Listens for every peer; the addresses go to the end of `payload`, one after another.
absl::StatusOr<std::shared_ptr<gloo::transport::Context>> Listen(const Mesh::Options& options,
                                                                 const Deadline& deadline,
                                                                 std::string& payload) {
  if (options.size == 1) return MakeLoneTransport();
  std::shared_ptr<gloo::transport::Context> transport;
  absl::Status status = CatchGloo([&] {
    gloo::transport::tcp::attr attr(options.address.c_str());
    transport = gloo::transport::tcp::CreateDevice(attr)->createContext(options.rank, options.size);
    transport->setTimeout(ToGlooTimeout(deadline.Remaining() / 5));  // connect waits for 5 of it.
    for (int peer = 0; peer < options.size; ++peer) {
      if (peer == options.rank) continue;
      const std::vector<char> address = transport->createPair(peer)->address().bytes();
      payload.append(address.begin(), address.end());
    }
  });
  if (!status.ok()) {
    return Annotate(status, absl::StrCat("cannot listen on address '", options.address, "'"));
  }
  return transport;
}

// Where rank `from` listens for rank `to`; nothing if its payload does not say.
std::vector<char> AddressOf(const Roster& roster, int from, int to) {
  absl::string_view addresses = roster.payload(from);
  if (!addresses.empty()) addresses.remove_prefix(1);
  const size_t length = addresses.size() / (roster.size() - 1);
  const size_t index = to < from ? to : to - 1;
  const auto begin = addresses.begin() + index * length;
  return std::vector<char>(begin, begin + length);
}

// Gloo copies an address without a look at its length. All ranks' are as long as this one's.
absl::Status CheckAddresses(const Roster& roster) {
  for (int rank = 0; rank < roster.size(); ++rank) {
    if (roster.payload(rank).size() == roster.payload(roster.rank()).size()) continue;
    return StoreError(absl::StrCat("the store's entry for ", roster.Describe(rank),
                                   " does not say where it listens: do two jobs, or two versions ",
                                   "of Syncline, share a store?"));
  }
  return absl::OkStatus();
}

absl::Status CheckSettings(const Roster& roster) {
  std::vector<int> check, do_not;
  for (int rank = 0; rank < roster.size(); ++rank) {
    const bool checks = absl::StartsWith(roster.payload(rank), absl::string_view(&kChecks, 1));
    (checks ? check : do_not).push_back(rank);
  }
  if (check.empty() || do_not.empty()) return absl::OkStatus();
  return MismatchError(
      absl::StrCat("ranks must all compare their calls before they move data, or none of them: ",
                   NameRanks(check), " would, ", NameRanks(do_not),
                   " would not; set SYNCLINE_DEBUG to the same value on all ranks"));
}

absl::Status ConnectAll(const Roster& roster, gloo::transport::Context& transport,
                        const Deadline& deadline) {
  for (int peer = 0; peer < roster.size(); ++peer) {
    if (peer == roster.rank()) continue;
    absl::Status status = CatchGloo(
        [&] { transport.getPair(peer)->connect(AddressOf(roster, peer, roster.rank())); });
    if (status.ok()) continue;
    const std::string text =
        absl::StrCat("cannot connect to ", roster.Describe(peer), ": ", status.message());
    return deadline.Expired() ? TimeoutError(text) : NetworkError(text);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mesh>> Mesh::Connect(Store& store, const Options& options,
                                                    const Deadline& deadline) {
  std::string payload(1, options.mismatch_check == MismatchCheck::kOn ? kChecks : kDoesNotCheck);
  auto transport = Listen(options, deadline, payload);
  absl::StatusOr<std::string> told = payload;
  if (!transport.ok()) told = transport.status();
  SYNCLINE_ASSIGN_OR_RETURN(Roster roster, Roster::Join(store, options.rank, options.size, told,
                                                        deadline, options.check_peers));
  SYNCLINE_RETURN_IF_ERROR(CheckAddresses(roster));
  SYNCLINE_RETURN_IF_ERROR(CheckSettings(roster));
  SYNCLINE_RETURN_IF_ERROR(ConnectAll(roster, **transport, deadline));
  return std::unique_ptr<Mesh>(new Mesh(options, std::move(roster), *std::move(transport)));
}

Mesh::Mesh(const Options& options, Roster roster,
           std::shared_ptr<gloo::transport::Context> transport)
    : rank_(options.rank),
      size_(options.size),
      roster_(std::move(roster)),
      transport_(std::move(transport)),
      goodbyes_(size_),
      lasts_(size_),
      links_(size_, Link::kOpen) {
  if (size_ == 1) return;
  absl::MutexLock lock(&mutex_);
  UpdateLinks();  // For the goodbyes.
  UpdateLinks();  // For the end of the connections.
  last_ = transport_->createUnboundBuffer(lasts_.data(), lasts_.size());
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    CatchGloo([&] { last_->recv(std::vector<int>{peer}, kLastSlot, peer, 1); }).IgnoreError();
  }
}

absl::Status Mesh::Watch(std::function<void()> on_change) {
  if (size_ == 1) return absl::OkStatus();
  auto watch = [this, on_change = std::move(on_change)] {
    if (AwaitEnd(on_change) == Watching::kBreak) CloseConnections();
  };
  SYNCLINE_ASSIGN_OR_RETURN(watch_, StartThread("the watch over connections", std::move(watch)));
  return absl::OkStatus();
}

StandingBuffer& Mesh::MakeStandingBuffer(void* data, size_t size) {
  standing_.push_back(std::make_unique<StandingBuffer>(*transport_, buffers_, data, size));
  return *standing_.back();
}

Mesh::~Mesh() { Leave("it was destroyed"); }

std::shared_ptr<gloo::Context> Mesh::ForOperation(const Deadline& deadline) {
  return MakeOperationContext(transport_, buffers_, deadline);
}

void Mesh::AwaitEnds(absl::Span<const int> ranks) {
  std::vector<int> dead;
  for (int rank : ranks) {
    if (roster_.Probe(rank) == Liveness::kDead) dead.push_back(rank);
  }
  absl::MutexLock lock(&mutex_);
  auto are_known = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return watching_ != Watching::kYes || std::none_of(dead.begin(), dead.end(), [&](int rank) {
             return links_[rank] == Link::kOpen;
           });
  };
  Deadline(kEndTimeout).Await(mutex_, absl::Condition(&are_known));
}

void Mesh::Break() {
  {
    absl::MutexLock lock(&mutex_);
    if (watching_ == Watching::kYes) UpdateLinks();
    EndWatch(Watching::kBreak);
  }
  buffers_.Abort();
}

void Mesh::Leave(absl::string_view reason) {
  if (transport_ == nullptr) return;
  {
    absl::MutexLock lock(&mutex_);
    EndWatch(Watching::kStop);
  }
  if (watch_.joinable()) watch_.join();
  {
    absl::MutexLock lock(&mutex_);
    if (watching_ == Watching::kStop) SendGoodbyes(reason);
    alarms_.clear();
  }
  last_ = nullptr;
  standing_.clear();
  transport_.reset();
}

std::map<int, std::string> Mesh::left() const {
  absl::MutexLock lock(&mutex_);
  std::map<int, std::string> left;
  for (int peer = 0; peer < size_; ++peer) {
    if (links_[peer] == Link::kLeft) left[peer] = goodbyes_[peer].Reason();
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

Mesh::Watching Mesh::AwaitEnd(const std::function<void()>& on_change) {
  absl::MutexLock lock(&mutex_);
  while (watching_ == Watching::kYes) {
    UnboundBuffer* const alarm = alarms_.back().get();
    mutex_.Unlock();
    absl::Status status = CatchGloo([&] { alarm->waitRecv(nullptr, ToGlooTimeout(kForever)); });
    mutex_.Lock();
    if (status.ok()) continue;  // EndWatch.
    UpdateLinks();
    if (std::count(links_.begin(), links_.end(), Link::kLost) > 0) buffers_.Abort();
    mutex_.Unlock();
    on_change();
    mutex_.Lock();
  }
  return watching_;
}

// Posting a receive on a connection tells whether it is closed.
void Mesh::UpdateLinks() {
  if (size_ == 1) return;
  const uint64_t slot = kWatchSlot + alarms_.size();
  alarms_.push_back(
      transport_->createUnboundBuffer(goodbyes_.data(), goodbyes_.size() * sizeof(Goodbye)));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || links_[peer] != Link::kOpen) continue;
    absl::Status status = CatchGloo(
        [&] { alarms_.back()->recv(peer, slot, peer * sizeof(Goodbye), sizeof(Goodbye)); });
    if (!status.ok()) links_[peer] = goodbyes_[peer].said ? Link::kLeft : Link::kLost;
  }
}

void Mesh::CloseConnections() {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) CatchGloo([&] { transport_->getPair(peer)->close(); }).IgnoreError();
  }
}

void Mesh::EndWatch(Watching how) {
  if (watching_ != Watching::kYes) return;
  watching_ = how;
  for (const auto& alarm : alarms_) alarm->abortWaitRecv();
}

// When connections close on data that is still on its way, some of it may be lost. What the peer
// receives from "any of" itself leaves here only once the peer's Gloo, which reads in order, has
// asked for it: then it has read all else.
void Mesh::SendGoodbyes(absl::string_view reason) {
  if (size_ == 1) return;
  Goodbye goodbye = {};
  goodbye.said = 1;
  reason.copy(goodbye.reason, sizeof(goodbye.reason) - 1);
  const Deadline deadline(kGoodbyeTimeout);
  std::vector<std::unique_ptr<UnboundBuffer>> sent;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || links_[peer] != Link::kOpen) continue;
    auto buffer = transport_->createUnboundBuffer(&goodbye, sizeof(goodbye));
    const absl::Status status = CatchGloo([&] {
      buffer->send(peer, kWatchSlot);
      buffer->send(peer, kLastSlot, 0, 1);
    });
    if (status.ok()) sent.push_back(std::move(buffer));
  }
  for (const auto& buffer : sent) {
    CatchGloo([&] {
      for (int i = 0; i < 2; ++i) buffer->waitSend(nullptr, ToGlooTimeout(deadline.Remaining()));
    }).IgnoreError();
  }
}

}  // namespace syncline
