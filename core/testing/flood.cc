#include "core/testing/flood.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/time/clock.h"

namespace syncline {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(300), kSecond = absl::Seconds(1);
// New connections between two looks at the others.
constexpr int kAtOnce = 200;

// The connection is new, so it has room for little.
bool Say(const base::UniqueFd& socket, const std::string& text) {
  return send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(text.size());
}

}  // namespace

Flood::Flood(int port, int count, absl::string_view slow) : Flood(port, count, slow, nullptr) {}

Flood::Flood(int port, int count, NewTalk new_talk) : Flood(port, count, "", std::move(new_talk)) {}

Flood::Flood(int port, int count, absl::string_view slow, NewTalk new_talk)
    : port_(port),
      slow_(slow),
      new_talk_(std::move(new_talk)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      strangers_(static_cast<size_t>(count)),
      awaited_(count),
      has_tried_(static_cast<size_t>(count)),
      thread_([this] { Run(); }) {}

Flood::~Flood() {
  stops_ = true;
  thread_.join();
}

bool Flood::AwaitAll(absl::Duration limit) const {
  for (const absl::Time end = absl::Now() + limit; awaited_ > 0;) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

void Flood::Run() {
  std::vector<epoll_event> events(1024);
  size_t first = 0;  // In turns, so that each gets to connect.
  while (!stops_) {
    const absl::Time now = absl::Now();
    int connected = 0;
    const size_t begin = first;
    for (size_t step = 0; step < strangers_.size(); ++step) {
      const size_t i = (begin + step) % strangers_.size();
      Stranger& stranger = strangers_[i];
      if (now < stranger.next) continue;
      if (!stranger.socket.valid()) {
        if (connected++ >= kAtOnce) continue;
        Connect(i);
        first = i + 1;
      } else if (stranger.is_connected && !slow_.empty()) {
        const char byte = slow_[stranger.sent % slow_.size()];
        if (send(stranger.socket.get(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) {
          ++stranger.sent;
        }
        stranger.next = now + kSecond;
      }
    }
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 connected > kAtOnce ? 0 : 20);
    for (int i = 0; i < count; ++i) {
      const size_t index = events[i].data.u64;
      Stranger& stranger = strangers_[index];
      if ((events[i].events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0) {
        Close(index);
      } else if (!stranger.is_connected) {
        stranger.is_connected = true;
        stranger.next = absl::Now();
        ++made_;
        epoll_event event = {};
        event.events = EPOLLRDHUP;
        if (new_talk_ != nullptr) {
          event.events |= EPOLLIN;
          stranger.talk = new_talk_();
          Say(stranger.socket, stranger.talk->Begin());
        }
        event.data.u64 = index;
        epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, stranger.socket.get(), &event);
        if (!has_tried_[index]) --awaited_;
        has_tried_[index] = true;
      } else if (!Converse(stranger)) {
        Close(index);
      }
    }
  }
}

bool Flood::Converse(Stranger& stranger) {
  char bytes[512];
  const ssize_t count = recv(stranger.socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (count <= 0) return false;
  stranger.received.append(bytes, static_cast<size_t>(count));
  const std::string answer = stranger.talk->Answer(stranger.received);
  if (answer.empty()) return true;
  ++answered_;
  return Say(stranger.socket, answer);
}

void Flood::Connect(size_t index) {
  Stranger& stranger = strangers_[index];
  stranger = Stranger();
  stranger.socket = base::UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const linger reset = {1, 0};  // Leaves no port behind that is taken for a while.
  setsockopt(stranger.socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  epoll_event event = {};
  event.events = EPOLLOUT | EPOLLRDHUP;
  event.data.u64 = index;
  const bool is_begun =
      connect(stranger.socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EINPROGRESS;
  if (!is_begun || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stranger.socket.get(), &event) != 0) {
    Close(index);
  }
}

void Flood::Close(size_t index) {
  Stranger& stranger = strangers_[index];
  stranger.socket.reset();
  stranger.is_connected = false;
  stranger.next = absl::Now() + kPause;
  if (!has_tried_[index]) --awaited_;
  has_tried_[index] = true;
}

}  // namespace syncline
