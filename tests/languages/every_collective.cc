// One rank of the group of three languages; see every_collective.py.
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "syncline/byte_collectives.h"
#include "syncline/process_group.h"
#include "syncline/status.h"
#include "syncline/subgroups.h"
#include "syncline/tensor.h"
#include "syncline/world.h"

namespace syncline {
namespace {

using Floats = std::vector<float>;

constexpr int kCount = 4;

// The program ends at the first error, which says what failed.
void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  std::exit(1);
}

template <typename T>
T Check(absl::StatusOr<T> result) {
  Check(result.status());
  return *std::move(result);
}

Floats Own(int rank, float offset = 0) {
  Floats values;
  for (int i = 0; i < kCount; ++i) values.push_back(static_cast<float>(10 * rank + i) + offset);
  return values;
}

std::vector<Tensor> Views(std::vector<Floats>& arrays) {
  std::vector<Tensor> views;
  for (Floats& values : arrays) views.push_back(Tensor::Of(values));
  return views;
}

class Line {
 public:
  explicit Line(absl::string_view name) : text_(absl::StrCat(name, ":")) {}
  ~Line() { std::cout << text_ << std::endl; }

  template <typename T>
  Line& operator<<(const std::vector<T>& values) {
    for (T value : values) absl::StrAppend(&text_, " ", value);
    return *this;
  }
  Line& operator<<(const std::vector<Floats>& arrays) {
    for (const Floats& values : arrays) *this << values;
    return *this;
  }
  Line& operator<<(int64_t value) { return *this << std::vector<int64_t>{value}; }
  Line& Bytes(absl::string_view text) {
    for (char c : text) *this << int64_t{c};
    return *this;
  }
  Line& Sizes(const std::vector<std::string>& values) {
    for (const std::string& value : values) *this << static_cast<int64_t>(value.size());
    return *this;
  }

 private:
  std::string text_;
};

std::string OpName(ReduceOp op) {
  std::string name(Name(op));
  for (char& c : name) c = static_cast<char>(std::toupper(c));
  return name;
}

void Reductions(ProcessGroup& group, int rank) {
  for (ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
    Floats x = Own(rank, 1);
    Check(group.AllReduce(Tensor::Of(x), op));
    Line(absl::StrCat("all_reduce ", OpName(op))) << x;
  }
  for (ReduceOp op : {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) {
    std::vector<int64_t> bits = {rank + 4, rank * 3};
    Check(group.AllReduce(Tensor::Of(bits), op));
    Line(absl::StrCat("all_reduce ", OpName(op))) << bits;
  }
  Floats x = Own(rank);
  Check(group.AllReduce(Tensor::Of(x), ReduceOp::kPremulSum, {},
                        0.5 * static_cast<double>(rank + 1)));
  Line("all_reduce PREMUL_SUM") << x;
  x = Own(rank);
  Check(group.Reduce(Tensor::Of(x), 2));
  Line("reduce") << x;
  x = Own(rank);
  Check(group.Scan(Tensor::Of(x)));
  Line("scan") << x;
  x = Own(rank);
  Check(group.Exscan(Tensor::Of(x)));
  Line("exscan") << x;
  std::vector<Floats> pair = {Own(rank), Own(rank, 100)};
  Check(group.AllReduceCoalesced(Views(pair)));
  Line("all_reduce_coalesced") << pair;
  pair = {Own(rank), Own(rank, 100)};
  Check(group.AllReduceMulti(Views(pair)));
  Line("all_reduce_multi") << pair;
}

void Movements(ProcessGroup& group, int rank) {
  const int size = group.size();
  Floats x = Own(rank);
  Check(group.Broadcast(Tensor::Of(x), 1));
  Line("broadcast") << x;

  std::vector<Floats> outputs;
  for (int r = 0; r < size; ++r) outputs.emplace_back(r + 1);
  x = Own(rank);
  Check(group.AllGather(Views(outputs), Tensor::Of(x).Slice(0, rank + 1)));
  Line("all_gather") << outputs;

  Floats y(kCount * size);
  Check(group.AllGatherSingle(Tensor::Of(y), Tensor::Of(x)));
  Line("all_gather_single") << y;

  outputs.assign(rank == 0 ? size : 0, Floats(kCount));
  Check(group.Gather(Views(outputs), Tensor::Of(x), 0));
  Line("gather") << outputs;

  std::vector<Floats> inputs;
  for (int r = 0; r < size && rank == 1; ++r) inputs.push_back(Own(r));
  x.assign(kCount, 0);
  Check(group.Scatter(Tensor::Of(x), Views(inputs), 1));
  Line("scatter") << x;

  inputs.clear();
  for (int r = 0; r < size; ++r) inputs.push_back(Own(rank, static_cast<float>(r)));
  Check(group.ReduceScatter(Tensor::Of(x), Views(inputs)));
  Line("reduce_scatter") << x;

  Floats own = Own(rank), one(1);
  Check(group.ReduceScatterSingle(Tensor::Of(one), Tensor::Of(own).Slice(0, size)));
  Line("reduce_scatter_single") << one;

  inputs.clear();
  for (int r = 0; r < size; ++r) inputs.push_back(Own(rank, static_cast<float>(100 * r)));
  outputs.assign(size, Floats(kCount));
  Check(group.AllToAll(Views(outputs), Views(inputs)));
  Line("all_to_all") << outputs;

  Floats six;
  for (int i = 0; i < 6; ++i) six.push_back(static_cast<float>(10 * rank + i));
  y.assign((rank + 1) * size, 0);
  const ProcessGroup::Splits output_splits(size, rank + 1);
  Check(group.AllToAllSingle(Tensor::Of(y), Tensor::Of(six), output_splits, {1, 2, 3}));
  Line("all_to_all_single") << y;
}

void Messages(ProcessGroup& group, int rank) {
  const int size = group.size();
  Floats out = Own(rank), in(kCount);
  auto sent = Check(group.SendAsync(Tensor::Of(out), (rank + 1) % size, 7));
  const int source = Check(group.Recv(Tensor::Of(in), (rank + size - 1) % size, 7));
  Check(sent->Wait());
  Line("recv") << in << source;
  if (rank != 0) {
    Check(group.Send(Tensor::Of(out), 0));
    Line("recv from any");
    return;
  }
  const int a = Check(group.Recv(Tensor::Of(in), kAnySource));
  const int b = Check(group.Recv(Tensor::Of(in), kAnySource));
  Line("recv from any") << std::min(a, b) << std::max(a, b);
}

void ByteStrings(ProcessGroup& group, int rank) {
  const std::string text(rank + 1, 'x');
  Line("all_gather_bytes").Sizes(Check(AllGatherBytes(group, text)));
  Line("broadcast_bytes").Bytes(Check(BroadcastBytes(group, text, 2)));
  Line("gather_bytes").Sizes(Check(GatherBytes(group, text, 1)));
  std::vector<std::string> values;
  for (int r = 0; r < group.size() && rank == 0; ++r) values.emplace_back(r + 2, 'y');
  Line("scatter_bytes").Bytes(Check(ScatterBytes(group, values, 0)));
  if (rank == 0) {
    const auto message = Check(RecvBytes(group, kAnySource, 3));
    Line("recv_bytes").Bytes(message->value()) << message->source_rank();
    return;
  }
  if (rank == 2) Check(SendBytes(group, "abc", 0, 3));
  Line("recv_bytes");
}

void Groups(ProcessGroup& group, int rank) {
  Floats x = Own(rank);
  auto half = Check(Split(group, {{2, 0}, {1}}));
  Check(half->AllReduce(Tensor::Of(x)));
  Line("split") << x << half->rank() << half->size() << half->ranks();
  x = Own(rank);
  auto work = Check(group.AllReduceAsync(Tensor::Of(x)));
  Check(group.Barrier());
  Check(work->Wait());
  Line("all_reduce_async") << x;
  Check(group.MonitoredBarrier());
  Line("monitored_barrier");
}

void Run(const std::string& backend, const std::string& init_method, int rank) {
  WorldOptions options;
  options.backend = backend;
  options.init_method = init_method;
  options.rank = rank;
  options.size = 3;
  auto world = Check(World::Init(options));
  ProcessGroup& group = *world->group();
  Reductions(group, rank);
  Movements(group, rank);
  Messages(group, rank);
  ByteStrings(group, rank);
  Groups(group, rank);
  world->Close();
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  int rank = 0;
  if (argc != 4 || !absl::SimpleAtoi(argv[3], &rank)) {
    std::cerr << "usage: every_collective BACKEND INIT_METHOD RANK" << std::endl;
    return 2;
  }
  syncline::Run(argv[1], argv[2], rank);
  return 0;
}
