// SegmentLedger: who uses which segment. The state of a segment manager, without input or output.
#ifndef SYNCLINE_CORE_SEGMENTS_SEGMENT_LEDGER_H_
#define SYNCLINE_CORE_SEGMENTS_SEGMENT_LEDGER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <tuple>

namespace syncline::segments {

using ClientId = uint64_t;

// A segment, as its name says.
struct SegmentKey {
  int32_t pid = 0;
  ClientId maker = 0;
  uint64_t number = 0;
  bool operator<(const SegmentKey& other) const {
    return std::tie(maker, number) < std::tie(other.maker, other.number);
  }
};

// Counts, for each segment, the clients that map it and the messages that carry its name, by their
// senders. A segment is free when all counts are zero.
//
// Requests of different clients come in any order: a receiver may claim a segment before the
// manager has read that it was sent. So a count may be below zero for a while; it is zero when both
// requests have been read, in whichever order.
//
// Not thread-safe.
class SegmentLedger {
 public:
  // `free` removes a segment's name.
  explicit SegmentLedger(std::function<void(const SegmentKey&)> free) : free_(std::move(free)) {}

  ClientId Join() { return ++last_; }

  // The client maps the segment: one use more, or one less.
  void Use(ClientId client, const SegmentKey& segment, int change);
  // The messages of `sender` that carry the segment: one more, or one less. Nothing for a sender
  // that was killed: its messages count no longer.
  void Carry(ClientId sender, const SegmentKey& segment, int change);
  bool Has(const SegmentKey& segment) const { return segments_.count(segment) != 0; }

  // The client has ended. What it mapped counts no longer; nor do its messages, unless it said
  // before that it leaves of its own accord: then receivers still get them.
  void Leave(ClientId client) { left_.insert(client); }
  void End(ClientId client);

  // Frees all segments.
  void FreeAll();
  size_t size() const { return segments_.size(); }

 private:
  struct Counts {
    std::map<ClientId, int64_t> uses;
    std::map<ClientId, int64_t> carried;
  };

  static void Change(std::map<ClientId, int64_t>& counts, ClientId client, int change);
  // Removes the segment if nothing counts. Returns the next one.
  std::map<SegmentKey, Counts>::iterator FreeIfUnused(std::map<SegmentKey, Counts>::iterator it);

  const std::function<void(const SegmentKey&)> free_;
  std::map<SegmentKey, Counts> segments_;
  ClientId last_ = 0;
  std::set<ClientId> left_;    // Connected clients that have said that they leave.
  std::set<ClientId> killed_;  // Ended clients that have not.
};

}  // namespace syncline::segments

#endif  // SYNCLINE_CORE_SEGMENTS_SEGMENT_LEDGER_H_
