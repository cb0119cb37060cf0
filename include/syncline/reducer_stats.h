// When the buckets of a step were ready, reduced and done.
#ifndef SYNCLINE_REDUCER_STATS_H_
#define SYNCLINE_REDUCER_STATS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace syncline {

// Of the last step that communicated. Times are nanoseconds from its begin, by bucket in the order
// of reduction. On a device, `end` is 0 until the host has noticed that the device has ended the
// bucket: ask again for it, and for the times and shares that follow from it.
struct ReducerStats {
  int64_t steps = 0;  // That communicated without an error.
  std::string hook;   // "all_reduce" if there is none.
  std::vector<int64_t> bucket_bytes;
  std::vector<int64_t> bucket_parameters;  // How many.
  std::vector<int64_t> ready;              // The last gradient was there.
  std::vector<int64_t> start;              // The bucket was handed to the group.
  std::vector<int64_t> end;                // The average was there.
  int64_t backward_end = 0;                // Finish or AwaitBucket was called.
  int64_t step_end = 0;                    // Finish returned.
  int64_t own_time = 0;            // Spent in the reducer itself: neither waiting nor copying.
  int64_t copy_time = 0;           // Spent in copying or adding gradients to their buckets.
  double total_overlap_share = 0;  // overlap_share over all steps.

  // Time with communication in flight, and how much of it lay before backward_end.
  int64_t communication_time() const;
  int64_t hidden_time() const;
  // hidden_time / communication_time; 1 if there was no communication.
  double overlap_share() const;
  // A table, a line for each bucket.
  std::string ToString() const;
};

}  // namespace syncline

#endif  // SYNCLINE_REDUCER_STATS_H_
