// Whether this process was forked after something was made.
#ifndef SYNCLINE_CORE_BASE_FORK_H_
#define SYNCLINE_CORE_BASE_FORK_H_

namespace syncline {

// A child of fork has its parent's memory but none of its threads, and shares its connections: what
// uses either must not be used in the child. Made together with such a thing, it tells parent and
// child apart.
class ForkGuard {
 public:
  ForkGuard();

  // Whether this process is a child, forked since. Costs one load.
  bool InChild() const;

 private:
  int generation_;
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_BASE_FORK_H_
