// Byte strings of different sizes. See process_group_conformance.h.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "syncline/byte_collectives.h"
#include "syncline/status.h"
#include "tests/groups/process_group_conformance.h"

namespace syncline {
namespace {

// What a rank brings: nothing, little or much, with bytes of every value.
std::string Text(int rank, int variant) {
  const size_t sizes[] = {0, 1, 300, 100003};
  std::string text(sizes[(rank + variant) % 4], '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + rank + variant);
  return text;
}

constexpr int kVariants = 4;

std::vector<std::string> AllTexts(int size, int variant) {
  std::vector<std::string> texts;
  for (int r = 0; r < size; ++r) texts.push_back(Text(r, variant));
  return texts;
}

}  // namespace

TEST_P(GroupConformance, ByteStringsAreGatheredWhateverTheirSizes) {
  Run([](ProcessGroup& group) -> absl::Status {
    for (int variant = 0; variant < kVariants; ++variant) {
      const std::vector<std::string> all = AllTexts(size(), variant);
      const std::string own = Text(group.rank(), variant);
      SYNCLINE_ASSIGN_OR_RETURN(const auto gathered, AllGatherBytes(group, own));
      SYNCLINE_RETURN_IF_ERROR(Expect(gathered == all, "all_gather", group));
      const int root = variant % size();
      SYNCLINE_ASSIGN_OR_RETURN(const auto on_root, GatherBytes(group, own, root));
      const bool right = group.rank() == root ? on_root == all : on_root.empty();
      SYNCLINE_RETURN_IF_ERROR(Expect(right, "gather", group));
    }
    return absl::OkStatus();
  });
}

TEST_P(GroupConformance, ByteStringsAreBroadcastAndScatteredWhateverTheirSizes) {
  Run([](ProcessGroup& group) -> absl::Status {
    for (int variant = 0; variant < kVariants; ++variant) {
      const int root = variant % size();
      SYNCLINE_ASSIGN_OR_RETURN(const std::string got,
                                BroadcastBytes(group, Text(group.rank(), variant), root));
      SYNCLINE_RETURN_IF_ERROR(Expect(got == Text(root, variant), "broadcast", group));
      std::vector<std::string> values;
      if (group.rank() == root) values = AllTexts(size(), variant);
      SYNCLINE_ASSIGN_OR_RETURN(const std::string part, ScatterBytes(group, values, root));
      SYNCLINE_RETURN_IF_ERROR(Expect(part == Text(group.rank(), variant), "scatter", group));
    }
    return absl::OkStatus();
  });
}

TEST_P(GroupConformance, ByteStringsAreSentAndReceivedFromAnyRank) {
  if (size() == 1) return;
  Run([](ProcessGroup& group) -> absl::Status {
    for (int variant = 0; variant < kVariants; ++variant) {
      if (group.rank() > 0) {
        SYNCLINE_RETURN_IF_ERROR(SendBytes(group, Text(group.rank(), variant), 0, variant));
        continue;
      }
      std::vector<bool> heard(size());
      for (int i = 1; i < size(); ++i) {
        const int src = variant % 2 == 0 ? kAnySource : i;
        SYNCLINE_ASSIGN_OR_RETURN(const auto message, RecvBytes(group, src, variant));
        const int from = message->source_rank();
        SYNCLINE_RETURN_IF_ERROR(Expect(from > 0 && from < size() && !heard[from], "from", group));
        heard[from] = true;
        SYNCLINE_RETURN_IF_ERROR(Expect(message->value() == Text(from, variant), "recv", group));
      }
    }
    return absl::OkStatus();
  });
}

namespace {

// One rank's call of a collective of byte strings. What rank 0 calls in its place announces `size`.
struct Announcement {
  const char* name;
  std::function<absl::Status(ProcessGroup& group)> call;
  std::function<absl::Status(ProcessGroup& group, int64_t size)> announce;
};

std::vector<Announcement> Announcements() {
  auto to_all = [](ProcessGroup& group, int64_t size) {
    std::vector<int64_t> own = {size}, all(group.size());
    return group.AllGatherSingle(Tensor::Of(all), Tensor::Of(own));
  };
  auto from_root = [](ProcessGroup& group, int64_t size) {
    std::vector<int64_t> one = {size};
    return group.Broadcast(Tensor::Of(one), 0);
  };
  auto for_each = [](ProcessGroup& group, int64_t size) {
    std::vector<int64_t> sizes(group.size(), size);
    return group.Broadcast(Tensor::Of(sizes), 0);
  };
  auto message = [](ProcessGroup& group, int64_t size) -> absl::Status {
    std::vector<int64_t> one = {size};
    for (int r = 1; r < group.size(); ++r) {
      SYNCLINE_RETURN_IF_ERROR(group.Send(Tensor::Of(one), r));
    }
    return absl::OkStatus();
  };
  return {
      {"all_gather_bytes", [](ProcessGroup& g) { return AllGatherBytes(g, "x").status(); }, to_all},
      {"gather_bytes", [](ProcessGroup& g) { return GatherBytes(g, "x", 1).status(); }, to_all},
      {"broadcast_bytes", [](ProcessGroup& g) { return BroadcastBytes(g, "x", 0).status(); },
       from_root},
      {"scatter_bytes", [](ProcessGroup& g) { return ScatterBytes(g, {}, 0).status(); }, for_each},
      {"recv_bytes", [](ProcessGroup& g) { return RecvBytes(g, kAnySource).status(); }, message},
  };
}

}  // namespace

TEST_P(GroupConformance, AnAnnouncedSizeThatCannotBeIsAMismatchThatEndsTheGroup) {
  if (size() == 1) return;
  for (const Announcement& announcement : Announcements()) {
    for (const int64_t announced : {int64_t{-1}, int64_t{1} << 61}) {
      SCOPED_TRACE(absl::StrCat(announcement.name, " of ", announced));
      // Of ranks that see it at once, one may be ended by another before its own turn has come.
      int named = 0;
      for (const absl::Status& status : RunGroup(backend(), size(), [&](ProcessGroup& group) {
             if (group.rank() > 0) return announcement.call(group);
             announcement.announce(group, announced).IgnoreError();
             return group.Barrier();  // In place of the bytes; fails since the group has ended.
           })) {
        ASSERT_FALSE(status.ok());
        EXPECT_THAT(
            std::string(status.message()),
            testing::HasSubstr(absl::StrCat("rank 0 announced a value of ", announced, " bytes")));
        if (KindOf(status) == ErrorKind::kMismatch) ++named;
      }
      EXPECT_GT(named, 0);
    }
  }
}

}  // namespace syncline
