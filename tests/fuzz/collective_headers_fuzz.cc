// What peers send on the connections of backend tcp for collectives.
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "backends/tcp/collective_sockets.h"
#include "core/testing/fuzz/fuzz.h"
#include "syncline/deadline.h"
#include "tests/fuzz/peers.h"

namespace syncline::fuzz {
namespace {

// One rank's connections, and the other ends.
class Rank {
 public:
  Rank()
      : sockets_(Peers(), connections_.TakeLists(),
                 base::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {}

  tcp::CollectiveSockets& sockets() { return sockets_; }
  const base::UniqueFd& end_of(int peer) const { return connections_.others[peer]; }

 private:
  Connections connections_;
  tcp::CollectiveSockets sockets_;
};

// The messages of these sizes as a rank sends them, filled with `fill`.
std::string Sent(const std::vector<size_t>& sizes, char fill) {
  Rank rank;
  const Deadline deadline(absl::Minutes(1));
  tcp::TcpTransport transport(rank.sockets(), 0, kRanks, deadline);
  const auto messages = transport.NewMessages();
  std::vector<std::string> bodies;
  for (const size_t size : sizes) bodies.emplace_back(size, fill);
  for (const std::string& body : bodies) messages->Send(1, body.data(), body.size());
  Require(messages->Wait().ok(), "there is room");
  return ReadAll(rank.end_of(1));
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  Rank rank;
  std::string sent[kRanks];
  for (int peer = 1; peer < kRanks; ++peer) {
    sent[peer] = std::string(reader.Text());
    Write(rank.end_of(peer), sent[peer]);
    shutdown(rank.end_of(peer).get(), SHUT_WR);  // So nothing is waited for.
  }
  const Deadline deadline(absl::Minutes(1));
  tcp::TcpTransport transport(rank.sockets(), 0, kRanks, deadline);
  // Each receive's memory is as long as it says, so that a sanitizer sees what goes beyond.
  struct Receive {
    int peer;
    std::unique_ptr<char[]> memory;
    size_t size;
  };
  std::vector<Receive> receives;
  for (int sets = 1 + reader.Below(3); sets > 0; --sets) {
    const auto messages = transport.NewMessages();
    for (int count = reader.Below(6); count > 0; --count) {
      const int peer = 1 + reader.Below(kRanks - 1);
      const size_t size = reader.Byte();
      receives.push_back({peer, std::make_unique<char[]>(size), size});
      messages->Receive(peer, receives.back().memory.get(), size);
    }
    if (!messages->Wait().ok()) return;
  }
  // All has come, so it was in order: a header, and what it announces.
  for (const Receive& receive : receives) {
    if (receive.size == 0) continue;
    std::string& bytes = sent[receive.peer];
    constexpr size_t kHeader = 16;
    uint64_t announced = 0;
    Require(bytes.size() >= kHeader + receive.size, "nothing is taken that has not come");
    std::memcpy(&announced, bytes.data() + 8, sizeof(announced));
    Require(announced == receive.size, "a message has the length of its header");
    Require(bytes.compare(kHeader, receive.size, receive.memory.get(), receive.size) == 0,
            "a message has the bytes that were sent");
    bytes.erase(0, kHeader + receive.size);
  }
}

std::vector<std::string> Seeds() {
  // A set of receives from rank 1.
  const auto set = [](const std::vector<char>& sizes) {
    std::string text = {static_cast<char>(sizes.size())};
    for (const char size : sizes) text += {0, size};
    return text;
  };
  const std::string one_set(1, '\0'), no_bytes = Text("");
  const std::string one = Sent({5}, 'a'), three = Sent({1, 100, 7}, 'b');
  return {
      Text(one) + no_bytes + one_set + set({5}),
      Text(three) + no_bytes + one_set + set({1, 100, 7}),
      Text(one) + no_bytes + one_set + set({6}),                       // Another length.
      Text(three.substr(0, 60)) + no_bytes + one_set + set({1, 100}),  // Cut off.
      Text(one + three) + no_bytes + "\2" + set({5}) + set({1, 100}) + set({7}),
  };
}

}  // namespace syncline::fuzz
