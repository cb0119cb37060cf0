// What a tcp store's calls cost, and how long a job of many clients takes to join it: alone, and
// beside a stranger who renews its connections without pause.
//
//   ./bazelw run //benchmarks:tcp_store [CLIENTS] [ROUNDS]
//
// A stranger also takes processor time. So the last figure is of a stranger who does the same to
// another server of this host: what is above it, is what strangers do to this store.
#include "syncline/tcp_store.h"

#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "store/tcp/tcp_server.h"

namespace syncline {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kSecret[] = "a secret that all processes of the benchmark know";
constexpr char kServe[] = "--serve";
constexpr char kRenew[] = "--renew";
constexpr size_t kHeld = 1000;
constexpr int kThreads = 32;

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

int Serve() {
  tcp_store::TCPServer::Options options;
  options.secret = kSecret;
  auto server = tcp_store::TCPServer::Start(options);
  Require(server.status());
  std::printf("%d\n", (*server)->port());
  std::fflush(stdout);
  while (true) pause();
}

int Renew(int port) {
  std::deque<int> held;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const linger reset = {1, 0};  // No port is left in TIME_WAIT.
  while (true) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return 1;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      close(fd);
      continue;
    }
    held.push_back(fd);
    if (held.size() <= kHeld) continue;
    close(held.front());
    held.pop_front();
  }
}

// This program in a process of its own, until this is destroyed.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    arguments.insert(arguments.begin(), "/proc/self/exe");
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(&argument[0]);
    pointers.push_back(nullptr);
    if (posix_spawn(&pid_, pointers[0], &actions, nullptr, pointers.data(), environ) != 0) {
      std::abort();
    }
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    output_ = ends[0];
  }
  ~Process() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(output_);
  }

  int ReadPort() const {
    char line[16] = {};
    int port = 0;
    if (read(output_, line, sizeof(line) - 1) <= 0 || !absl::SimpleAtoi(line, &port)) std::abort();
    return port;
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

std::shared_ptr<TCPStore> Join(int port) {
  TCPStore::Options options;
  options.port = port;
  options.secret = kSecret;
  auto store = TCPStore::Create(options);
  Require(store.status());
  return *std::move(store);
}

// Seconds until `count` clients have joined and each has set a key.
double TimeToJoin(int port, int count) {
  std::vector<std::shared_ptr<TCPStore>> stores(count);
  std::vector<std::thread> threads;
  const auto begin = Clock::now();
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int rank = i; rank < count; rank += kThreads) {
        stores[rank] = Join(port);
        Require(stores[rank]->Set(absl::StrCat("rank/", rank), "here"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void MeasureJoins(int count, int rounds) {
  std::vector<double> alone, beside, elsewhere;
  for (int round = 0; round < rounds; ++round) {
    for (const bool is_beside : {false, true}) {
      const Process server({kServe}), other({kServe});
      const int port = server.ReadPort(), other_port = other.ReadPort();
      if (is_beside) alone.push_back(TimeToJoin(port, count));
      const Process stranger({kRenew, absl::StrCat(is_beside ? port : other_port)});
      (is_beside ? beside : elsewhere).push_back(TimeToJoin(port, count));
    }
  }
  const double base = Median(alone);
  std::printf("%d clients join:                %8.3f s\n", count, base);
  std::printf("beside a stranger:                %8.3f s  %5.2f times\n", Median(beside),
              Median(beside) / base);
  std::printf("beside a stranger of another:     %8.3f s  %5.2f times\n", Median(elsewhere),
              Median(elsewhere) / base);
  std::printf("what strangers do to this store:             %5.2f times\n",
              Median(beside) / Median(elsewhere));
}

// Microseconds of one call, the median of some rounds.
double CostOf(const std::function<absl::Status()>& call) {
  constexpr int kRounds = 21, kCalls = 1000;
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) Require(call());
    const std::chrono::duration<double, std::micro> taken = Clock::now() - begin;
    rounds.push_back(taken.count() / kCalls);
  }
  return Median(rounds);
}

void MeasureCalls() {
  const Process server({kServe});
  const int port = server.ReadPort();
  const auto store = Join(port);
  const std::string value(64, 'x');
  std::printf("set: %6.1f us\n", CostOf([&] { return store->Set("key", value); }));
  std::printf("get: %6.1f us\n",
              CostOf([&] { return store->Get("key", absl::Minutes(1)).status(); }));
  std::printf("add: %6.1f us\n", CostOf([&] { return store->Add("sum", 1).status(); }));

  constexpr int kClients = 16, kCalls = 2000;
  std::vector<std::shared_ptr<TCPStore>> stores;
  for (int i = 0; i < kClients; ++i) stores.push_back(Join(port));
  std::vector<std::thread> threads;
  const auto begin = Clock::now();
  for (const auto& client : stores) {
    threads.emplace_back([&client] {
      for (int i = 0; i < kCalls; ++i) Require(client->Add("sum", 1).status());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> taken = Clock::now() - begin;
  std::printf("%d clients: %.0f adds a second\n", kClients, kClients * kCalls / taken.count());
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  using namespace syncline;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  if (argc == 2 && absl::string_view(argv[1]) == kServe) return Serve();
  if (argc == 3 && absl::string_view(argv[1]) == kRenew) return Renew(std::atoi(argv[2]));
  MeasureCalls();
  MeasureJoins(argc > 1 ? std::atoi(argv[1]) : 1000, argc > 2 ? std::atoi(argv[2]) : 5);
  return 0;
}
