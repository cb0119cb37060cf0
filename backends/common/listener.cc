#include "backends/common/listener.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/common/rank_acceptor.h"
#include "core/base/errno_payload.h"
#include "core/base/listening.h"
#include "core/base/resolve.h"
#include "syncline/interrupt.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

constexpr absl::Duration kSlice = absl::Milliseconds(200);
// For connecting at an address beside the first, which stands in for it afterwards.
constexpr absl::Duration kOtherAddressTimeout = absl::Seconds(3);
// How long an address that did not answer then is not tried again: a host has many ranks.
constexpr absl::Duration kSilentFor = absl::Minutes(1);
// A listener of another version, too, ends connections without a word.
constexpr int kTries = 20;
constexpr absl::Duration kFirstPause = absl::Milliseconds(10), kLastPause = absl::Milliseconds(300);

absl::StatusOr<base::SocketAddress> Parse(
    const std::string& address, int port,
    const Deadline& deadline = Deadline(base::kResolveTimeout)) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto addresses, base::Resolve(address, {port}, deadline));
  return addresses.front();
}

// Where a stream goes.
struct Target {
  std::string host;
  int port = 0;
  std::string secret;
};

absl::StatusOr<Target> TargetOf(const std::string& endpoint, int stream) {
  std::vector<std::string> words = absl::StrSplit(endpoint, ' ');
  if (words.size() < 3 || words.size() % 2 == 0 || words[2].size() != kHelloSecretSize) {
    return NetworkError("it does not say where it listens");
  }
  Target target;
  target.secret = words[2];
  words.erase(words.begin() + 2);  // Pairs of an address and a port remain.
  const size_t at = stream % (words.size() / 2) * 2;
  target.host = words[at];
  if (!absl::SimpleAtoi(words[at + 1], &target.port)) {
    return NetworkError("it does not say where it listens");
  }
  return target;
}

// The addresses of other interfaces that do not answer this process: of networks that not all hosts
// have, or that are down. Thread-safe.
class SilentAddresses {
 public:
  static SilentAddresses& OfProcess() {
    static auto* const addresses = new SilentAddresses;
    return *addresses;
  }
  bool Has(const std::string& address) {
    absl::MutexLock lock(&mutex_);
    const auto found = until_.find(address);
    return found != until_.end() && absl::Now() < found->second;
  }
  void Add(const std::string& address) {
    absl::MutexLock lock(&mutex_);
    until_[address] = absl::Now() + kSilentFor;
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, absl::Time> until_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const std::string& address,
                                                         const std::vector<std::string>& more) {
  std::vector<std::string> addresses = {address};
  addresses.insert(addresses.end(), more.begin(), more.end());
  std::vector<Place> places;
  for (const std::string& each : addresses) {
    SYNCLINE_ASSIGN_OR_RETURN(base::SocketAddress own, Parse(each, 0));
    // The port is free, because several groups may listen on one address.
    absl::StatusOr<base::UniqueFd> socket = base::ListenOn(own);
    if (!socket.ok()) {
      return Annotate(socket.status(), absl::StrCat("cannot listen on address '", each, "'"));
    }
    places.push_back({*std::move(socket), each, base::PortOf(own)});
  }
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<tls::Context> tls, tls::Context::FromEnvironment());
  return std::unique_ptr<Listener>(new Listener(std::move(places), std::move(tls)));
}

Listener::Listener(std::vector<Place> places, std::shared_ptr<tls::Context> tls)
    : places_(std::move(places)), secret_(NewHelloSecret()), tls_(std::move(tls)) {}

std::string Listener::endpoint() const {
  std::string text;
  for (size_t i = 0; i < places_.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " ", places_[i].address, " ", places_[i].port);
    if (i == 0) absl::StrAppend(&text, " ", secret_);
  }
  return text;
}

std::vector<int> Listener::sockets() const {
  std::vector<int> sockets;
  for (const Place& place : places_) sockets.push_back(place.socket.get());
  return sockets;
}

absl::StatusOr<Introduction> ConnectToListener(const std::string& endpoint, int number,
                                               const Deadline& deadline, tls::Context* tls,
                                               int stream, const PeerCheck& check) {
  SYNCLINE_ASSIGN_OR_RETURN(const Target target, TargetOf(endpoint, stream));
  SYNCLINE_ASSIGN_OR_RETURN(const base::SocketAddress address,
                            Parse(target.host, target.port, deadline));
  SYNCLINE_ASSIGN_OR_RETURN(base::UniqueFd socket, base::BeginConnect(address, SOCK_STREAM));
  SYNCLINE_RETURN_IF_ERROR(WaitInSlices(
      deadline, [&] { return check ? check() : absl::OkStatus(); },
      [&](const Deadline& slice) { return base::FinishConnect(socket.get(), slice); }));
  std::unique_ptr<tls::Session> session;
  if (tls != nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(session,
                              tls->Connect(TlsPurpose(target.secret, number), target.host));
  }
  return Introduction::Begin(std::move(socket), target.secret, number, deadline,
                             std::move(session));
}

absl::Status WaitInSlices(const Deadline& deadline, absl::FunctionRef<absl::Status()> check,
                          absl::FunctionRef<absl::Status(const Deadline& slice)> wait) {
  while (true) {
    const absl::Status status = wait(Deadline(std::min(deadline.Remaining(), kSlice)));
    if (KindOf(status) != ErrorKind::kTimeout) return status;
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
    SYNCLINE_RETURN_IF_ERROR(check());
    if (deadline.Expired()) return status;
  }
}

absl::StatusOr<tls::Stream> IntroduceInSlices(const std::string& endpoint, int number,
                                              const Deadline& deadline,
                                              absl::FunctionRef<absl::Status()> check,
                                              tls::Context* tls, int stream) {
  SYNCLINE_ASSIGN_OR_RETURN(const Target target, TargetOf(endpoint, stream));
  SilentAddresses& silent = SilentAddresses::OfProcess();
  // The first address leads to the same listener.
  if (stream != 0 && silent.Has(target.host)) stream = 0;
  absl::Duration pause = kFirstPause;
  for (int tries = 1;; ++tries) {
    absl::Status checked;
    auto caller = ConnectToListener(
        endpoint, number,
        stream == 0 ? deadline : Deadline(std::min(deadline.Remaining(), kOtherAddressTimeout)),
        tls, stream, [&] { return checked = check(); });
    SYNCLINE_RETURN_IF_ERROR(checked);
    if (IsInterrupted(caller.status())) return caller.status();
    if (!caller.ok() && stream != 0) {
      const bool took_long = KindOf(caller.status()) == ErrorKind::kTimeout;
      if (took_long) silent.Add(target.host);
      Log(LogLevel::kWarning,
          absl::StrCat("stream ", stream, " of several cannot connect to ", target.host, " (",
                       caller.status().message(), "): it takes the first interface of that host",
                       took_long ? ", as such streams do for a minute" : ""));
      stream = 0;
      continue;
    }
    // The listener may have ended the connection before this rank has greeted.
    const int error = base::ErrnoOf(caller.status());
    bool was_dropped = error == EPIPE || error == ECONNRESET;
    absl::Status status = caller.status();
    if (status.ok()) {
      status = WaitInSlices(deadline, check,
                            [&](const Deadline& slice) { return caller->Finish(slice); });
      was_dropped = caller->was_dropped();
    }
    if (status.ok()) return caller->TakeStream();
    if (KindOf(status) == ErrorKind::kTimeout) {
      return TimeoutError(
          absl::StrCat("it did not answer within ", absl::FormatDuration(deadline.timeout())));
    }
    if (!was_dropped || tries == kTries || deadline.Expired()) return status;
    SYNCLINE_RETURN_IF_ERROR(check());
    SYNCLINE_RETURN_IF_ERROR(SleepInterruptibly(std::min(pause, deadline.Remaining())));
    pause = std::min(2 * pause, kLastPause);
  }
}

absl::StatusOr<RankAcceptor::Connection> AcceptInSlices(RankAcceptor& acceptor,
                                                        const Deadline& deadline,
                                                        absl::FunctionRef<absl::Status()> check) {
  RankAcceptor::Connection connection;
  SYNCLINE_RETURN_IF_ERROR(
      WaitInSlices(deadline, check, [&](const Deadline& slice) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(connection, acceptor.Accept(slice));
        return absl::OkStatus();
      }));
  return connection;
}

bool HasEnded(int socket) {
  pollfd entry = {socket, POLLRDHUP, 0};
  return poll(&entry, 1, 0) == 1;
}

}  // namespace syncline::backends
