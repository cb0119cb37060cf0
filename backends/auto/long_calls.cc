#include "backends/auto/long_calls.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/tensor/reduce_kernels.h"

namespace syncline {
namespace {

// Bytes of a chunk, of all lanes together: what one lane has of it, once from each host, fits a
// core's cache. Measured by //tests:auto_benchmark.
constexpr size_t kChunk = 1 << 20;

// Smaller parts than this are not worth a lane of their own.
constexpr size_t kLeastPart = 16 << 10;

// Of an average this is all until it is complete.
ReduceOp Partial(ReduceOp op) { return op == ReduceOp::kAvg ? ReduceOp::kSum : op; }

// `out`, at the place of this host among `theirs`, becomes the combination of all hosts'.
void Combine(const Passage& passage, const Tensor& out, absl::Span<const Tensor> theirs,
             ReduceOp op) {
  if (out.numel() == 0) return;
  std::vector<const void*> terms;
  for (const Tensor& term : theirs) terms.push_back(term.data());
  terms[passage.topology().host] = out.data();
  Reduce(out.dtype(), Partial(op), out.data(), terms, out.numel());
  if (op == ReduceOp::kAvg) {
    Divide(out.dtype(), out.data(), passage.topology().size(), out.numel());
  }
}

// How a tensor of `numel` elements is cut into chunks.
struct Chunks {
  Chunks(int64_t numel, DType dtype, size_t bytes)
      : each(std::max<int64_t>(bytes / SizeOf(dtype), 1)), count((numel + each - 1) / each) {}

  Tensor Of(const Tensor& tensor, int64_t k) const {
    const int64_t begin = std::min(k * each, tensor.numel());
    return tensor.Slice(begin, std::min(each, tensor.numel() - begin));
  }

  int64_t each;  // Elements.
  int64_t count;
};

// begin(k), for the k-th chunk, comes before end(k - 1).
template <typename Begin, typename End>
absl::Status ForEach(const Chunks& chunks, const Begin& begin, const End& end) {
  for (int64_t k = 0; k <= chunks.count; ++k) {
    if (k < chunks.count) SYNCLINE_RETURN_IF_ERROR(begin(k));
    if (k > 0) SYNCLINE_RETURN_IF_ERROR(end(k - 1));
  }
  return absl::OkStatus();
}

// The part of each rank of this host, on the lanes.
std::vector<Tensor> Share(const Passage& passage, const Tensor& chunk) {
  const size_t lanes = passage.topology().lanes;
  return passage.topology().Share(
      chunk, static_cast<int>(std::clamp<size_t>(chunk.nbytes() / kLeastPart, 1, lanes)));
}

// all_reduce, or reduce if there is a `goal`: a host. The hosts' parts are combined on their lanes:
// of two hosts by each that needs the result, as this takes one message; of more, each combines a
// section, and sends it to those that need it.
class Reduction {
 public:
  Reduction(Passage& passage, const Tensor& tensor, ReduceOp op, int goal)
      : passage_(passage),
        topology_(passage.topology()),
        tensor_(tensor),
        op_(op),
        goal_(goal),
        chunks_(tensor.numel(), tensor.dtype(), kChunk) {
    const int64_t section = hosts() == 2 ? LargestPart() : LargestPart() / hosts() + 1;
    for (Stage& stage : stages_) {
      stage.theirs.resize(hosts());
      for (int h = 0; h < hosts(); ++h) {
        if (h != topology_.host && passage_.is_on_lane()) stage.theirs[h] = Room(section);
      }
    }
  }

  // Whether those of this rank are to stay as they are.
  enum class Elements { kMayChange, kStay };

  // gather(parts, own) brings the parts of one chunk to who needs them.
  template <typename Gather>
  absl::Status Run(Elements elements, const Gather& gather) {
    if (elements == Elements::kStay) {
      for (Stage& stage : stages_) stage.copy = Room(LargestPart());
    }
    return ForEach(
        chunks_, [&](int64_t k) { return Begin(k, elements); },
        [&](int64_t k) -> absl::Status {
          Stage& stage = stages_[k % 2];
          if (passage_.is_on_lane()) SYNCLINE_RETURN_IF_ERROR(Finish(k, stage));
          return gather(stage.parts, stage.own);
        });
  }

 private:
  struct Stage {
    std::vector<Tensor> parts;  // By place.
    Tensor own, copy;
    std::vector<Tensor> sections, theirs;
    Passage::Mark mark;
  };

  int hosts() const { return topology_.host_count(); }
  bool is_all() const { return goal_ < 0; }
  bool Needs(int host) const { return is_all() || host == goal_; }
  bool Combines(int host, size_t section) const {
    return hosts() == 2 ? Needs(host) : static_cast<int>(section) == host;
  }
  // Elements. Parts that are not all chunk / lanes are shorter than twice kLeastPart.
  int64_t LargestPart() const {
    const int64_t least = 2 * kLeastPart / SizeOf(tensor_.dtype());
    return std::min(std::max(chunks_.each / topology_.lanes, least) + 1, chunks_.each);
  }
  Tensor Room(int64_t count) { return passage_.memory().Take(tensor_.dtype(), count); }

  absl::Status Begin(int64_t k, Elements elements) {
    Stage& stage = stages_[k % 2];
    stage.parts = Share(passage_, chunks_.Of(tensor_, k));
    stage.own = stage.parts[topology_.place];
    if (elements == Elements::kStay) stage.own = stage.copy.Slice(0, stage.own.numel());
    SYNCLINE_RETURN_IF_ERROR(passage_.ReduceScatter(stage.own, stage.parts, Partial(op_)));
    if (!passage_.is_on_lane()) return absl::OkStatus();
    if (k == 0) passage_.Greet();
    stage.sections = hosts() == 2 ? std::vector<Tensor>{stage.own} : Split(stage.own, hosts());
    for (int h = 0; h < hosts(); ++h) {
      if (h == topology_.host) continue;
      for (size_t s = 0; s < stage.sections.size(); ++s) {
        if (Combines(h, s)) passage_.Send(h, stage.sections[s]);
        if (!Combines(topology_.host, s)) continue;
        passage_.Receive(h, stage.theirs[h].Slice(0, stage.sections[s].numel()));
      }
    }
    stage.mark = passage_.mark();
    return passage_.Progress();
  }

  absl::Status Finish(int64_t k, Stage& stage) {
    if (k == 0) SYNCLINE_RETURN_IF_ERROR(passage_.Welcome());
    SYNCLINE_RETURN_IF_ERROR(passage_.Await(stage.mark));
    const size_t own = hosts() == 2 ? 0 : topology_.host;
    if (Combines(topology_.host, own)) {
      Combine(passage_, stage.sections[own], stage.theirs, op_);
    }
    if (hosts() == 2) return absl::OkStatus();
    for (int h = 0; h < hosts(); ++h) {
      if (h == topology_.host) continue;
      if (Needs(h)) passage_.Send(h, stage.sections[own]);
      if (Needs(topology_.host)) passage_.Receive(h, stage.sections[h]);
    }
    return passage_.Await(passage_.mark());
  }

  Passage& passage_;
  const Topology& topology_;
  const Tensor& tensor_;
  const ReduceOp op_;
  const int goal_;
  const Chunks chunks_;
  Stage stages_[2];
};

}  // namespace

absl::Status LongAllReduce(Passage& passage, const Tensor& tensor, ReduceOp op) {
  return Reduction(passage, tensor, op, -1)
      .Run(Reduction::Elements::kMayChange,
           [&](const auto& parts, const Tensor& own) { return passage.AllGather(parts, own); });
}

absl::Status LongReduce(Passage& passage, const Tensor& tensor, ReduceOp op, int root) {
  const Topology& topology = passage.topology();
  const int goal = topology.host_of[root], place = topology.place_of[root];
  const bool is_goal = topology.host == goal;
  const bool is_root = is_goal && topology.place == place;
  const auto elements = is_root ? Reduction::Elements::kMayChange : Reduction::Elements::kStay;
  SYNCLINE_RETURN_IF_ERROR(
      Reduction(passage, tensor, op, goal).Run(elements, [&](const auto& parts, const Tensor& own) {
        return is_goal ? passage.Gather(parts, own, place) : absl::OkStatus();
      }));
  // Ranks on no lane have yet to hear whether all agree.
  return topology.is_even() ? absl::OkStatus() : passage.Barrier();
}

// On each lane from host to host: each sends once.
absl::Status LongBroadcast(Passage& passage, const Tensor& tensor, int root) {
  const Topology& topology = passage.topology();
  const int source = topology.host_of[root];
  const bool is_source = topology.host == source;
  const bool is_last = topology.HostAt(1) == source;
  const Chunks chunks(tensor.numel(), tensor.dtype(), kChunk);
  std::vector<Tensor> parts[2];
  Passage::Mark marks[2];
  const auto begin = [&](int64_t k) -> absl::Status {
    const Tensor chunk = chunks.Of(tensor, k);
    parts[k % 2] = Share(passage, chunk);
    if (is_source) {
      SYNCLINE_RETURN_IF_ERROR(passage.Broadcast(chunk, topology.place_of[root]));
    } else if (k == 0) {
      SYNCLINE_RETURN_IF_ERROR(passage.Barrier());
    }
    if (!passage.is_on_lane()) return absl::OkStatus();
    if (k == 0) passage.Greet();
    const Tensor& own = parts[k % 2][topology.place];
    if (is_source) {
      passage.Send(topology.HostAt(1), own);
    } else {
      passage.Receive(topology.HostAt(-1), own);
    }
    marks[k % 2] = passage.mark();
    return passage.Progress();
  };
  const auto end = [&](int64_t k) -> absl::Status {
    const Tensor& own = parts[k % 2][topology.place];
    if (passage.is_on_lane()) {
      if (k == 0) SYNCLINE_RETURN_IF_ERROR(passage.Welcome());
      SYNCLINE_RETURN_IF_ERROR(passage.Await(marks[k % 2]));
      if (!is_source && !is_last) {
        passage.Send(topology.HostAt(1), own);
        SYNCLINE_RETURN_IF_ERROR(passage.Progress());
      }
    }
    return is_source ? absl::OkStatus() : passage.AllGather(parts[k % 2], own);
  };
  SYNCLINE_RETURN_IF_ERROR(ForEach(chunks, begin, end));
  if (passage.is_on_lane()) SYNCLINE_RETURN_IF_ERROR(passage.AwaitAll());
  // Ranks on no lane have yet to hear whether all agree.
  return topology.is_even() || !is_source ? absl::OkStatus() : passage.Barrier();
}

// Of each host, the rank on lane l carries the parts of places l, l + lanes, ...; what it has
// received, all ranks of its host get.
absl::Status LongAllGather(Passage& passage, absl::Span<const Tensor> outputs,
                           const Tensor& input) {
  const Topology& topology = passage.topology();
  const size_t place = topology.place, lanes = topology.lanes;
  int64_t longest = 0;
  for (const Tensor& output : outputs) longest = std::max(longest, output.numel());
  const Chunks chunks(longest, input.dtype(), kChunk / topology.most);
  Passage::Mark marks[2];
  const auto begin = [&](int64_t k) -> absl::Status {
    std::vector<Tensor> parts;
    for (int rank : topology.here()) parts.push_back(chunks.Of(outputs[rank], k));
    SYNCLINE_RETURN_IF_ERROR(passage.AllGather(parts, chunks.Of(input, k)));
    if (!passage.is_on_lane()) return absl::OkStatus();
    if (k == 0) passage.Greet();
    for (int distance = 1; distance < topology.host_count(); ++distance) {
      const int from = topology.HostAt(-distance), to = topology.HostAt(distance);
      const std::vector<int>& theirs = topology.hosts[from];
      for (size_t p = place; p < theirs.size(); p += lanes) {
        passage.Receive(from, chunks.Of(outputs[theirs[p]], k));
      }
      for (size_t p = place; p < parts.size(); p += lanes) passage.Send(to, parts[p]);
    }
    marks[k % 2] = passage.mark();
    return passage.Progress();
  };
  const auto end = [&](int64_t k) -> absl::Status {
    if (passage.is_on_lane()) {
      if (k == 0) SYNCLINE_RETURN_IF_ERROR(passage.Welcome());
      SYNCLINE_RETURN_IF_ERROR(passage.Await(marks[k % 2]));
    }
    for (int distance = 1; distance < topology.host_count(); ++distance) {
      const std::vector<int>& ranks = topology.hosts[topology.HostAt(distance)];
      for (size_t first = 0; first < ranks.size(); first += lanes) {
        std::vector<Tensor> parts(topology.here().size(), input.Slice(0, 0));
        const size_t count = std::min(lanes, ranks.size() - first);
        for (size_t l = 0; l < count; ++l) parts[l] = chunks.Of(outputs[ranks[first + l]], k);
        SYNCLINE_RETURN_IF_ERROR(passage.AllGather(parts, parts[place]));
      }
    }
    return absl::OkStatus();
  };
  return ForEach(chunks, begin, end);
}

// A host's ranks combine what they have for each host, the rank at each place what is for the one
// at that place; and these then combine what the hosts have, on their lane.
absl::Status LongReduceScatter(Passage& passage, const Tensor& output,
                               absl::Span<const Tensor> inputs, ReduceOp op) {
  const Topology& topology = passage.topology();
  int64_t longest = 0;
  for (const Tensor& input : inputs) longest = std::max(longest, input.numel());
  const Chunks chunks(longest, output.dtype(), kChunk / inputs.size());
  // By host: what this one's ranks have for it, and what its have for this rank.
  std::vector<Tensor> partial[2], theirs[2];
  for (int i = 0; i < 2 * topology.host_count(); ++i) {
    partial[i % 2].push_back(passage.memory().Take(output.dtype(), std::min(chunks.each, longest)));
    theirs[i % 2].push_back(passage.memory().Take(output.dtype(), std::min(chunks.each, longest)));
  }
  Passage::Mark marks[2];
  const auto begin = [&](int64_t k) -> absl::Status {
    for (int h = 0; h < topology.host_count(); ++h) {
      std::vector<Tensor> parts;
      for (int rank : topology.hosts[h]) parts.push_back(chunks.Of(inputs[rank], k));
      const Tensor own = h == topology.host
                             ? chunks.Of(output, k)
                             : partial[k % 2][h].Slice(0, parts[topology.place].numel());
      SYNCLINE_RETURN_IF_ERROR(passage.ReduceScatter(own, parts, Partial(op)));
      if (k == 0 && h == 0) passage.Greet();
      if (h == topology.host) continue;
      passage.Send(h, own);
      passage.Receive(h, theirs[k % 2][h].Slice(0, chunks.Of(output, k).numel()));
    }
    marks[k % 2] = passage.mark();
    return passage.Progress();
  };
  const auto end = [&](int64_t k) -> absl::Status {
    if (k == 0) SYNCLINE_RETURN_IF_ERROR(passage.Welcome());
    SYNCLINE_RETURN_IF_ERROR(passage.Await(marks[k % 2]));
    Combine(passage, chunks.Of(output, k), theirs[k % 2], op);
    return absl::OkStatus();
  };
  return ForEach(chunks, begin, end);
}

}  // namespace syncline
