// The kernels that compute element by element: reductions, scaling, division, conversion.
//
// Threads take turns at groups of as many elements as a vector holds, and at the elements before
// the first and behind the last whole group. Where the addresses of operands are not aligned alike,
// there are no groups, and threads take turns at single elements.
#ifndef SYNCLINE_CORE_DEVICE_KERNELS_ELEMENTWISE_H_
#define SYNCLINE_CORE_DEVICE_KERNELS_ELEMENTWISE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/device/kernels/elements.h"
#include "core/device/kernels/thread.h"

namespace syncline::device::kernels {

// How the elements are split; see SplitElements in split.h.
struct Split {
  uint64_t count;       // Of the elements.
  uint64_t groups;      // How many whole groups there are.
  uint32_t head;        // Elements before the first group.
  uint32_t is_aligned;  // Whether elements are at multiples of their sizes.
};

// Calls group(first element) and single(element) for this thread's share.
template <int kGroup, typename Group, typename Single>
SYNCLINE_HOST_DEVICE void ForEach(const Split& split, const Thread& here, Group group,
                                  Single single) {
  for (uint64_t i = here.index(); i < split.groups; i += here.count()) {
    group(split.head + i * kGroup);
  }
  const uint64_t grouped = split.groups * kGroup;
  for (uint64_t i = here.index(); i < split.count - grouped; i += here.count()) {
    single(i < split.head ? i : i + grouped);
  }
}

// `kCount` elements of type T, which are together as large as a vector, or smaller.
template <int kCount, typename T>
SYNCLINE_HOST_DEVICE void LoadGroup(const void* data, uint64_t first, T* elements) {
  const T* const from = static_cast<const T*>(data) + first;
  if constexpr (kCount * sizeof(T) == kVectorBytes) {
    const Bytes16 loaded = LoadVector(from);
    memcpy(elements, &loaded, sizeof(loaded));
  } else {
    struct alignas(kCount * sizeof(T)) Array {
      T elements[kCount];
    };
    const Array loaded = *reinterpret_cast<const Array*>(from);
    memcpy(elements, &loaded, sizeof(loaded));
  }
}

template <int kCount, typename T>
SYNCLINE_HOST_DEVICE void StoreGroup(const T* elements, void* data, uint64_t first) {
  T* const to = static_cast<T*>(data) + first;
  if constexpr (kCount * sizeof(T) == kVectorBytes) {
    Bytes16 stored;
    memcpy(&stored, elements, sizeof(stored));
    StoreVector(stored, to);
  } else {
    struct alignas(kCount * sizeof(T)) Array {
      T elements[kCount];
    };
    Array stored;
    memcpy(&stored, elements, sizeof(stored));
    *reinterpret_cast<Array*>(to) = stored;
  }
}

template <size_t kBytes>
struct Unsigned;
template <>
struct Unsigned<1> {
  using type = uint8_t;
};
template <>
struct Unsigned<2> {
  using type = uint16_t;
};
template <>
struct Unsigned<4> {
  using type = uint32_t;
};
template <>
struct Unsigned<8> {
  using type = uint64_t;
};

// An element at any address, byte by byte. For devices in assembly, since nvcc 13.0 makes two
// mistakes with memcpy here: it reads 16 bits at once, as in the branch for aligned elements, and
// ptxas takes the store of the lower byte of a converted 16-bit float for a conversion to an
// integer (F2I.U8.F16).

template <typename T>
SYNCLINE_HOST_DEVICE T LoadBytes(const char* from) {
#ifdef __CUDA_ARCH__
  typename Unsigned<sizeof(T)>::type bits = 0;
  for (uint32_t i = 0; i < sizeof(T); ++i) {
    uint32_t byte;
    asm volatile("ld.u8 %0, [%1];" : "=r"(byte) : "l"(from + i) : "memory");
    bits |= static_cast<decltype(bits)>(byte) << (8 * i);
  }
  return BitCast<T>(bits);
#else
  T element;
  memcpy(&element, from, sizeof(element));
  return element;
#endif
}

template <typename T>
SYNCLINE_HOST_DEVICE void StoreBytes(T element, char* to) {
#ifdef __CUDA_ARCH__
  const auto bits = BitCast<typename Unsigned<sizeof(T)>::type>(element);
  for (uint32_t i = 0; i < sizeof(T); ++i) {
    const auto byte = static_cast<uint32_t>(bits >> (8 * i)) & 0xFFu;
    asm volatile("st.u8 [%0], %1;" : : "l"(to + i), "r"(byte) : "memory");
  }
#else
  memcpy(to, &element, sizeof(element));
#endif
}

template <typename T>
SYNCLINE_HOST_DEVICE T LoadOne(const void* data, uint64_t at, bool is_aligned) {
  const char* const from = static_cast<const char*>(data) + at * sizeof(T);
  return is_aligned ? *reinterpret_cast<const T*>(from) : LoadBytes<T>(from);
}

template <typename T>
SYNCLINE_HOST_DEVICE void StoreOne(T element, void* data, uint64_t at, bool is_aligned) {
  char* const to = static_cast<char*>(data) + at * sizeof(T);
  if (is_aligned) {
    *reinterpret_cast<T*>(to) = element;
  } else {
    StoreBytes(element, to);
  }
}

// to[i] = function(from[i]), of Stored types, for groups of kGroup. `to` may be `from`.
template <int kGroup, typename From, typename To, typename Function>
SYNCLINE_HOST_DEVICE void Map(const void* from, void* to, const Split& split, const Thread& here,
                              Function function) {
  ForEach<kGroup>(
      split, here,
      [&](uint64_t first) {
        From in[kGroup];
        To out[kGroup];
        LoadGroup<kGroup>(from, first, in);
        for (int i = 0; i < kGroup; ++i) out[i] = function(in[i]);
        StoreGroup<kGroup>(out, to, first);
      },
      [&](uint64_t at) {
        const bool is_aligned = split.is_aligned != 0;
        StoreOne<To>(function(LoadOne<From>(from, at, is_aligned)), to, at, is_aligned);
      });
}

struct MapArgs {
  Split split;
  void* to;
  const void* from;
  double factor;    // Of Scale.
  int32_t divisor;  // Of Divide.
};

template <class F>
struct Scale {
  using Args = MapArgs;
  using Stored = typename F::Stored;

  static SYNCLINE_HOST_DEVICE void Run(const Args& args, const Thread& here) {
    const auto factor = static_cast<typename F::Computed>(args.factor);
    Map<kVectorBytes / sizeof(Stored), Stored, Stored>(
        args.from, args.to, args.split, here,
        [&](Stored element) { return F::Store(Multiply(F::Load(element), factor)); });
  }
};

template <class F>
struct Divide {
  using Args = MapArgs;
  using Stored = typename F::Stored;

  static SYNCLINE_HOST_DEVICE void Run(const Args& args, const Thread& here) {
    Map<kVectorBytes / sizeof(Stored), Stored, Stored>(
        args.from, args.to, args.split, here,
        [&](Stored element) { return F::Store(Divided(F::Load(element), args.divisor)); });
  }
};

template <class From, class To>
struct Convert {
  using Args = MapArgs;
  using Stored = typename From::Stored;
  static constexpr int kLarger = sizeof(Stored) > sizeof(typename To::Stored)
                                     ? sizeof(Stored)
                                     : sizeof(typename To::Stored);

  static SYNCLINE_HOST_DEVICE void Run(const Args& args, const Thread& here) {
    Map<kVectorBytes / kLarger, Stored, typename To::Stored>(
        args.from, args.to, args.split, here,
        [](Stored element) { return Converted<From, To>(element); });
  }
};

// The parameters of a launch, which CUDA passes by value: at most 32,764 bytes.
template <uint32_t kCapacity>
struct ReduceArgs {
  Split split;
  void* to;        // May be one of the inputs.
  uint32_t count;  // Of the inputs, at least 1.
  Operation op;
  int32_t divisor;  // Of the result; 0: none.
  const void* inputs[kCapacity];
};

// to[i] = inputs[0][i] (op) inputs[1][i] ..., computed in F::Computed and rounded once.
template <class F, uint32_t kCapacity>
struct Reduce {
  using Args = ReduceArgs<kCapacity>;
  using Stored = typename F::Stored;
  using Computed = typename F::Computed;
  static constexpr int kGroup = kVectorBytes / sizeof(Stored);
  // Loads of so many inputs are under way at once.
  static constexpr uint32_t kAhead = 4;

  static SYNCLINE_HOST_DEVICE void Run(const Args& args, const Thread& here) {
    ForEach<kGroup>(
        args.split, here,
        [&](uint64_t first) {
          RunGroup<kGroup>(
              args,
              [&](const void* input, Stored* elements) {
                LoadGroup<kGroup>(input, first, elements);
              },
              [&](const Stored* elements) { StoreGroup<kGroup>(elements, args.to, first); });
        },
        [&](uint64_t at) {
          const bool is_aligned = args.split.is_aligned != 0;
          RunGroup<1>(
              args,
              [&](const void* input, Stored* elements) {
                *elements = LoadOne<Stored>(input, at, is_aligned);
              },
              [&](const Stored* elements) { StoreOne(*elements, args.to, at, is_aligned); });
        });
  }

 private:
  template <int kCount, typename Load, typename Store>
  static SYNCLINE_HOST_DEVICE void RunGroup(const Args& args, Load load, Store store) {
    Stored first[kCount];
    Computed total[kCount];
    load(args.inputs[0], first);
    for (int i = 0; i < kCount; ++i) total[i] = F::Load(first[i]);
    for (uint32_t begin = 1; begin < args.count; begin += kAhead) {
      Stored loaded[kAhead][kCount];
      for (uint32_t j = 0; j < kAhead; ++j) {
        if (begin + j < args.count) load(args.inputs[begin + j], loaded[j]);
      }
      for (uint32_t j = 0; j < kAhead; ++j) {
        if (begin + j >= args.count) break;
        Computed next[kCount];
        for (int i = 0; i < kCount; ++i) next[i] = F::Load(loaded[j][i]);
        Combine<kCount>(args.op, total, next);
      }
    }
    if (args.divisor != 0) {
      for (int i = 0; i < kCount; ++i) total[i] = Divided(total[i], args.divisor);
    }
    Stored result[kCount];
    for (int i = 0; i < kCount; ++i) result[i] = F::Store(total[i]);
    store(result);
  }
};

}  // namespace syncline::device::kernels

#endif  // SYNCLINE_CORE_DEVICE_KERNELS_ELEMENTWISE_H_
