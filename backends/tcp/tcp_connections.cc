#include "backends/tcp/tcp_connections.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/common/call_comparison.h"
#include "backends/common/comparison.h"
#include "backends/common/giving_up.h"
#include "backends/common/listener.h"
#include "backends/common/rank_acceptor.h"
#include "backends/common/socket_delivery.h"
#include "backends/tcp/silent_hosts.h"
#include "backends/tcp/socket_options.h"
#include "backends/tcp/stream_count.h"
#include "backends/tcp/thresholds.h"
#include "core/base/errno_payload.h"
#include "core/base/sockets.h"
#include "core/base/thread.h"
#include "core/tls/context.h"
#include "core/tls/settings.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::tcp {
namespace {

// The first bytes of a rank's payload in the PeerTable are its MismatchCheck, its Comparison, its
// tls::Mode, its setting of streams and the number of its addresses, both as 'A' and so many
// letters on. Its endpoint follows.
constexpr char kChecks = '+', kDoesNotCheck = '-';
constexpr size_t kComparison = 1, kTls = 2, kStreams = 3, kAddresses = 4, kSettings = 5;

// Of the connections of a pair, as they are numbered when they are made, the first has the messages
// of sends and receives; those of collectives follow.
constexpr int kMessages = 0;

char AsLetter(int number) { return static_cast<char>('A' + std::clamp(number, 0, kMaxStreams)); }

std::string TlsModeOf(const backends::PeerTable& peers, int rank) {
  const std::string& payload = peers.payload(rank);
  for (const tls::Mode mode : {tls::Mode::kSecret, tls::Mode::kCertificates}) {
    if (payload.size() >= kSettings && payload[kTls] == tls::ModeName(mode)[0]) {
      return std::string(tls::ModeName(mode));
    }
  }
  return std::string(tls::ModeName(tls::Mode::kOff));
}

absl::Status CheckSettings(const backends::PeerTable& peers) {
  std::vector<MismatchCheck> of_ranks;
  for (int rank = 0; rank < peers.size(); ++rank) {
    const bool checks = absl::StartsWith(peers.payload(rank), absl::string_view(&kChecks, 1));
    of_ranks.push_back(checks ? MismatchCheck::kOn : MismatchCheck::kOff);
  }
  SYNCLINE_RETURN_IF_ERROR(backends::CheckAllCompareOrNone(of_ranks));
  std::vector<backends::Comparison> comparisons;
  for (int rank = 0; rank < peers.size(); ++rank) {
    const std::string& payload = peers.payload(rank);
    comparisons.push_back(
        backends::ComparisonOf(payload.size() > kComparison ? payload[kComparison] : '\0'));
  }
  SYNCLINE_RETURN_IF_ERROR(backends::CheckAllCompareAtOnceOrNone(comparisons));
  for (int rank = 1; rank < peers.size(); ++rank) {
    const std::string modes[] = {TlsModeOf(peers, 0), TlsModeOf(peers, rank)};
    if (modes[0] == modes[1]) continue;
    return WithRanks(MismatchError(absl::StrCat(
                         "SYNCLINE_TLS must be the same on all ranks: it is ", modes[0], " for ",
                         peers.Describe(0), " and ", modes[1], " for ", peers.Describe(rank))),
                     {0, rank});
  }
  return absl::OkStatus();
}

// A rank that does not listen, since it is alone, has no such setting.
int NumberOf(const backends::PeerTable& peers, int rank, size_t setting) {
  const std::string& payload = peers.payload(rank);
  if (payload.size() < kSettings) return 0;
  return std::clamp(payload[setting] - 'A', 0, kMaxStreams);
}

// The same on all ranks.
absl::StatusOr<int> ChooseStreams(const backends::PeerTable& peers) {
  const auto name = [&](int rank) {
    const int streams = NumberOf(peers, rank, kStreams);
    return absl::StrCat(streams == 0 ? "not set" : absl::StrCat(streams), " for ",
                        peers.Describe(rank));
  };
  int most_addresses = 1;
  for (int rank = 0; rank < peers.size(); ++rank) {
    most_addresses = std::max(most_addresses, NumberOf(peers, rank, kAddresses));
    if (NumberOf(peers, rank, kStreams) == NumberOf(peers, 0, kStreams)) continue;
    return WithRanks(
        MismatchError(absl::StrCat("SYNCLINE_TCP_STREAMS must be the same on all ranks: it is ",
                                   name(0), " and ", name(rank))),
        {0, rank});
  }
  const int streams = NumberOf(peers, 0, kStreams);
  return streams > 0 ? streams : most_addresses;
}

std::string EndpointOf(const backends::PeerTable& peers, int rank) {
  const std::string& payload = peers.payload(rank);
  return payload.size() < kSettings ? "" : payload.substr(kSettings);
}

// `rank` is at fault, unless this one lacks something.
absl::Status Blame(const backends::PeerTable& peers, int rank, const absl::Status& status) {
  return WithRanks(Annotate(status, absl::StrCat("cannot connect to ", peers.Describe(rank))),
                   {base::IsOwnShortage(status) ? peers.rank() : rank});
}

absl::StatusOr<base::UniqueFd> NewEvent() {
  base::UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) {
    return NetworkError(absl::StrCat("cannot make an eventfd: ", std::strerror(errno)));
  }
  return event;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpConnections>> TcpConnections::Connect(
    const BackendConfig& config) {
  std::unique_ptr<backends::Listener> listener;
  // What is wrong here is told to all, so that none waits for this rank.
  const absl::StatusOr<SocketOptions> options = SocketOptions::FromEnvironment();
  const absl::StatusOr<std::optional<int>> streams = StreamsFromEnvironment();
  absl::StatusOr<std::string> payload =
      std::string{config.mismatch_check == MismatchCheck::kOn ? kChecks : kDoesNotCheck,
                  backends::MarkOf(backends::DefaultComparison())};
  if (config.size > 1) {
    auto opened = backends::Listener::Open(
        config.local_address.empty() ? "127.0.0.1" : config.local_address, config.more_addresses);
    if (opened.ok()) {
      listener = *std::move(opened);
      const tls::Mode mode = listener->tls() == nullptr ? tls::Mode::kOff : listener->tls()->mode();
      const char numbers[] = {AsLetter(streams.ok() ? streams->value_or(0) : 0),
                              AsLetter(static_cast<int>(listener->sockets().size()))};
      absl::StrAppend(&*payload, tls::ModeName(mode).substr(0, 1),
                      absl::string_view(numbers, sizeof(numbers)), listener->endpoint());
    } else {
      payload = opened.status();
    }
  }
  // Once ranks are connected, it would be too late to say which option a kernel refuses.
  if (const absl::Status tried = options.ok() ? options->Try() : options.status(); !tried.ok()) {
    payload = tried;
  }
  if (!streams.ok()) payload = streams.status();
  SYNCLINE_ASSIGN_OR_RETURN(
      backends::PeerTable peers,
      backends::PeerTable::Join(*config.store, config.rank, config.size, payload, config.deadline,
                                config.check_peers));
  SYNCLINE_RETURN_IF_ERROR(CheckSettings(peers));
  Sockets sockets;
  sockets.options = *options;
  SYNCLINE_ASSIGN_OR_RETURN(sockets.streams, ChooseStreams(peers));
  sockets.collectives.resize(config.size);
  sockets.messages.resize(config.size);
  if (config.size > 1) {
    SYNCLINE_ASSIGN_OR_RETURN(sockets.abort_event, NewEvent());
    SYNCLINE_ASSIGN_OR_RETURN(sockets.wake_event, NewEvent());
    SYNCLINE_ASSIGN_OR_RETURN(sockets.stop_event, NewEvent());
    backends::GivingUp giving_up(config.store, peers);
    const absl::Status connected = ConnectAll(config, peers, *listener, giving_up, sockets);
    if (!connected.ok()) return giving_up.Tell(connected);
  }
  return std::unique_ptr<TcpConnections>(new TcpConnections(std::move(peers), std::move(sockets)));
}

// A rank connects to those before it, and then accepts those after it. So no ranks wait for each
// other in a circle: rank 0 accepts at once.
absl::Status TcpConnections::ConnectAll(const BackendConfig& config,
                                        const backends::PeerTable& peers,
                                        const backends::Listener& listener,
                                        backends::GivingUp& giving_up, Sockets& sockets) {
  const Deadline& deadline = config.deadline;
  const int own = config.rank, size = config.size, channels = 1 + sockets.streams;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != own) sockets.collectives[peer].resize(sockets.streams);
  }
  const auto stream_of = [&](int peer, int channel) -> tls::Stream& {
    return channel == kMessages ? sockets.messages[peer] : sockets.collectives[peer][channel - 1];
  };
  // Of the ranks that this one is not waiting for as well: one that has given up ends the
  // connections that it has made, and says so in the store.
  const auto check = [&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(peers.CheckAlive());
    if (config.check_peers) SYNCLINE_RETURN_IF_ERROR(config.check_peers());
    for (int peer = 0; peer < size; ++peer) {
      for (int channel = 0; peer != own && channel < channels; ++channel) {
        const tls::Stream& stream = stream_of(peer, channel);
        if (!stream.valid() || !backends::HasEnded(stream.fd())) continue;
        return WithRanks(
            NetworkError(absl::StrCat(peers.Describe(peer), " has given up joining, or died")),
            {peer});
      }
    }
    return giving_up.Check();
  };
  for (int to = 0; to < own; ++to) {
    for (int channel = 0; channel < channels; ++channel) {
      auto stream = backends::IntroduceInSlices(EndpointOf(peers, to), own * channels + channel,
                                                deadline, check, listener.tls().get(),
                                                channel == kMessages ? 0 : channel - 1);
      if (IsInterrupted(stream.status())) return stream.status();
      if (!stream.ok()) {
        // Those of `check` name the rank at fault, which may be another.
        return RanksOf(stream.status()).empty() ? Blame(peers, to, stream.status())
                                                : stream.status();
      }
      stream_of(to, channel) = *std::move(stream);
    }
  }
  const int awaited = (size - 1 - own) * channels;
  backends::RankAcceptor acceptor(listener.sockets(), std::string(listener.secret()), awaited,
                                  listener.tls());
  for (int accepted = 0; accepted < awaited;) {
    auto connection = backends::AcceptInSlices(acceptor, deadline, check);
    if (KindOf(connection.status()) == ErrorKind::kTimeout) {
      std::vector<int> late;
      std::vector<std::string> names;
      for (int from = own + 1; from < size; ++from) {
        bool has_come = true;
        for (int channel = 0; channel < channels; ++channel) {
          has_come = has_come && stream_of(from, channel).valid();
        }
        if (has_come) continue;
        late.push_back(from);
        names.push_back(peers.Describe(from));
      }
      return WithRanks(
          TimeoutError(absl::StrCat(absl::StrJoin(names, ", "), " did not connect within ",
                                    absl::FormatDuration(deadline.timeout()))),
          late);
    }
    SYNCLINE_RETURN_IF_ERROR(connection.status());
    // The number comes from the peer. One that cannot be right is refused, and joining goes on.
    const auto [from, channel] = backends::SplitNumber(connection->rank, channels);
    absl::string_view why = backends::WhyImpossible(from, own, size);
    if (why.empty() && stream_of(from, channel).valid()) why = "that rank has connected already";
    if (!why.empty()) {
      acceptor.LogImpossibleClaim(*connection, absl::StrCat("rank ", from), why);
      SYNCLINE_RETURN_IF_ERROR(check());  // They may come so fast that no wait gets to it.
      continue;
    }
    if (!connection->error.ok()) return Blame(peers, from, connection->error);
    stream_of(from, channel) = std::move(connection->stream);
    ++accepted;
  }
  for (int peer = 0; peer < size; ++peer) {
    for (int channel = 0; peer != own && channel < channels; ++channel) {
      SYNCLINE_RETURN_IF_ERROR(sockets.options.Apply(stream_of(peer, channel).fd()));
    }
  }
  return absl::OkStatus();
}

TcpConnections::TcpConnections(backends::PeerTable peers, Sockets sockets)
    : peers_(std::move(peers)),
      collectives_(peers_, std::move(sockets.collectives), std::move(sockets.abort_event)),
      point_to_point_(peers_, std::move(sockets.messages), std::move(sockets.wake_event)),
      stop_event_(std::move(sockets.stop_event)),
      silence_limit_(sockets.options.silence_limit),
      streams_(sockets.streams) {}

TcpConnections::~TcpConnections() { Leave("it was destroyed"); }

absl::Status TcpConnections::Watch(std::function<void()> on_gone) {
  if (peers_.size() == 1) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(
      watch_, base::StartThread("the watch over connections",
                                [this, on_gone = std::move(on_gone)] { RunWatch(on_gone); }));
  return absl::OkStatus();
}

// Asks the kernel for ended connections alone, so data that arrives for a caller does not wake it.
// A caller may read the end of a connection first, so this compares with what it has told itself.
//
// The end of a peer's messages comes behind those that no receive has taken, and these may fill the
// kernel's buffer, which keeps the end out. So the watch looks at the peer's collectives too, and
// once they have ended it reads the messages as they come.
void TcpConnections::RunWatch(const std::function<void()>& on_gone) {
  size_t told_lost = 0, told_left = 0;
  std::vector<bool> have_collectives_ended(peers_.size(), false);
  while (true) {
    std::vector<pollfd> entries = {{stop_event_.get(), POLLIN, 0}};
    std::vector<int> watched;  // The peer of each entry but the first.
    for (int peer = 0; peer < peers_.size(); ++peer) {
      if (peer == peers_.rank() || !point_to_point_.is_open(peer)) continue;
      const int reads = have_collectives_ended[peer] ? POLLIN : 0;
      entries.push_back({point_to_point_.socket(peer), static_cast<short>(POLLRDHUP | reads), 0});
      watched.push_back(peer);
      if (have_collectives_ended[peer]) continue;
      for (const int socket : collectives_.sockets(peer)) {
        entries.push_back({socket, POLLRDHUP, 0});
        watched.push_back(peer);
      }
    }
    const size_t lost = point_to_point_.lost().size(), left = point_to_point_.left().size();
    if (lost > told_lost || left > told_left) {
      // A rank that leaves waits for the acknowledgement of what it has sent.
      for (const auto& [peer, reason] : point_to_point_.left()) {
        for (const int socket : collectives_.sockets(peer)) backends::AcknowledgeNow(socket);
      }
      // All operations end, whichever peer they wait for: they cannot complete without a lost one.
      if (lost > told_lost) collectives_.Abort();
      told_lost = lost;
      told_left = left;
      on_gone();
      continue;
    }
    const absl::Duration pause = std::min(silence_limit_ / 8, absl::Minutes(1));
    poll(entries.data(), entries.size(), static_cast<int>(absl::ToInt64Milliseconds(pause)) + 1);
    if (entries[0].revents != 0 || point_to_point_.is_aborted()) return;
    EndSilent();
    for (size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      backends::AcknowledgeNow(entries[i].fd);
      const int peer = watched[i - 1];
      if (entries[i].fd != point_to_point_.socket(peer)) have_collectives_ended[peer] = true;
    }
    point_to_point_.ReadAll();
  }
}

std::map<int, std::string> TcpConnections::given_up() const {
  absl::MutexLock lock(&given_up_mutex_);
  return given_up_;
}

void TcpConnections::EndSilent() {
  if (silence_limit_ == absl::InfiniteDuration()) return;
  for (int peer = 0; peer < peers_.size(); ++peer) {
    if (peer == peers_.rank() || !point_to_point_.is_open(peer)) continue;
    const std::vector<int> sockets = SocketsOf(peer);
    const auto is_silent = [&](int socket) { return IsSilent(socket, silence_limit_); };
    if (std::none_of(sockets.begin(), sockets.end(), is_silent)) continue;
    const std::string why = absl::StrCat("not answered for ", absl::FormatDuration(silence_limit_),
                                         " (SYNCLINE_TCP_KEEPALIVE)");
    Log(LogLevel::kWarning, absl::StrCat("the host of ", peers_.Describe(peer), " has ", why));
    {
      absl::MutexLock lock(&given_up_mutex_);
      given_up_[peer] = why;
    }
    shutdown(point_to_point_.socket(peer), SHUT_RDWR);
  }
}

void TcpConnections::EndWatch() {
  if (stop_event_.valid()) eventfd_write(stop_event_.get(), 1);
}

void TcpConnections::AwaitDisconnects(absl::Span<const int> ranks) {
  const Deadline deadline(kDisconnectGrace);
  while (!deadline.Expired() && !point_to_point_.is_aborted()) {
    point_to_point_.ReadAll();
    std::vector<pollfd> entries;
    for (const int rank : ranks) {
      if (!point_to_point_.is_open(rank)) continue;
      if (!collectives_.has_ended(rank) && peers_.LivenessOf(rank) != base::Liveness::kDead) {
        continue;
      }
      entries.push_back({point_to_point_.socket(rank), POLLIN, 0});
    }
    if (entries.empty()) return;
    poll(entries.data(), entries.size(), 10);
  }
}

void TcpConnections::Disconnect() {
  point_to_point_.Abort();
  collectives_.Abort();
  EndWatch();
  // Only shut down, not closed: other threads may be using the descriptors.
  for (const int socket : AllSockets()) shutdown(socket, SHUT_RDWR);
}

void TcpConnections::Leave(absl::string_view reason) {
  if (has_left_) return;
  has_left_ = true;
  EndWatch();
  if (watch_.joinable()) watch_.join();
  if (!point_to_point_.is_aborted()) {
    point_to_point_.SendLeave(reason);
    for (int peer = 0; peer < peers_.size(); ++peer) {
      for (const int socket : collectives_.sockets(peer)) shutdown(socket, SHUT_WR);
    }
    // Now peers look for it, whatever they do.
    point_to_point_.FinishLeave();
    backends::AwaitDelivery(AllSockets(), kLeaveTimeout);
    has_left_in_order_.store(true);
  }
  collectives_.Close();
  point_to_point_.Close();
}

std::vector<int> TcpConnections::SocketsOf(int peer) const {
  std::vector<int> sockets = collectives_.sockets(peer);
  sockets.push_back(point_to_point_.socket(peer));
  sockets.erase(std::remove(sockets.begin(), sockets.end(), -1), sockets.end());
  return sockets;
}

std::vector<int> TcpConnections::AllSockets() const {
  std::vector<int> sockets;
  for (int peer = 0; peer < peers_.size(); ++peer) {
    if (peer == peers_.rank()) continue;
    for (const int socket : SocketsOf(peer)) sockets.push_back(socket);
  }
  return sockets;
}

}  // namespace syncline::tcp
