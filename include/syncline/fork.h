// ForkGuard: tells whether this process was forked after an object was made.
#ifndef SYNCLINE_FORK_H_
#define SYNCLINE_FORK_H_

namespace syncline {

// A child of fork has its parent's memory but none of its threads, and shares its connections. An
// object that uses either must not be used in the child: it has a ForkGuard as a member, and asks
// it. Thread-safe.
class ForkGuard {
 public:
  ForkGuard();

  // Whether this process is a child that was forked after this guard was made. Costs one load.
  bool InChild() const;

 private:
  int generation_;
};

}  // namespace syncline

#endif  // SYNCLINE_FORK_H_
