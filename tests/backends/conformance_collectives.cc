// The cases of collectives. See conformance_data.h.
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "syncline/status.h"
#include "tests/backends/conformance_data.h"
#include "tests/support/operations.h"

namespace syncline {
namespace {

constexpr int64_t kLarge = 1 << 20;

std::vector<BufferUse> BufferUsesOf(OpKind kind) {
  if (!AllowsInPlace(kind)) return {BufferUse::kApart};
  return {BufferUse::kApart, BufferUse::kInPlace};
}

// Every count and use of buffers, from one root after another.
std::vector<Spec> SmallSpecs(const Spec& base, int size) {
  std::vector<Spec> specs;
  for (int64_t count : {0, 1, 7, 1000}) {
    for (BufferUse buffers : BufferUsesOf(base.kind)) {
      Spec spec = base;
      spec.count = count;
      spec.root = HasRoot(base.kind) ? static_cast<int>(specs.size()) % size : 0;
      spec.buffers = buffers;
      specs.push_back(spec);
    }
  }
  return specs;
}

// Every root and use of buffers, for one count.
std::vector<Spec> RootSpecs(const Spec& base, int size) {
  std::vector<Spec> specs;
  for (int root = 0; HasRoot(base.kind) && root < size; ++root) {
    for (BufferUse buffers : BufferUsesOf(base.kind)) {
      Spec spec = base;
      spec.count = 20;
      spec.root = root;
      spec.buffers = buffers;
      specs.push_back(spec);
    }
  }
  return specs;
}

std::vector<Spec> UnevenSpecs(const Spec& base) {
  std::vector<Spec> specs;
  if (!HasSplits(base.kind)) return specs;
  std::vector<std::vector<int64_t>> all = {{0, 5, 1, 1000}, {3, 0}, {700, 1, 0, 0, 2}};
  // Of 2 and of 3 ranks, rank 0 alone has parts of one size, which it might send before it knows.
  if (base.kind == OpKind::kAllToAll) {
    for (const int64_t many : {5, 20'000}) all.push_back({many, many, many, 7, many, 7, 7});
  }
  for (const std::vector<int64_t>& uneven : all) {
    for (BufferUse buffers : BufferUsesOf(base.kind)) {
      Spec spec = base;
      spec.uneven = uneven;
      spec.buffers = buffers;
      specs.push_back(spec);
    }
  }
  return specs;
}

// The large one, once for each type: 1 Mi elements in one tensor, or in all parts of a list.
Spec LargeSpec(const Spec& base, int size) {
  Spec spec = base;
  const bool has_list = !Reduces(base.kind) && base.kind != OpKind::kBroadcast;
  spec.count = has_list || base.kind == OpKind::kReduceScatter ? kLarge / size : kLarge;
  spec.root = HasRoot(base.kind) ? size - 1 : 0;
  return spec;
}

std::vector<Spec> SpecsOf(OpKind kind, const Capabilities& capabilities, int size) {
  std::vector<Spec> specs;
  auto append = [&](const std::vector<Spec>& more) {
    specs.insert(specs.end(), more.begin(), more.end());
  };
  const EnumSet<DType>& dtypes =
      Reduces(kind) ? capabilities.reduce_dtypes : capabilities.move_dtypes;
  for (DType dtype : dtypes) {
    const std::vector<ReduceOp> ops = ReductionsOf(kind, dtype);
    for (ReduceOp op : ops) {
      const Spec base = {kind, dtype, 0, op};
      append(SmallSpecs(base, size));
      append(UnevenSpecs(base));
    }
    const ReduceOp op = ops[static_cast<size_t>(dtype) % ops.size()];  // Another for each type.
    append(RootSpecs({kind, dtype, 0, op}, size));
    append({LargeSpec({kind, dtype, 0, op}, size)});
  }
  return specs;
}

// Notes what all ranks must have alike.
void NoteResults(const Collective& done, Member& member) {
  const bool same = done.kind == OpKind::kBroadcast || done.kind == OpKind::kAllReduce;
  if (same) member.AddToDigest(*done.tensor);
  if (done.kind != OpKind::kAllGather) return;
  for (const Tensor& output : done.outputs) member.AddToDigest(output);
}

absl::Status RunSpec(const Spec& spec, Member& member) {
  const Collective operation = Build(spec, member.rank(), member.size());
  SYNCLINE_RETURN_IF_ERROR(member.Run(operation));
  NoteResults(operation, member);
  return CheckDone(spec, operation, member.rank(), member.size());
}

// Every element type with every reduction, size, root, use of buffers and split.
absl::Status RunKind(OpKind kind, Member& member) {
  if (member.capabilities().ops.count(kind) == 0) return absl::OkStatus();
  for (const Spec& spec : SpecsOf(kind, member.capabilities(), member.size())) {
    SYNCLINE_RETURN_IF_ERROR(RunSpec(spec, member));
  }
  return absl::OkStatus();
}

// No rank leaves before the last has come.
absl::Status RunBarriers(Member& member) {
  for (int round = 0; round < 20; ++round) {
    const std::string key = absl::StrCat("arrivals/", round);
    SYNCLINE_RETURN_IF_ERROR(member.store().Add(key, 1).status());
    SYNCLINE_RETURN_IF_ERROR(
        RunAndWait(member.backend(), Collective::Barrier(), member.Next()).status());
    SYNCLINE_ASSIGN_OR_RETURN(const int64_t arrivals, member.store().Add(key, 0));
    if (arrivals != member.size()) {
      return absl::InternalError(absl::StrCat("rank ", member.rank(), " left barrier ", round,
                                              " after ", arrivals, " arrivals"));
    }
  }
  return absl::OkStatus();
}

// Different operations one after another, without pause: none takes another's data.
absl::Status RunMixture(Member& member) {
  const std::vector<OpKind> kinds = CollectiveKinds();
  for (int i = 0; i < 200; ++i) {
    Spec spec = {kinds[i * 7 % kinds.size()], DType::kInt32, 1 + i * 37 % 300};
    if (HasRoot(spec.kind)) spec.root = i % member.size();
    SYNCLINE_RETURN_IF_ERROR(RunSpec(spec, member));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<DataCase> CollectiveCases() {
  std::vector<DataCase> cases;
  for (OpKind kind : CollectiveKinds()) {
    if (kind == OpKind::kBarrier) continue;
    cases.push_back({std::string(Name(kind)), {kind}, [kind](Member& member) {
                       return RunKind(kind, member);
                     }});
  }
  cases.push_back({"barrier", {OpKind::kBarrier}, &RunBarriers});
  cases.push_back({"mixture", {}, &RunMixture});
  return cases;
}

}  // namespace syncline
