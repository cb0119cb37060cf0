// Operations on tensors of devices over backend nccl, beside a plain loop over the same NCCL on the
// same buffers, in turns.
//
//   ./bazelw run //benchmarks/cuda:collectives -- --ranks=2 [--processes] [--max_bytes=268435456]
//       [--operations=all_reduce,...] [--seconds=0.1]
//
// Prints tables in Markdown. Ranks are threads of one process, or processes; rank r is on device r,
// as far as there are enough. Several ranks on one device need NCCL 2.30 or later and
// NCCL_MULTI_RANK_GPU_ENABLE=1.
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "backends/nccl/nccl_library.h"
#include "core/device/device_runtime.h"
#include "syncline/device_memory.h"
#include "syncline/file_store.h"
#include "syncline/hash_store.h"
#include "syncline/prefix_store.h"
#include "syncline/process_group.h"
#include "syncline/status.h"
#include "syncline/stream.h"

ABSL_FLAG(int, ranks, 1, "how many ranks");
ABSL_FLAG(bool, processes, false, "ranks are processes, not threads");
ABSL_FLAG(int64_t, max_bytes, int64_t{256} << 20, "the largest size");
ABSL_FLAG(double, seconds, 0.1, "for each operation, size and system, about");
ABSL_FLAG(std::string, operations, "", "some of them, separated by commas; none: all");

namespace syncline {
namespace {

using Clock = std::chrono::steady_clock;
using device::DeviceRuntime;

constexpr int kRounds = 9;
constexpr int kMostCalls = 30;  // In a row: sums of 4 ranks stay finite.
constexpr absl::Duration kTimeout = absl::Minutes(2);

enum class Operation {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kSendRecv,
};

struct Name {
  Operation operation;
  const char* name;
};
constexpr Name kNames[] = {
    {Operation::kAllReduce, "all_reduce"},
    {Operation::kBroadcast, "broadcast"},
    {Operation::kReduce, "reduce"},
    {Operation::kAllGather, "all_gather"},
    {Operation::kReduceScatter, "reduce_scatter"},
    {Operation::kAllToAll, "all_to_all"},
    {Operation::kGather, "gather"},
    {Operation::kScatter, "scatter"},
    {Operation::kSendRecv, "send_recv"},
};

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::_Exit(1);  // Other ranks may be threads that wait for this one.
}

void Require(const absl::Status& status) {
  if (!status.ok()) Die(status.ToString());
}

template <typename T>
T Require(absl::StatusOr<T> result) {
  Require(result.status());
  return *std::move(result);
}

// What nccl-tests multiplies size / time with, so that figures of several world sizes compare with
// the hardware's.
double BusFactor(Operation operation, int ranks) {
  const double n = ranks;
  switch (operation) {
    case Operation::kAllReduce:
      return 2 * (n - 1) / n;
    case Operation::kAllGather:
    case Operation::kReduceScatter:
    case Operation::kAllToAll:
    case Operation::kGather:
    case Operation::kScatter:
      return (n - 1) / n;
    default:
      return 1;
  }
}

// Whether the size is that of all ranks' parts together.
bool HasParts(Operation operation) {
  return operation != Operation::kAllReduce && operation != Operation::kBroadcast &&
         operation != Operation::kReduce && operation != Operation::kSendRecv;
}

// Element i of what rank r begins with.
float Element(int64_t i, int rank) { return static_cast<float>(i % 64 + rank); }

// One rank's end of all that is measured.
class Rank {
 public:
  Rank(std::shared_ptr<Store> store, int rank, int ranks)
      : rank_(rank), ranks_(ranks), runtime_(*Require(DeviceRuntime::Get())) {
    device_ = {DeviceType::kCuda, rank % runtime_.device_count()};
    stream_ = Require(runtime_.MakeStream(device_));
    bytes_ = absl::GetFlag(FLAGS_max_bytes);
    const int64_t count = bytes_ / 4;
    for (Tensor* const tensor : {&pattern_, &in_, &out_}) {
      *tensor = Require(EmptyOnDevice(device_, DType::kFloat32, {count}));
    }
    const Tensor host = Tensor::Zeros(DType::kFloat32, {count});
    for (int64_t i = 0; i < count; ++i) host.data_as<float>()[i] = Element(i, rank);
    Require(runtime_.Copy(pattern_.data(), host.data(), host.nbytes(), *stream_));
    Synchronize();
    host_ = Group(store, "host", "shm", MismatchCheck::kOff);
    compared_ = Group(store, "compared", "nccl", MismatchCheck::kOn);
    uncompared_ = Group(store, "uncompared", "nccl", MismatchCheck::kOff);
    api_ = Require(nccl::LoadNccl());
    MakePlain(*store);
  }

  ~Rank() {
    host_->Barrier().IgnoreError();
    {
      const DeviceRuntime::ContextScope scope(runtime_, device_);
      api_->comm_destroy(comm_);
    }
    compared_->Close();
    uncompared_->Close();
    host_->Barrier().IgnoreError();
    host_->Close();
  }

  void Run() {
    const StreamScope scope(*stream_);
    const DeviceRuntime::ContextScope context(runtime_, device_);
    Require(context.status());
    const std::vector<std::string> chosen =
        absl::StrSplit(absl::GetFlag(FLAGS_operations), ',', absl::SkipEmpty());
    Say(Head());
    for (const auto& [operation, name] : kNames) {
      if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), name) == chosen.end()) {
        continue;
      }
      if (operation == Operation::kSendRecv && ranks_ == 1) continue;
      Say(absl::StrCat("\n### ", name, "\n\n",
                       "| bytes | NCCL us | ours | not compared | ours / NCCL | NCCL bus GB/s | "
                       "ours | NCCL host us | ours | not compared |\n"
                       "|---|---|---|---|---|---|---|---|---|---|\n"));
      for (int64_t bytes = 4; bytes <= bytes_; bytes *= 16) Measure(operation, name, bytes);
      if (bytes_ == int64_t{256} << 20) Measure(operation, name, bytes_);
    }
  }

 private:
  enum System { kPlain, kCompared, kUncompared, kSystems };
  struct Cost {
    double all_us = 0;   // Of one of several calls in a row, until the device is done.
    double host_us = 0;  // Until it returns.
  };

  std::shared_ptr<ProcessGroup> Group(const std::shared_ptr<Store>& store, const std::string& name,
                                      const std::string& backend, MismatchCheck check) const {
    ProcessGroup::Options options;
    options.backend = backend;
    options.store = std::make_shared<PrefixStore>(name, store);
    options.rank = rank_;
    options.size = ranks_;
    options.timeout = kTimeout;
    options.name = name;
    options.mismatch_check = check;
    return Require(ProcessGroup::Create(options));
  }

  void Nccl(nccl::NcclResult result, const char* what) const {
    if (result == nccl::kNcclSuccess) return;
    Die(absl::StrCat(what, ": ", api_->get_error_string(result), " ",
                     api_->get_last_error(nullptr)));
  }

  void MakePlain(Store& store) {
    const DeviceRuntime::ContextScope scope(runtime_, device_);
    Require(scope.status());
    nccl::NcclUniqueId id;
    if (rank_ == 0) {
      Nccl(api_->get_unique_id(&id), "ncclGetUniqueId");
      Require(store.Set("plain", absl::string_view(id.internal, sizeof id.internal)));
    }
    const std::string bytes = Require(store.Get("plain", kTimeout));
    std::copy(bytes.begin(), bytes.end(), id.internal);
    Nccl(api_->comm_init_rank(&comm_, ranks_, id, rank_), "ncclCommInitRank");
  }

  std::string Head() const {
    const char* const library = std::getenv("SYNCLINE_CUDA_LIBRARY");
    void* const handle = library == nullptr ? nullptr : dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    const bool is_simulated = handle != nullptr && dlsym(handle, "fake_cuda_calls") != nullptr;
    return absl::StrCat(
        is_simulated ? "**On simulated devices: the times say nothing.**\n\n" : "", ranks_,
        ranks_ == 1 ? " rank" : " ranks",
        absl::GetFlag(FLAGS_processes) ? ", a process each" : ", threads of one process", ", ",
        runtime_.device_count(), " devices, ", nccl::Describe(*api_), ", driver of CUDA ",
        runtime_.driver_version(), "\n");
  }

  void Say(const std::string& text) const {
    if (rank_ != 0) return;
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

  void Synchronize() { Require(runtime_.Synchronize(*stream_, Deadline(kTimeout))); }

  // Elements of one rank's part, or of all.
  int64_t Count(Operation operation, int64_t bytes) const {
    return std::max<int64_t>(bytes / 4 / (HasParts(operation) ? ranks_ : 1), 1);
  }

  void Reset(int64_t count) {
    const size_t bytes =
        std::min(static_cast<size_t>(count) * 4 * static_cast<size_t>(ranks_), pattern_.nbytes());
    Require(runtime_.Copy(in_.data(), pattern_.data(), bytes, *stream_));
    Require(runtime_.Copy(out_.data(), pattern_.data(), bytes, *stream_));
  }

  absl::Status Ours(ProcessGroup& group, Operation operation, int64_t count) {
    const Tensor part = in_.Slice(0, count), out = out_.Slice(0, count);
    const int64_t whole = count * ranks_;
    const bool is_root = rank_ == 0;
    switch (operation) {
      case Operation::kAllReduce:
        return group.AllReduce(out);
      case Operation::kBroadcast:
        return group.Broadcast(out, 0);
      case Operation::kReduce:
        return group.Reduce(out, 0);
      case Operation::kAllGather:
        return group.AllGatherSingle(out_.Slice(0, whole), part);
      case Operation::kReduceScatter:
        return group.ReduceScatterSingle(out, in_.Slice(0, whole));
      case Operation::kAllToAll:
        return group.AllToAllSingle(out_.Slice(0, whole), in_.Slice(0, whole));
      case Operation::kGather:
        return group.Gather(
            is_root ? out_.Slice(0, whole).SplitEvenly(ranks_) : ProcessGroup::Tensors(), part, 0);
      case Operation::kScatter:
        return group.Scatter(
            out, is_root ? in_.Slice(0, whole).SplitEvenly(ranks_) : ProcessGroup::Tensors(), 0);
      case Operation::kSendRecv: {
        SYNCLINE_ASSIGN_OR_RETURN(const auto sent, group.SendAsync(part, (rank_ + 1) % ranks_));
        SYNCLINE_RETURN_IF_ERROR(group.Recv(out, (rank_ + ranks_ - 1) % ranks_).status());
        return sent->Wait();
      }
    }
    return absl::OkStatus();
  }

  // The same as NCCL's users write it.
  nccl::NcclResult Plain(Operation operation, int64_t count) {
    const auto n = static_cast<size_t>(count);
    const auto in = [&](int part) { return in_.data_as<float>() + count * part; };
    const auto out = [&](int part) { return out_.data_as<float>() + count * part; };
    void* const stream = stream_->handle;
    constexpr nccl::NcclDataType kFloat = nccl::kNcclFloat32;
    switch (operation) {
      case Operation::kAllReduce:
        return api_->all_reduce(out(0), out(0), n, kFloat, nccl::kNcclSum, comm_, stream);
      case Operation::kBroadcast:
        return api_->broadcast(out(0), out(0), n, kFloat, 0, comm_, stream);
      case Operation::kReduce:
        return api_->reduce(out(0), out(0), n, kFloat, nccl::kNcclSum, 0, comm_, stream);
      case Operation::kAllGather:
        return api_->all_gather(in(0), out(0), n, kFloat, comm_, stream);
      case Operation::kReduceScatter:
        return api_->reduce_scatter(in(0), out(0), n, kFloat, nccl::kNcclSum, comm_, stream);
      default:
        break;
    }
    api_->group_start();
    switch (operation) {
      case Operation::kAllToAll:
        for (int peer = 0; peer < ranks_; ++peer) {
          api_->send(in(peer), n, kFloat, peer, comm_, stream);
          api_->recv(out(peer), n, kFloat, peer, comm_, stream);
        }
        break;
      case Operation::kGather:
        api_->send(in(0), n, kFloat, 0, comm_, stream);
        for (int peer = 0; rank_ == 0 && peer < ranks_; ++peer) {
          api_->recv(out(peer), n, kFloat, peer, comm_, stream);
        }
        break;
      case Operation::kScatter:
        for (int peer = 0; rank_ == 0 && peer < ranks_; ++peer) {
          api_->send(in(peer), n, kFloat, peer, comm_, stream);
        }
        api_->recv(out(0), n, kFloat, 0, comm_, stream);
        break;
      default:
        api_->send(in(0), n, kFloat, (rank_ + 1) % ranks_, comm_, stream);
        api_->recv(out(0), n, kFloat, (rank_ + ranks_ - 1) % ranks_, comm_, stream);
        break;
    }
    return api_->group_end();
  }

  void Call(System system, Operation operation, int64_t count) {
    if (system == kPlain) return Nccl(Plain(operation, count), "NCCL");
    Require(Ours(system == kCompared ? *compared_ : *uncompared_, operation, count));
  }

  // Several calls in a row, the time of the slowest rank.
  Cost Turn(System system, Operation operation, int64_t count, int calls) {
    Reset(count);
    Synchronize();
    Require(host_->Barrier());
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) Call(system, operation, count);
    const std::chrono::duration<double, std::micro> returned = Clock::now() - begin;
    Synchronize();
    const std::chrono::duration<double, std::micro> done = Clock::now() - begin;
    const Tensor slowest = Tensor::Zeros(DType::kFloat64, {2});
    slowest.data_as<double>()[0] = done.count() / calls;
    slowest.data_as<double>()[1] = returned.count() / calls;
    Require(host_->AllReduce(slowest, ReduceOp::kMax));
    return {slowest.data_as<double>()[0], slowest.data_as<double>()[1]};
  }

  // What `out` holds after one call, or nothing where that is not said.
  bool Expected(Operation operation, int64_t count, int64_t i, float& value) const {
    const int64_t part = i / count, place = i % count;
    const int64_t mine = rank_ * count + place;
    const float ranks_sum = static_cast<float>(ranks_ * (ranks_ - 1) / 2);
    const float of_all = static_cast<float>(ranks_);
    switch (operation) {
      case Operation::kAllReduce:
      case Operation::kReduce:
        value = of_all * Element(place, 0) + ranks_sum;
        return part == 0 && (rank_ == 0 || operation == Operation::kAllReduce);
      case Operation::kBroadcast:
        value = Element(place, 0);
        return part == 0;
      case Operation::kAllGather:
      case Operation::kGather:
        value = Element(place, static_cast<int>(part));
        return rank_ == 0 || operation == Operation::kAllGather;
      case Operation::kReduceScatter:
        value = of_all * Element(mine, 0) + ranks_sum;
        return part == 0;
      case Operation::kAllToAll:
        value = Element(mine, static_cast<int>(part));
        return true;
      case Operation::kScatter:
        value = Element(mine, 0);
        return part == 0;
      case Operation::kSendRecv:
        value = Element(place, (rank_ + ranks_ - 1) % ranks_);
        return part == 0;
    }
    return false;
  }

  // A time counts only if the elements are right.
  void Check(System system, Operation operation, const char* name, int64_t count) {
    const int64_t whole = HasParts(operation) ? count * ranks_ : count;
    const Tensor host = Tensor::Zeros(DType::kFloat32, {whole});
    Require(runtime_.Copy(host.data(), out_.data(), host.nbytes(), *stream_));
    Synchronize();
    for (int64_t i = 0; i < whole; ++i) {
      float value = 0;
      if (!Expected(operation, count, i, value) || host.data_as<float>()[i] == value) continue;
      Die(absl::StrCat(name, " by system ", static_cast<int>(system), " on rank ", rank_,
                       ": element ", i, " of ", whole, " is ", host.data_as<float>()[i], ", not ",
                       value));
    }
  }

  void Measure(Operation operation, const char* name, int64_t bytes) {
    const int64_t count = Count(operation, bytes);
    if (HasParts(operation) && count * ranks_ * 4 > bytes_) return;
    double slowest = 0;
    for (int system = 0; system < kSystems; ++system) {
      Turn(static_cast<System>(system), operation, count, 1);
      Check(static_cast<System>(system), operation, name, count);
      const Cost warm = Turn(static_cast<System>(system), operation, count, 1);
      slowest = std::max(slowest, warm.all_us);
    }
    // The same on all ranks, as the times are.
    const double most = absl::GetFlag(FLAGS_seconds) * 1e6 / kRounds / slowest;
    const int calls = static_cast<int>(std::min<double>(std::max(most, 2.0), kMostCalls));
    std::vector<Cost> costs[kSystems];
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kSystems; ++i) {
        const int system = (round + i) % kSystems;
        costs[system].push_back(Turn(static_cast<System>(system), operation, count, calls));
      }
    }
    Cost median[kSystems];
    for (int system = 0; system < kSystems; ++system) {
      for (double Cost::* const field : {&Cost::all_us, &Cost::host_us}) {
        std::vector<Cost>& all = costs[system];
        std::sort(all.begin(), all.end(),
                  [field](const Cost& a, const Cost& b) { return a.*field < b.*field; });
        median[system].*field = all[kRounds / 2].*field;
      }
    }
    const double moved = static_cast<double>(count) * 4 * (HasParts(operation) ? ranks_ : 1) *
                         BusFactor(operation, ranks_) / 1000;
    char line[256];
    std::snprintf(line, sizeof line,
                  "| %lld | %.1f | %.1f | %.1f | %.2f | %.2f | %.2f | %.1f | %.1f | %.1f |\n",
                  static_cast<long long>(bytes), median[kPlain].all_us, median[kCompared].all_us,
                  median[kUncompared].all_us, median[kCompared].all_us / median[kPlain].all_us,
                  moved / median[kPlain].all_us, moved / median[kCompared].all_us,
                  median[kPlain].host_us, median[kCompared].host_us, median[kUncompared].host_us);
    Say(line);
  }

  const int rank_, ranks_;
  DeviceRuntime& runtime_;
  Device device_;
  std::shared_ptr<const Stream> stream_;
  int64_t bytes_ = 0;
  Tensor pattern_, in_, out_;
  std::shared_ptr<ProcessGroup> host_, compared_, uncompared_;
  const nccl::NcclApi* api_ = nullptr;
  nccl::NcclComm comm_ = nullptr;
};

void RunThreads(int ranks) {
  const auto store = std::make_shared<HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { Rank(store, rank, ranks).Run(); });
  }
  for (std::thread& thread : threads) thread.join();
}

// CUDA is first used in the children: a child of fork cannot go on with its parent's.
int RunProcesses(int ranks) {
  std::string folder =
      (std::filesystem::temp_directory_path() / "syncline_collectives_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) Die("mkdtemp failed");
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) Die("fork failed");
    if (child == 0) {
      Rank(Require(FileStore::Open(folder + "/store")), rank, ranks).Run();
      std::exit(0);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (size_t ended = 0; ended < children.size(); ++ended) {
    int status = 0;
    const pid_t child = wait(&status);
    if (child < 0) break;
    *std::find(children.begin(), children.end(), child) = 0;
    if (status == 0) continue;
    failed = 1;
    for (const pid_t other : children) {
      if (other != 0) kill(other, SIGKILL);  // They would wait for it.
    }
  }
  std::filesystem::remove_all(folder);
  return failed;
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const int ranks = absl::GetFlag(FLAGS_ranks);
  if (ranks < 1 || ranks > 64 || absl::GetFlag(FLAGS_max_bytes) < 4 * ranks) {
    std::fprintf(stderr, "--ranks is 1 to 64, --max_bytes at least 4 for each\n");
    return 2;
  }
  if (absl::GetFlag(FLAGS_processes)) return syncline::RunProcesses(ranks);
  syncline::RunThreads(ranks);
}
