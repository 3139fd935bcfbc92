// The operations on pairs of elements: one rule per reduction and kind of element. Each rule has
//   Element  the type in memory
//   Partial  the type between two inputs
//   load, combine, store: Element -> Partial, (Partial, Partial) -> Partial, Partial -> Element
// No branches, so that loops over them vectorise (reduce.cpp).
#pragma once

#include <cstdint>
#include <type_traits>

#include "collectives/kernels/dtype.hpp"

namespace phalanx {

#define PHALANX_RULE [[gnu::always_inline]] static inline

template <class T>
struct SameInMemory {
    using Element = T;
    using Partial = T;
    PHALANX_RULE T load(T x) noexcept { return x; }
    PHALANX_RULE T store(T x) noexcept { return x; }
};

// Numbers. Integers are added as unsigned: they wrap, without undefined behaviour.
template <class T>
struct SumRule : SameInMemory<T> {
    PHALANX_RULE T combine(T a, T b) noexcept {
        if constexpr (std::is_integral_v<T>) {
            using Unsigned = std::make_unsigned_t<T>;
            return static_cast<T>(
                static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
        } else {
            return a + b;
        }
    }
};
template <class T>
struct SumRule<Complex<T>> : SameInMemory<Complex<T>> {
    PHALANX_RULE Complex<T> combine(Complex<T> a, Complex<T> b) noexcept {
        return {a.real + b.real, a.imag + b.imag};
    }
};
template <class T>
struct HalfSumRule {
    using Element = T;
    using Partial = float;
    PHALANX_RULE float load(T x) noexcept { return widen(x); }
    PHALANX_RULE float combine(float a, float b) noexcept { return a + b; }
    PHALANX_RULE T store(float x) noexcept {
        T half;
        narrow(x, half);
        return half;
    }
};
template <>
struct SumRule<Half> : HalfSumRule<Half> {};
template <>
struct SumRule<BFloat16> : HalfSumRule<BFloat16> {};

// Maximum and minimum as in numpy.maximum and numpy.minimum: the first NaN wins; of equal values
// (the two zeros) the second. For float16 numpy keeps the first of equal values, and so do we.
template <class T>
[[gnu::always_inline]] inline bool keeps_first(T a, T b, bool is_max) noexcept {
    if constexpr (std::is_floating_point_v<T>) {
        return (is_max ? a > b : a < b) | (a != a);
    } else {
        return is_max ? a > b : a < b;
    }
}

// Halves compare as sign-magnitude numbers: mapped to 16-bit integers.
template <class T>
[[gnu::always_inline]] inline bool keeps_first_half(T a, T b, bool is_max) noexcept {
    constexpr bool kIsIeee = std::is_same_v<T, Half>;
    constexpr int kInfinity = kIsIeee ? 0x7c00 : 0x7f80;
    const auto magnitude = [](T x) { return static_cast<std::int16_t>(x.bits & 0x7fff); };
    const auto place = [&](T x) {
        const auto size = magnitude(x);
        return (x.bits & 0x8000) != 0 ? static_cast<std::int16_t>(-size) : size;
    };
    const std::int16_t x = place(a);
    const std::int16_t y = place(b);
    const bool is_beyond = is_max ? x > y : x < y;
    const bool is_first = is_beyond | (kIsIeee & (x == y));
    const bool is_nan = magnitude(a) > kInfinity;
    const bool is_other_nan = magnitude(b) > kInfinity;
    return is_nan | (is_first & !is_other_nan);
}

template <class T, bool kIsMax>
struct ExtremeRule : SameInMemory<T> {
    PHALANX_RULE T combine(T a, T b) noexcept { return keeps_first(a, b, kIsMax) ? a : b; }
};
// Selects bits, not structs: the vectoriser treats a choice between structs as a branch.
template <class T, bool kIsMax>
struct HalfExtremeRule : SameInMemory<T> {
    PHALANX_RULE T combine(T a, T b) noexcept {
        return {keeps_first_half(a, b, kIsMax) ? a.bits : b.bits};
    }
};
template <bool kIsMax>
struct ExtremeRule<Half, kIsMax> : HalfExtremeRule<Half, kIsMax> {};
template <bool kIsMax>
struct ExtremeRule<BFloat16, kIsMax> : HalfExtremeRule<BFloat16, kIsMax> {};

// Order by the real part, then the imaginary part. A number with a NaN in either part wins, the
// first of two; of equal numbers the first (as numpy's complex minimum and maximum).
template <class T, bool kIsMax>
struct ExtremeRule<Complex<T>, kIsMax> : SameInMemory<Complex<T>> {
    PHALANX_RULE Complex<T> combine(Complex<T> a, Complex<T> b) noexcept {
        const bool is_beyond = kIsMax ? a.real > b.real : a.real < b.real;
        const bool is_level = kIsMax ? a.imag >= b.imag : a.imag <= b.imag;
        const bool has_nan = (a.real != a.real) | (a.imag != a.imag);
        const bool first =
            has_nan | (is_beyond & (b.imag == b.imag)) | ((a.real == b.real) & is_level);
        return {first ? a.real : b.real, first ? a.imag : b.imag};
    }
};

// bool: sum and max are logical or, min is logical and (as in MLX and numpy).
template <bool kIsOr>
struct LogicalRule {
    using Element = Bool;
    using Partial = std::uint8_t;
    PHALANX_RULE std::uint8_t load(Bool x) noexcept { return x != Bool{0}; }
    PHALANX_RULE std::uint8_t combine(std::uint8_t a, std::uint8_t b) noexcept {
        return kIsOr ? a | b : a & b;
    }
    PHALANX_RULE Bool store(std::uint8_t x) noexcept { return Bool{x}; }
};
template <>
struct SumRule<Bool> : LogicalRule<true> {};
template <bool kIsMax>
struct ExtremeRule<Bool, kIsMax> : LogicalRule<kIsMax> {};

#undef PHALANX_RULE

}  // namespace phalanx
