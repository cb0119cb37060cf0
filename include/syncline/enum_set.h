// EnumSet: a set of enumerators.
#ifndef SYNCLINE_ENUM_SET_H_
#define SYNCLINE_ENUM_SET_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "syncline/check.h"

namespace syncline {

// As std::set<E>, in one word: a lookup costs nothing, which matters where every call looks. E's
// values are 0 to 63. Not synchronised, as std::set.
template <typename E>
class EnumSet {
 public:
  using value_type = E;

  class const_iterator {
   public:
    using value_type = E;

    explicit const_iterator(uint64_t rest) : rest_(rest) {}
    E operator*() const { return static_cast<E>(__builtin_ctzll(rest_)); }
    const_iterator& operator++() {
      rest_ &= rest_ - 1;
      return *this;
    }
    bool operator==(const const_iterator& other) const { return rest_ == other.rest_; }
    bool operator!=(const const_iterator& other) const { return rest_ != other.rest_; }

   private:
    uint64_t rest_;
  };
  using iterator = const_iterator;

  EnumSet() = default;
  constexpr EnumSet(std::initializer_list<E> values) {
    for (E value : values) insert(value);
  }

  constexpr void insert(E value) { bits_ |= BitOf(value); }
  void erase(E value) { bits_ &= ~BitOf(value); }
  void clear() { bits_ = 0; }

  constexpr size_t count(E value) const { return (bits_ & BitOf(value)) != 0 ? 1 : 0; }
  size_t size() const { return static_cast<size_t>(__builtin_popcountll(bits_)); }
  bool empty() const { return bits_ == 0; }

  const_iterator begin() const { return const_iterator(bits_); }  // In the order of values.
  const_iterator end() const { return const_iterator(0); }

  bool operator==(const EnumSet& other) const { return bits_ == other.bits_; }
  bool operator!=(const EnumSet& other) const { return bits_ != other.bits_; }

 private:
  static constexpr uint64_t BitOf(E value) {
    SYNCLINE_DCHECK(static_cast<unsigned>(value) < 64);
    return uint64_t{1} << static_cast<unsigned>(value);
  }

  uint64_t bits_ = 0;
};

}  // namespace syncline

#endif  // SYNCLINE_ENUM_SET_H_
