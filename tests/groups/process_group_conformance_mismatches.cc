// Ranks whose calls move as many bytes, but are not the same: the forms on several tensors pack
// them into one. See process_group_conformance.h.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "syncline/status.h"
#include "tests/groups/process_group_conformance.h"

namespace syncline {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Tensors = std::vector<Tensor>;
using Call = std::function<absl::Status(ProcessGroup& group)>;

constexpr DType kF32 = DType::kFloat32, kI32 = DType::kInt32;

struct Part {
  DType dtype;
  int64_t count;
};

Tensors Blank(const std::vector<Part>& parts, int64_t each = 1) {
  Tensors tensors;
  for (const Part& part : parts) {
    for (int64_t i = 0; i < each; ++i) tensors.push_back(Tensor::Zeros(part.dtype, {part.count}));
  }
  return tensors;
}

Call Broadcast(std::vector<Part> parts) {
  return [=](ProcessGroup& group) { return group.BroadcastCoalesced(Blank(parts), 0); };
}
Call AllReduce(std::vector<Part> parts) {
  return [=](ProcessGroup& group) { return group.AllReduceCoalesced(Blank(parts)); };
}
Call AllGather(std::vector<Part> parts) {
  return [=](ProcessGroup& group) {
    return group.AllGatherCoalesced(Blank(parts, group.size()), Blank(parts));
  };
}
Call ReduceScatter(std::vector<Part> parts) {
  return [=](ProcessGroup& group) {
    return group.ReduceScatterCoalesced(Blank(parts), Blank(parts, group.size()));
  };
}

// A call and how messages quote it.
struct Quoted {
  Call call;
  std::string text;
};

struct Deviation {
  const char* name;
  Quoted usual, deviant;
};

std::vector<Deviation> Deviations() {
  const Call all_reduce = [](ProcessGroup& group) {
    return group.AllReduce(Tensor::Zeros(kF32, {6}));
  };
  const auto all_reduce_multi = [](int64_t tensors, int64_t count) -> Call {
    return
        [=](ProcessGroup& group) { return group.AllReduceMulti(Blank({{kF32, count}}, tensors)); };
  };
  const auto broadcast_multi = [](int64_t tensors) -> Call {
    return
        [=](ProcessGroup& group) { return group.BroadcastMulti(Blank({{kF32, 4}}, tensors), 0); };
  };
  return {
      {"another type",
       {Broadcast({{kF32, 4}}), "broadcast_coalesced #0 (float32[4], root 0)"},
       {Broadcast({{kI32, 4}}), "broadcast_coalesced #0 (int32[4], root 0)"}},
      {"other sizes",
       {Broadcast({{kF32, 2}, {kF32, 4}}),
        "broadcast_coalesced #0 (float32[2], float32[4], root 0)"},
       {Broadcast({{kF32, 4}, {kF32, 2}}),
        "broadcast_coalesced #0 (float32[4], float32[2], root 0)"}},
      {"more tensors",
       {AllReduce({{kF32, 6}}), "all_reduce_coalesced #0 (float32[6], sum)"},
       {AllReduce({{kF32, 3}, {kF32, 3}}), "all_reduce_coalesced #0 (2 x float32[3], sum)"}},
      {"gathers another type",
       {AllGather({{kF32, 4}}), "all_gather_coalesced #0 (float32[4])"},
       {AllGather({{kI32, 4}}), "all_gather_coalesced #0 (int32[4])"}},
      {"scatters other sizes",
       {ReduceScatter({{kF32, 1}, {kF32, 2}}),
        "reduce_scatter_coalesced #0 (float32[1], float32[2], sum)"},
       {ReduceScatter({{kF32, 2}, {kF32, 1}}),
        "reduce_scatter_coalesced #0 (float32[2], float32[1], sum)"}},
      {"another form",
       {all_reduce, "all_reduce #0 (float32, 6 elements, sum)"},
       {AllReduce({{kF32, 6}}), "all_reduce_coalesced #0 (float32[6], sum)"}},
      {"more tensors of equal size",
       {all_reduce_multi(1, 6), "all_reduce_multi #0 (float32[6], sum)"},
       {all_reduce_multi(2, 6), "all_reduce_multi #0 (2 x float32[6], sum)"}},
      {"more tensors to broadcast to",
       {broadcast_multi(1), "broadcast_multi #0 (float32[4], root 0)"},
       {broadcast_multi(3), "broadcast_multi #0 (3 x float32[4], root 0)"}},
      {"a list too long to tell",
       {Broadcast(std::vector<Part>(30, {kF32, 70})),
        "broadcast_coalesced #0 (30 x float32[70], root 0)"},
       {Broadcast({{kF32, 1},
                   {kF32, 2},
                   {kF32, 3},
                   {kF32, 4},
                   {kF32, 5},
                   {kF32, 6},
                   {kF32, 7},
                   {kF32, 8},
                   {kF32, 9},
                   {kF32, 2055}}),
        "broadcast_coalesced #0 (float32[1], float32[2], float32[3], float32[4], float32[5], "
        "float32[6], float32[7], float32[8], 2 more, root 0)"}},
  };
}

}  // namespace

TEST_P(GroupConformance, CallsThatMoveAsManyBytesButDifferAreAMismatchInTheUsersTerms) {
  if (size() == 1) return;
  for (const auto& [name, usual, deviant] : Deviations()) {
    SCOPED_TRACE(name);
    const int odd = size() - 1;
    const auto statuses = RunGroup(backend(), size(), [&](ProcessGroup& group) {
      return RankOf(group) == odd ? deviant.call(group) : usual.call(group);
    });
    for (const absl::Status& status : statuses) {
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(absl::StrCat("rank ", odd, " called ", deviant.text)),
                        HasSubstr(absl::StrCat("rank 0 called ", usual.text))));
    }
  }
}

TEST_P(GroupConformance, ListsThatDifferBeyondWhatIsToldAreAMismatchThatSaysSo) {
  if (size() == 1) return;
  std::vector<Part> usual;
  for (int64_t i = 0; i < 20; ++i) usual.push_back({kF32, i});
  std::vector<Part> odd = usual;
  std::swap(odd[18], odd[19]);
  for (const absl::Status& status : RunGroup(backend(), size(), [&](ProcessGroup& group) {
         return Broadcast(group.rank() == 0 ? odd : usual)(group);
       })) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("12 more, root 0), which differ in a "
                                                         "tensor that is not shown here"));
  }
}

TEST_P(GroupConformance, OneTensorAndAListGoTogether) {
  Run([](ProcessGroup& group) -> absl::Status {
    const Tensor input = Tensor::Zeros(kF32, {3});
    if (group.rank() == 0) {
      SYNCLINE_RETURN_IF_ERROR(group.AllGatherSingle(Tensor::Zeros(kF32, {3 * size()}), input));
      return group.ReduceScatterSingle(input, Tensor::Zeros(kF32, {3 * size()}));
    }
    SYNCLINE_RETURN_IF_ERROR(group.AllGather(Blank({{kF32, 3}}, size()), input));
    return group.ReduceScatter(input, Blank({{kF32, 3}}, size()));
  });
}

}  // namespace syncline
