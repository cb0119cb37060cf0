#include "store/tcp/tcp_acceptor.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/sockets.h"
#include "core/base/thread.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::tcp_store {
namespace {

using store::Listener;

// What epoll reports of: the eventfd, the listeners (kFirstListener + index), and connections by
// their numbers.
constexpr uint64_t kStop = 0;
constexpr uint64_t kFirstListener = 1;
constexpr uint64_t kFirstConnection = 1 << 16;

constexpr int kMaxEvents = 256;
// Then those that wait to be heard have their turn.
constexpr int kAcceptsInARow = 64;
// How long to wait for a descriptor where only clients of the job hold any.
constexpr absl::Duration kPause = absl::Milliseconds(100);
constexpr absl::Duration kLogInterval = absl::Seconds(5);

absl::Status CannotWatch() {
  return NetworkError(absl::StrCat("cannot watch for connections: ", std::strerror(errno)));
}

bool Watch(const base::UniqueFd& epoll, int fd, uint64_t number) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = number;
  return epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void Unwatch(const base::UniqueFd& epoll, int fd) {
  epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
}

// Sockets inherit from their listener that close() resets the connection, at once and without a
// port in TIME_WAIT, and that what is unsent is lost. Those of clients close as usual.
void SetResetOnClose(const base::UniqueFd& socket, bool reset) {
  const linger option = {reset ? 1 : 0, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &option, sizeof(option));
}

// The kernel keeps a connection for its first second to itself until the client has said something,
// as clients of the job do at once. So one who only connects, and connects again, costs nothing
// here.
void SetDeferAccept(const base::UniqueFd& listener) {
  const int seconds = 1;
  setsockopt(listener.get(), IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof(seconds));
}

// "10.0.0.7:4711".
std::string PeerOf(const base::UniqueFd& socket) {
  base::SocketAddress address;
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  if (getpeername(socket.get(), address.get(), &address.length) != 0 ||
      getnameinfo(address.get(), address.length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "a client that has left";
  }
  return absl::StrCat(host, ":", port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TCPAcceptor>> TCPAcceptor::Start(Listener listener, Options options,
                                                                ConnectionHandler handler) {
  std::unique_ptr<TCPAcceptor> acceptor(
      new TCPAcceptor(std::move(listener), std::move(options), std::move(handler)));
  SYNCLINE_RETURN_IF_ERROR(acceptor->Open());
  return acceptor;
}

TCPAcceptor::TCPAcceptor(Listener listener, Options options, ConnectionHandler handler)
    : options_(std::move(options)), handler_(std::move(handler)), listener_(std::move(listener)) {}

absl::Status TCPAcceptor::Open() {
  epoll_ = base::UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  stop_ = base::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !stop_.valid() || !Watch(epoll_, stop_.get(), kStop)) {
    return CannotWatch();
  }
  for (size_t i = 0; i < listener_.sockets.size(); ++i) {
    SetResetOnClose(listener_.sockets[i], true);
    SetDeferAccept(listener_.sockets[i]);
    if (!Watch(epoll_, listener_.sockets[i].get(), kFirstListener + i)) return CannotWatch();
  }
  last_number_ = last_heard_ = kFirstConnection;
  SYNCLINE_ASSIGN_OR_RETURN(thread_, base::StartThread("connections", [this] { Run(); }));
  return absl::OkStatus();
}

TCPAcceptor::~TCPAcceptor() { Shutdown(); }

void TCPAcceptor::Shutdown() {
  if (thread_.joinable()) {
    eventfd_write(stop_.get(), 1);
    thread_.join();
  }
  strangers_.clear();
  greeted_.clear();
  num_unproved_ = 0;
  listener_.sockets.clear();
}

void TCPAcceptor::Run() {
  std::array<epoll_event, kMaxEvents> events;
  while (true) {
    const int count = epoll_wait(epoll_.get(), events.data(), kMaxEvents, PollTimeout());
    if (count < 0 && errno != EINTR) {
      LogSometimes(absl::StrCat("can accept no more connections: ", std::strerror(errno)));
      return;
    }
    // Connections first: what they have said may keep them from being closed for new ones.
    for (int i = 0; i < count; ++i) {
      const uint64_t number = events[i].data.u64;
      if (number == kStop) return;
      for (Connections* const connections : {&strangers_, &greeted_}) {
        const auto at = connections->find(number);
        if (at == connections->end()) continue;
        Advance(*connections, at);
        break;
      }
    }
    bool has_time = true;
    for (int i = 0; i < count; ++i) {
      const uint64_t number = events[i].data.u64;
      if (number < kFirstConnection && !resume_.has_value()) {
        has_time &= AcceptFrom(listener_.sockets[number - kFirstListener].get());
      }
    }
    if (has_time) HearNewcomers();
    CloseExpired(strangers_);
    CloseExpired(greeted_);
    if (resume_.has_value() && resume_->Expired()) {
      resume_.reset();
      WatchListeners(true);
    }
    num_unproved_.store(static_cast<int64_t>(strangers_.size() + greeted_.size()),
                        std::memory_order_relaxed);
  }
}

int TCPAcceptor::PollTimeout() const {
  absl::Duration left = absl::InfiniteDuration();
  for (const Connections* const connections : {&strangers_, &greeted_}) {
    if (connections->empty()) continue;
    left = std::min(left, connections->begin()->second.deadline.Remaining());
  }
  if (resume_.has_value()) left = std::min(left, resume_->Remaining());
  if (left == absl::InfiniteDuration()) return -1;
  // Rounded up, or the last millisecond would be spent spinning.
  return static_cast<int>(std::min<int64_t>(
      absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))), 60'000));
}

// While more connect than this thread can look after, a connection costs three system calls: to
// accept it, to hear it before it is closed as the oldest, and to close it. Strangers pay more for
// it.
bool TCPAcceptor::AcceptFrom(int listener) {
  for (int i = 0; i < kAcceptsInARow; ++i) {
    absl::StatusOr<base::UniqueFd> accepted = base::TryAccept(listener);
    if (!accepted.ok() && !strangers_.empty()) {
      CloseOldest(strangers_, "it had proved nothing, and there are no more descriptors");
      continue;
    }
    if (!accepted.ok()) {
      PauseAccepting(accepted.status());
      return true;
    }
    if (!accepted->valid()) return true;
    Add(*std::move(accepted));
  }
  return false;
}

void TCPAcceptor::Add(base::UniqueFd socket) {
  if (strangers_.size() == kMaxStrangers) {
    Advance(strangers_, strangers_.begin());  // It may have said hello meanwhile.
  }
  if (strangers_.size() == kMaxStrangers) {
    CloseOldest(strangers_, "it had proved nothing, and others came");
  }
  Unproved connection{std::move(socket), Deadline(options_.time_to_prove), {}};
  strangers_.emplace_hint(strangers_.end(), ++last_number_, std::move(connection));
}

// Hears what has come from the new connections, and has epoll report what comes later.
void TCPAcceptor::HearNewcomers() {
  for (auto next = strangers_.upper_bound(last_heard_); next != strangers_.end();) {
    const auto at = next++;
    Unproved& connection = at->second;
    connection.watched = Watch(epoll_, connection.socket.get(), at->first);
    if (connection.watched) {
      Advance(strangers_, at);
    } else {
      LogSometimes(absl::StrCat("cannot watch a connection: ", std::strerror(errno)));
      Remove(strangers_, at);
    }
  }
  last_heard_ = last_number_;
}

void TCPAcceptor::Advance(Connections& from, Connections::iterator at) {
  Unproved& connection = at->second;
  const bool had_greeted = connection.greeted;
  switch (Receive(connection)) {
    case Step::kWait:
      break;
    case Step::kAdmit:
      SetResetOnClose(connection.socket, false);
      base::SetNoDelay(connection.socket.get());  // gRPC does not, where it has not accepted it.
      return handler_(Remove(from, at));
    case Step::kClose:
      Remove(from, at);
      return;
  }
  if (connection.greeted == had_greeted) return;
  if (!connection.watched) {
    connection.watched = Watch(epoll_, connection.socket.get(), at->first);
    if (!connection.watched) {
      Remove(from, at);
      return;
    }
  }
  greeted_.insert(from.extract(at));
  const size_t limit = options_.secret.empty() ? kMaxGreetedWithoutSecret : kMaxGreeted;
  if (greeted_.size() > limit) CloseOldest(greeted_, "it did not go on, and others came");
}

// Not by closing alone: a fork()ed child that has the descriptor keeps it in the epoll set.
tls::Stream TCPAcceptor::Remove(Connections& from, Connections::iterator at) {
  if (at->second.watched) Unwatch(epoll_, at->second.socket.get());
  tls::Stream stream(std::move(at->second.socket), std::move(at->second.session));
  from.erase(at);
  return stream;
}

// Reads the message that is due and not a byte more: what follows is not for this class.
TCPAcceptor::Step TCPAcceptor::Receive(Unproved& connection) {
  while (true) {
    if (connection.session != nullptr) return Encrypt(connection);
    const size_t size = connection.greeted ? kResponseBytes : kHelloBytes;
    const ssize_t count = recv(connection.socket.get(), connection.message + connection.received,
                               size - connection.received, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Step::kWait;
    if (count <= 0) return Step::kClose;  // It has left.
    connection.received += static_cast<size_t>(count);
    if (!connection.greeted &&
        !ServerHandshake::CanBeHello({connection.message, connection.received})) {
      LogRefusal(connection.socket, "it did not begin with a proof of the job's secret");
      return Step::kClose;
    }
    if (connection.received < size) continue;
    const Step step = connection.greeted ? ExamineResponse(connection) : ExamineHello(connection);
    if (step != Step::kWait) return step;
    connection.received = 0;
  }
}

TCPAcceptor::Step TCPAcceptor::ExamineHello(Unproved& connection) {
  using Answer = ServerHandshake::Answer;
  const ServerHandshake::Challenge challenge =
      connection.handshake.AnswerHello(options_.secret, {connection.message, kHelloBytes}, mode());
  // There is room for so little in the buffer of a new connection, or something is wrong with it.
  const ssize_t sent = send(connection.socket.get(), challenge.message.data(),
                            challenge.message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (challenge.answer == Answer::kRefused) {
    SetResetOnClose(connection.socket, false);  // The client is to read why.
    LogRefusal(connection.socket, "its job secret is missing or does not match");
    return Step::kClose;
  }
  if (challenge.answer == Answer::kOtherMode) {
    SetResetOnClose(connection.socket, false);
    LogRefusal(connection.socket, absl::StrCat("its SYNCLINE_TLS is not ", tls::ModeName(mode()),
                                               ", as that of this job is"));
    return Step::kClose;
  }
  if (sent != static_cast<ssize_t>(challenge.message.size())) return Step::kClose;
  connection.greeted = true;
  return challenge.answer == Answer::kOpen ? BeginEncryption(connection) : Step::kWait;
}

TCPAcceptor::Step TCPAcceptor::ExamineResponse(Unproved& connection) {
  if (connection.handshake.Accepts({connection.message, kResponseBytes})) {
    return BeginEncryption(connection);
  }
  LogRefusal(connection.socket, "it did not answer the challenge with a proof of the job's secret");
  return Step::kClose;
}

TCPAcceptor::Step TCPAcceptor::BeginEncryption(Unproved& connection) {
  if (options_.tls == nullptr) return Step::kAdmit;
  auto session = options_.tls->Accept(kTlsPurpose);
  if (!session.ok()) {
    LogRefusal(connection.socket, session.status().message());
    return Step::kClose;
  }
  connection.session = *std::move(session);
  return Step::kWait;
}

TCPAcceptor::Step TCPAcceptor::Encrypt(Unproved& connection) {
  const absl::StatusOr<bool> is_complete = connection.session->Handshake(connection.socket.get());
  if (is_complete.ok()) return *is_complete ? Step::kAdmit : Step::kWait;
  SetResetOnClose(connection.socket, false);  // The client is to read why.
  LogRefusal(connection.socket, is_complete.status().message());
  return Step::kClose;
}

tls::Mode TCPAcceptor::mode() const {
  return options_.tls == nullptr ? tls::Mode::kOff : options_.tls->mode();
}

void TCPAcceptor::CloseOldest(Connections& connections, absl::string_view why) {
  const auto oldest = connections.begin();
  LogRefusal(oldest->second.socket, why);
  Remove(connections, oldest);
}

void TCPAcceptor::CloseExpired(Connections& connections) {
  while (!connections.empty() && connections.begin()->second.deadline.Expired()) {
    CloseOldest(connections, absl::StrCat("it did not prove who it is within ",
                                          absl::FormatDuration(options_.time_to_prove)));
  }
}

void TCPAcceptor::PauseAccepting(const absl::Status& why) {
  LogSometimes(absl::StrCat("accepts no connections for now: ", why.message()));
  WatchListeners(false);  // Or a connection that is pending would wake the thread at once.
  resume_ = Deadline(kPause);
}

void TCPAcceptor::WatchListeners(bool watch) {
  for (size_t i = 0; i < listener_.sockets.size(); ++i) {
    const int fd = listener_.sockets[i].get();
    if (!watch) {
      Unwatch(epoll_, fd);
    } else if (!Watch(epoll_, fd, kFirstListener + i) && errno != EEXIST) {
      resume_ = Deadline(kPause);
    }
  }
}

void TCPAcceptor::LogRefusal(const base::UniqueFd& socket, absl::string_view why) {
  if (log_again_.has_value() && !log_again_->Expired()) {
    ++num_unlogged_;  // Without the cost of the text.
    return;
  }
  LogSometimes(absl::StrCat("refused ", PeerOf(socket), ": ", why));
}

void TCPAcceptor::LogSometimes(absl::string_view message) {
  if (log_again_.has_value() && !log_again_->Expired()) {
    ++num_unlogged_;
    return;
  }
  log_again_ = Deadline(kLogInterval);
  const std::string others =
      num_unlogged_ == 0 ? "" : absl::StrCat(" (and ", num_unlogged_, " more such events before)");
  num_unlogged_ = 0;
  LogInBackground(LogLevel::kWarning, absl::StrCat("store ", options_.name, ": ", message, others));
}

}  // namespace syncline::tcp_store
