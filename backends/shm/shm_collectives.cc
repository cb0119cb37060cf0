#include "backends/shm/shm_collectives.h"

#include <algorithm>

#include "absl/base/optimization.h"
#include "absl/container/fixed_array.h"
#include "backends/shm/byte_range.h"
#include "backends/shm/last_call.h"
#include "backends/shm/thresholds.h"
#include "core/tensor/reduce_kernels.h"
#include "syncline/status.h"

namespace syncline::shm {
namespace {

// One for each rank, in their order.
using Inputs = absl::FixedArray<const void*, 8>;

absl::Span<const Tensor> Only(const Tensor& tensor) { return absl::MakeConstSpan(&tensor, 1); }

}  // namespace

// A movement of chunks.
struct ShmCollectives::PipelineSpec {
  const WaitContext& context;
  size_t chunk;  // Bytes of each chunk except the last, which may be shorter.
  uint64_t chunks;
  int producer;   // The rank that stages: one, or kEveryRank.
  bool consumes;  // Whether this rank reads what others stage.
};

// The blocks that ranks have for each other.
struct ShmCollectives::PeerBlocks {
  int producer;                     // The rank that has blocks: one, or kEveryRank.
  absl::Span<const Tensor> inputs;  // For each rank, if this rank has blocks.
  size_t largest;                   // Bytes of the largest block of all.
  size_t total;                     // Bytes of all blocks that a producer has, for every rank.
};

absl::Status ShmCollectives::Await(int rank, Counter counter, uint64_t value,
                                   const WaitContext& context) {
  RankRegion& region = layout_.region(rank);
  // Pairs with the release store in Advance, on that rank.
  return group_.waiter().Await(region.collective_event, rank, context, [&] {
    return (region.*counter).load(std::memory_order_acquire) >= value;
  });
}

absl::Status ShmCollectives::AwaitOthers(Counter counter, uint64_t value,
                                         const WaitContext& context) {
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) SYNCLINE_RETURN_IF_ERROR(Await(r, counter, value, context));
  }
  return absl::OkStatus();
}

void ShmCollectives::Advance(Counter counter, uint64_t value) {
  RankRegion& own = group_.own_region();
  // Pairs with the acquire load in Await. Of chunks_written it publishes the data; of chunks_read
  // it says that this rank's reads are over, so that the buffers may be written again.
  (own.*counter).store(value, std::memory_order_release);
  group_.waiter().Notify(own.collective_event);
}

template <typename Body>
absl::Status ShmCollectives::RunCollective(const CallContext& context, size_t bytes,
                                           const Body& body) {
  CollectiveEntry entry(entry_ring_, context, bytes);
  const absl::Status status = body(entry);
  RecordCall(context, group_.own_region().last_call);
  entry_ring_.Finish();
  PrefetchNext(entry);
  return status;
}

// The next collective is likely to be of the same size. To fetch the lines that it will write is
// free now, and nobody needs their content any more.
void ShmCollectives::PrefetchNext(const CollectiveEntry& entry) {
  const EntrySlot& slot = entry_ring_.OwnSlot(entry_ring_.number() + kFetchedEntrySlots);
  PrefetchToWrite(&slot);
  if (entry.inline_bytes() > kInlineMaxBytes) PrefetchToWrite(slot.second_line());
  const size_t bytes = entry.staged_bytes();
  if (bytes == 0 || !entry_ring_.eager_ring().IsSmall(bytes)) return;
  const char* const buffer =
      entry_ring_.OwnBuffer(entry_ring_.eager_ring().NextSmall(entry.is_ahead()));
  for (size_t at = 0; at < bytes; at += base::kCacheLine) PrefetchToWrite(buffer + at);
}

template <typename Produce, typename Consume>
absl::Status ShmCollectives::RunPipeline(const PipelineSpec& spec, const Produce& produce,
                                         const Consume& consume) {
  const uint64_t first = chunks_;
  const ChunkRing::Slots slots = chunk_ring_.Allocate(spec.chunk, spec.chunks);
  const bool produces = spec.producer == kEveryRank || spec.producer == rank();
  // Producers wait for all ranks, so one that reads nothing says at once that it is done.
  if (!spec.consumes) Advance(&RankRegion::chunks_read, first + spec.chunks);
  // A rank that does both stages one chunk ahead of what it consumes, so that nobody waits for it
  // while it reads.
  const uint64_t lead = produces && spec.consumes ? 1 : 0;
  for (uint64_t k = 0; k < spec.chunks + lead; ++k) {
    if (produces && k < spec.chunks) {
      if (k >= kPipelineDepth) {
        // The slot was used kPipelineDepth chunks before, and may be reused once all have read it.
        SYNCLINE_RETURN_IF_ERROR(
            AwaitOthers(&RankRegion::chunks_read, first + k - kPipelineDepth + 1, spec.context));
      }
      produce(k, layout_.chunk(rank(), slots.offset(k)));
      Advance(&RankRegion::chunks_written, first + k + 1);
    }
    if (!spec.consumes || k < lead) continue;
    const uint64_t consumed = k - lead;
    SYNCLINE_RETURN_IF_ERROR(
        spec.producer == kEveryRank
            ? AwaitOthers(&RankRegion::chunks_written, first + consumed + 1, spec.context)
            : Await(spec.producer, &RankRegion::chunks_written, first + consumed + 1,
                    spec.context));
    consume(consumed, slots.offset(consumed));
    Advance(&RankRegion::chunks_read, first + consumed + 1);
  }
  chunks_ += spec.chunks;
  return absl::OkStatus();
}

absl::Status ShmCollectives::Barrier(const CallContext& context) {
  return RunCollective(context, 0, [](CollectiveEntry& entry) { return entry.Exchange(); });
}

absl::Status ShmCollectives::Broadcast(const Tensor& tensor, int root, const CallContext& context) {
  const size_t bytes = tensor.nbytes();
  char* const data = Bytes(tensor);
  const bool is_eager = bytes <= eager();
  return RunCollective(context, EagerBytes(bytes), [&](CollectiveEntry& entry) {
    if (is_eager) {
      if (rank() == root) {
        SYNCLINE_ASSIGN_OR_RETURN(char* const buffer, entry.Stage(bytes, /*ahead=*/true));
        copier_.Copy(buffer, data, bytes);
      }
      SYNCLINE_RETURN_IF_ERROR(entry.Exchange(rank() == root ? kNoRank : root));
      if (rank() != root) Copy(data, entry.BufferOf(root), bytes);
      return absl::OkStatus();
    }
    const ReadableRanks readable = {root};
    SYNCLINE_ASSIGN_OR_RETURN(
        const bool is_direct,
        direct_.Exchange(entry, bytes, readable, Only(tensor), [bytes](int) { return bytes; }));
    if (is_direct) {
      if (rank() != root) {
        SYNCLINE_RETURN_IF_ERROR(direct_.Read(root, 0, data, bytes, entry.context()));
      }
      return direct_.Finish(readable, entry.context());
    }
    const size_t chunk = ChunkSize(bytes);
    return RunPipeline(
        {entry.context(), chunk, CeilDiv(bytes, chunk), root, rank() != root},
        [&](uint64_t k, char* to) {
          const ByteRange range(bytes, chunk, k);
          copier_.Copy(to, data + range.begin, range.size);
        },
        [&](uint64_t k, size_t offset) {
          const ByteRange range(bytes, chunk, k);
          Copy(data + range.begin, layout_.chunk(root, offset), range.size);
        });
  });
}

absl::Status ShmCollectives::AllReduce(const Tensor& tensor, ReduceOp op,
                                       const CallContext& context) {
  const size_t bytes = tensor.nbytes();
  return RunCollective(
      context, bytes <= eager_all_reduce() ? bytes : 0,
      [&](CollectiveEntry& entry) { return ReduceTo(kEveryRank, tensor, op, entry); });
}

absl::Status ShmCollectives::Reduce(const Tensor& tensor, ReduceOp op, int root,
                                    const CallContext& context) {
  return RunCollective(context, EagerBytes(tensor.nbytes()),
                       [&](CollectiveEntry& entry) { return ReduceTo(root, tensor, op, entry); });
}

absl::Status ShmCollectives::ReduceTo(int root, const Tensor& tensor, ReduceOp op,
                                      CollectiveEntry& entry) {
  const size_t bytes = tensor.nbytes();
  const bool has_result = root == kEveryRank || root == rank();
  if (bytes > (root == kEveryRank ? eager_all_reduce() : eager())) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool is_direct,
                              root == kEveryRank
                                  ? direct_.ExchangeForAllReduce(entry, tensor)
                                  : direct_.Exchange(entry, bytes, {kEveryRank, root}, Only(tensor),
                                                     [bytes](int) { return bytes; }));
    if (is_direct) return ReduceDirect(root, tensor, op, entry.context());
    return size() <= kFullReduceMaxRanks ? ReduceFullChunks(root, tensor, op, entry.context())
                                         : ReduceScatterGather(root, tensor, op, entry.context());
  }
  if (root != rank()) {
    SYNCLINE_ASSIGN_OR_RETURN(char* const buffer, entry.Stage(bytes, !has_result));
    copier_.Copy(buffer, tensor.data(), bytes);
  }
  SYNCLINE_RETURN_IF_ERROR(entry.Exchange(has_result ? kEveryRank : kNoRank));
  if (!has_result || bytes == 0) return absl::OkStatus();
  // In the order of ranks on every rank, so that results are bitwise equal.
  Inputs inputs(size());
  for (int r = 0; r < size(); ++r) {
    inputs[r] = r == rank() ? tensor.data() : entry.BufferOf(r);
  }
  tensor::Reduce(tensor.dtype(), op, tensor.data(), inputs, tensor.numel());
  return absl::OkStatus();
}

absl::Status ShmCollectives::ReduceDirect(int root, const Tensor& tensor, ReduceOp op,
                                          const WaitContext& context) {
  if (root == kEveryRank) return direct_.AllReduce(tensor, op, context);
  if (root == rank()) {
    SYNCLINE_RETURN_IF_ERROR(direct_.Reduce(tensor.dtype(), op, 0, Bytes(tensor), Bytes(tensor),
                                            tensor.nbytes(), context));
  }
  return direct_.Finish({kEveryRank, root}, context);
}

// Of two ranks, each stages its whole tensor, and reduces all that the other stages.
absl::Status ShmCollectives::ReduceFullChunks(int root, const Tensor& tensor, ReduceOp op,
                                              const WaitContext& context) {
  if (size() == 1) return absl::OkStatus();
  const size_t bytes = tensor.nbytes();
  const size_t chunk = ChunkSize(bytes);
  const int other = 1 - rank();
  const int producer = root == kEveryRank ? kEveryRank : 1 - root;
  return RunPipeline(
      {context, chunk, CeilDiv(bytes, chunk), producer, root == kEveryRank || root == rank()},
      [&](uint64_t k, char* to) {
        const ByteRange range(bytes, chunk, k);
        copier_.Copy(to, Bytes(tensor) + range.begin, range.size);
      },
      [&](uint64_t k, size_t offset) {
        const ByteRange range(bytes, chunk, k);
        char* const own = Bytes(tensor) + range.begin;
        const void* inputs[2];
        inputs[rank()] = own;
        inputs[other] = layout_.chunk(other, offset);
        tensor::Reduce(tensor.dtype(), op, own, inputs, range.size / SizeOf(tensor.dtype()));
      });
}

// Rabenseifner's scheme, a reduce-scatter and then an all-gather, on each chunk: R. Rabenseifner,
// "Optimization of Collective Reduction Operations", ICCS 2004, section 2. The three steps of a
// chunk overlap with those of its neighbours: in each round a rank stages chunk k, reduces its part
// of chunk k - 1, and gathers chunk k - 2.
absl::Status ShmCollectives::ReduceScatterGather(int root, const Tensor& tensor, ReduceOp op,
                                                 const WaitContext& context) {
  const size_t bytes = tensor.nbytes();
  const size_t chunk = ChunkSize(bytes);
  const uint64_t chunks = CeilDiv(bytes, chunk), first = chunks_;
  const size_t part = CeilDiv(CeilDiv(chunk, size()), base::kCacheLine) * base::kCacheLine;
  const ChunkRing::Slots slots = chunk_ring_.Allocate(chunk, chunks);
  const bool has_result = root == kEveryRank || root == rank();
  for (uint64_t k = 0; k < chunks + 2; ++k) {
    if (k < chunks) {
      if (k >= kPipelineDepth) {
        SYNCLINE_RETURN_IF_ERROR(
            AwaitOthers(&RankRegion::chunks_read, first + k - kPipelineDepth + 1, context));
      }
      const ByteRange range(bytes, chunk, k);
      const ByteRange own(range.size, part, rank());
      const size_t end = own.begin + own.size;
      char* const to = layout_.chunk(rank(), slots.offset(k));
      const char* const from = Bytes(tensor) + range.begin;
      // All except this rank's own part, which nobody else reduces.
      copier_.Copy(to, from, own.begin);
      copier_.Copy(to + end, from + end, range.size - end);
      Advance(&RankRegion::chunks_written, first + k + 1);
    }
    if (k >= 1 && k <= chunks) {
      const uint64_t number = first + k - 1;
      SYNCLINE_RETURN_IF_ERROR(AwaitOthers(&RankRegion::chunks_written, number + 1, context));
      const ByteRange range(bytes, chunk, k - 1);
      const ByteRange own(range.size, part, rank());
      char* const mine = Bytes(tensor) + range.begin + own.begin;
      char* const reduced = layout_.reduced(rank(), slots.slot(k - 1) * part);
      Inputs inputs(size());
      for (int r = 0; r < size(); ++r) {
        inputs[r] = r == rank() ? mine : layout_.chunk(r, slots.offset(k - 1)) + own.begin;
      }
      if (own.size > 0) {
        // A rank without a result must not write to its tensor.
        tensor::Reduce(tensor.dtype(), op, has_result ? mine : reduced, inputs,
                       own.size / SizeOf(tensor.dtype()));
        if (root == kEveryRank) copier_.Copy(reduced, mine, own.size);
      }
      Advance(&RankRegion::chunks_reduced, number + 1);
      if (!has_result) Advance(&RankRegion::chunks_read, number + 1);
    }
    if (k >= 2 && has_result) {
      const uint64_t number = first + k - 2;
      SYNCLINE_RETURN_IF_ERROR(AwaitOthers(&RankRegion::chunks_reduced, number + 1, context));
      const ByteRange range(bytes, chunk, k - 2);
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        const ByteRange theirs(range.size, part, r);
        Copy(Bytes(tensor) + range.begin + theirs.begin,
             layout_.reduced(r, slots.slot(k - 2) * part), theirs.size);
      }
      Advance(&RankRegion::chunks_read, number + 1);
    }
  }
  chunks_ += chunks;
  return absl::OkStatus();
}

absl::Status ShmCollectives::AllGather(absl::Span<const Tensor> outputs, const Tensor& input,
                                       const CallContext& context) {
  size_t largest = 0;
  for (const Tensor& output : outputs) largest = std::max(largest, output.nbytes());
  return RunCollective(context, EagerBytes(largest), [&](CollectiveEntry& entry) {
    return GatherTo(kEveryRank, outputs, input, largest, entry);
  });
}

absl::Status ShmCollectives::Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root,
                                    const CallContext& context) {
  return RunCollective(context, EagerBytes(input.nbytes()), [&](CollectiveEntry& entry) {
    return GatherTo(root, outputs, input, input.nbytes(), entry);
  });
}

absl::Status ShmCollectives::GatherTo(int root, absl::Span<const Tensor> outputs,
                                      const Tensor& input, size_t largest, CollectiveEntry& entry) {
  const size_t bytes = input.nbytes();
  const bool has_result = root == kEveryRank || root == rank();
  const bool is_eager = largest <= eager();
  const auto copy_whole = [&](const auto& data) {
    if (!has_result) return;
    for (int r = 0; r < size(); ++r) {
      const Tensor& output = outputs[r];
      Copy(output.data(), r == rank() ? input.data() : data(r), output.nbytes());
    }
  };
  if (is_eager) {
    if (root != rank()) {
      SYNCLINE_ASSIGN_OR_RETURN(char* const buffer, entry.Stage(bytes, !has_result));
      copier_.Copy(buffer, input.data(), bytes);
    }
    SYNCLINE_RETURN_IF_ERROR(entry.Exchange(has_result ? kEveryRank : kNoRank));
    copy_whole([&](int r) { return entry.BufferOf(r); });
    return absl::OkStatus();
  }
  const ReadableRanks readable = {kEveryRank, root};
  // Ranks without a result have no outputs: there all inputs have one size.
  const auto bytes_of = [&](int r) { return outputs.empty() ? bytes : outputs[r].nbytes(); };
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_direct,
                            direct_.Exchange(entry, largest, readable, Only(input), bytes_of));
  if (is_direct) {
    // From the next rank on, so that not all read the same one at a time.
    for (int i = 0; has_result && i < size(); ++i) {
      const int r = (rank() + i) % size();
      const Tensor& output = outputs[r];
      if (r == rank()) {
        Copy(output.data(), input.data(), bytes);
      } else {
        SYNCLINE_RETURN_IF_ERROR(
            direct_.Read(r, 0, output.data(), output.nbytes(), entry.context()));
      }
    }
    return direct_.Finish(readable, entry.context());
  }
  if (size() == 1) {
    Copy(outputs[0].data(), input.data(), bytes);
    return absl::OkStatus();
  }
  // Inputs of all_gather may differ in size: chunks beyond the end of one are empty.
  const size_t chunk = ChunkSize(largest);
  return RunPipeline(
      {entry.context(), chunk, CeilDiv(largest, chunk), kEveryRank, has_result},
      [&](uint64_t k, char* to) {
        const ByteRange range(bytes, chunk, k);
        if (root != rank()) copier_.Copy(to, Bytes(input) + range.begin, range.size);
        if (has_result) {
          Copy(Bytes(outputs[rank()]) + range.begin, Bytes(input) + range.begin, range.size);
        }
      },
      [&](uint64_t k, size_t offset) {
        for (int r = 0; r < size(); ++r) {
          if (r == rank()) continue;
          const ByteRange range(outputs[r].nbytes(), chunk, k);
          Copy(Bytes(outputs[r]) + range.begin, layout_.chunk(r, offset), range.size);
        }
      });
}

void ShmCollectives::StageBlocks(absl::Span<const Tensor> inputs, size_t block_size, uint64_t k,
                                 char* to) {
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const ByteRange range(inputs[r].nbytes(), block_size, k);
    copier_.Copy(to + BlockIndex(r, rank()) * block_size, Bytes(inputs[r]) + range.begin,
                 range.size);
  }
}

template <typename Consume, typename ReadDirect>
absl::Status ShmCollectives::ScatterBlocks(const PeerBlocks& blocks, CollectiveEntry& entry,
                                           const Consume& consume, const ReadDirect& read_direct) {
  const size_t block_size = BlockSizeFor(blocks.largest);
  const bool produces = !blocks.inputs.empty(), consumes = blocks.producer != rank();
  if (EagerBlockBytes(blocks.largest) < blocks.largest) {  // They are too many for that.
    const ReadableRanks readable = {blocks.producer};
    SYNCLINE_ASSIGN_OR_RETURN(const bool is_direct,
                              direct_.Exchange(entry, blocks.largest, readable, blocks.inputs,
                                               [&](int) { return blocks.total; }));
    if (!is_direct) return ScatterBlocksPipelined(blocks, entry.context(), consume);
    if (consumes) SYNCLINE_RETURN_IF_ERROR(read_direct());
    return direct_.Finish(readable, entry.context());
  }
  if (produces) {
    SYNCLINE_ASSIGN_OR_RETURN(char* const buffer, entry.Stage(block_size * others(), !consumes));
    StageBlocks(blocks.inputs, block_size, 0, buffer);
  }
  SYNCLINE_RETURN_IF_ERROR(entry.Exchange(consumes ? blocks.producer : kNoRank));
  if (consumes) {
    consume(0, block_size,
            [&](int r) { return entry.BufferOf(r) + BlockIndex(rank(), r) * block_size; });
  }
  return absl::OkStatus();
}

template <typename Consume>
absl::Status ShmCollectives::ScatterBlocksPipelined(const PeerBlocks& blocks,
                                                    const WaitContext& context,
                                                    const Consume& consume) {
  const BufferSizes::BlockChunks sizes = layout_.sizes().BlockChunksOf(blocks.largest, others());
  const uint64_t chunks = CeilDiv(blocks.largest, sizes.block);
  return RunPipeline(
      {context, sizes.chunk, chunks, blocks.producer, blocks.producer != rank()},
      [&](uint64_t k, char* to) { StageBlocks(blocks.inputs, sizes.block, k, to); },
      [&](uint64_t k, size_t offset) {
        consume(k * sizes.block, sizes.block, [&](int r) {
          return layout_.chunk(r, offset) + BlockIndex(rank(), r) * sizes.block;
        });
      });
}

absl::Status ShmCollectives::Scatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                     int root, const CallContext& context) {
  const size_t bytes = output.nbytes();
  return RunCollective(context, EagerBlockBytes(bytes), [&](CollectiveEntry& entry) {
    SYNCLINE_RETURN_IF_ERROR(ScatterBlocks(
        {root, inputs, bytes, size() * bytes}, entry,
        [&](size_t begin, size_t size, const auto& data) {
          Copy(Bytes(output) + begin, data(root), std::min(size, bytes - begin));
        },
        [&] { return direct_.Read(root, rank() * bytes, output.data(), bytes, entry.context()); }));
    if (root == rank()) Copy(output.data(), inputs[rank()].data(), bytes);
    return absl::OkStatus();
  });
}

absl::Status ShmCollectives::ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                           ReduceOp op, const CallContext& context) {
  size_t largest = 0, own_begin = 0, total = 0;
  for (int r = 0; r < size(); ++r) {
    largest = std::max(largest, inputs[r].nbytes());
    total += inputs[r].nbytes();
    if (r < rank()) own_begin += inputs[r].nbytes();
  }
  const auto consume = [&](size_t begin, size_t block_size, const auto& data) {
    if (begin >= output.nbytes()) return;
    const size_t bytes = std::min(block_size, output.nbytes() - begin);
    Inputs blocks(size());
    for (int r = 0; r < size(); ++r) {
      blocks[r] = r == rank() ? Bytes(inputs[r]) + begin : data(r);
    }
    tensor::Reduce(output.dtype(), op, Bytes(output) + begin, blocks,
                   bytes / SizeOf(output.dtype()));
  };
  return RunCollective(context, EagerBlockBytes(largest), [&](CollectiveEntry& entry) {
    return ScatterBlocks({kEveryRank, inputs, largest, total}, entry, consume, [&] {
      return direct_.Reduce(output.dtype(), op, own_begin, Bytes(inputs[rank()]), Bytes(output),
                            output.nbytes(), entry.context());
    });
  });
}

absl::Status ShmCollectives::AllToAll(absl::Span<const Tensor> outputs,
                                      absl::Span<const Tensor> inputs, const CallContext& context) {
  const auto consume = [&](size_t begin, size_t block_size, const auto& data) {
    for (int r = 0; r < size(); ++r) {
      if (r == rank() || begin >= outputs[r].nbytes()) continue;
      Copy(Bytes(outputs[r]) + begin, data(r), std::min(block_size, outputs[r].nbytes() - begin));
    }
  };
  // Only the exchange tells how large the blocks of other ranks are. So each rank stages its own
  // where its own largest block fits: inline, or in the small eager buffer, or in the large one.
  // The others find them there, as the entry says what that largest block is.
  const auto large_block = [&] { return BlockSizeIn(eager()); };
  const auto small_block = [&] { return BlockSizeIn(layout_.sizes().small_eager); };
  const size_t unit = SizeOf(inputs[0].dtype());
  const auto is_inline = [&](size_t largest) {
    return largest * others() <= CollectiveEntry::kInlineBytesAfterSplits;
  };
  const auto block_size = [&](size_t largest) {
    if (is_inline(largest)) return largest;
    return largest <= small_block() ? small_block() : large_block();
  };
  return RunCollective(context, 0, [&](CollectiveEntry& entry) -> absl::Status {
    const size_t own_largest = entry.StageSplits() * unit;
    if (is_inline(own_largest)) {
      StageBlocks(inputs, own_largest, 0, entry.InlineDataAfterSplits(own_largest * others()));
    } else if (own_largest <= large_block()) {
      const size_t block = block_size(own_largest);
      SYNCLINE_ASSIGN_OR_RETURN(char* const buffer,
                                entry.StageAfterSplits(block * (others() - 1) + own_largest));
      StageBlocks(inputs, block, 0, buffer);
    } else {
      direct_.StageAddress(entry, own_largest, inputs);
    }
    SYNCLINE_RETURN_IF_ERROR(entry.Exchange());
    SYNCLINE_ASSIGN_OR_RETURN(const int64_t elements, entry.CheckSplits());
    Copy(outputs[rank()].data(), inputs[rank()].data(), inputs[rank()].nbytes());
    const size_t largest = elements * unit;
    if (!is_inline(largest) && largest > large_block()) {
      const WaitContext& waiting = entry.context();
      // Where all blocks have this size, all ranks have staged an address, or all the blocks.
      const bool has_addresses = !is_inline(largest) && entry.HasEvenSplits();
      if (has_addresses && direct_.ResolveAddresses(entry)) {
        for (int i = 1; i < size(); ++i) {
          const int r = (rank() + i) % size();
          SYNCLINE_RETURN_IF_ERROR(
              direct_.Read(r, rank() * largest, outputs[r].data(), largest, waiting));
        }
        return direct_.Finish({}, waiting);
      }
      return ScatterBlocksPipelined({kEveryRank, inputs, largest, 0}, waiting, consume);
    }
    consume(0, largest, [&](int r) -> const char* {
      const size_t their_largest = entry.LargestBlockOf(r) * unit;
      const char* const blocks = is_inline(their_largest) ? entry.InlineDataAfterSplitsOf(r)
                                                          : entry.BufferAfterSplitsOf(r);
      return blocks + BlockIndex(rank(), r) * block_size(their_largest);
    });
    return absl::OkStatus();
  });
}

}  // namespace syncline::shm
