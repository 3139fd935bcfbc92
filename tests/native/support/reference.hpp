// Elements of any dtype by their values, and a naive reduction of them: written apart from
// the kernels, so that both are wrong only if both make the same mistake.
#pragma once

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "collectives/kernels/reduce.hpp"

namespace phalanx::test {

using Bytes = std::vector<std::byte>;

// Rounds to `digits` binary digits (the hidden one counted) by arithmetic, ties to even.
inline double rounded(double value, int digits, int least_exponent, double beyond) {
    if (value == 0.0 || !std::isfinite(value)) return value;
    const int exponent = std::max(std::ilogb(value), least_exponent);
    const int shift = digits - 1 - exponent;
    const double result = std::ldexp(std::nearbyint(std::ldexp(value, shift)), -shift);
    return std::abs(result) >= beyond ? std::copysign(INFINITY, value) : result;
}

// The bits of a value that is a half already: by trying none, from exponent and fraction.
inline std::uint16_t bits_of(double value, int fraction_bits, int least_exponent) {
    const int exponent_mask = (1 << (15 - fraction_bits)) - 1;
    const int sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) {
        return static_cast<std::uint16_t>(sign | exponent_mask << fraction_bits |
                                          1 << (fraction_bits - 1));
    }
    if (std::isinf(value)) return static_cast<std::uint16_t>(sign | exponent_mask << fraction_bits);
    value = std::abs(value);
    const bool is_normal = value >= std::ldexp(1.0, least_exponent);
    const int exponent = is_normal ? std::ilogb(value) : least_exponent;
    const int fraction = static_cast<int>(std::ldexp(value, fraction_bits - exponent)) -
                         (is_normal ? 1 << fraction_bits : 0);
    const int biased = is_normal ? exponent - least_exponent + 1 : 0;
    return static_cast<std::uint16_t>(sign | biased << fraction_bits | fraction);
}

inline double value_of(std::uint16_t bits, int fraction_bits, int least_exponent) {
    const int biased = (bits & 0x7fff) >> fraction_bits;
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    if (biased == (1 << (15 - fraction_bits)) - 1) {
        return fraction == 0 ? sign * INFINITY : std::copysign(std::nan(""), sign);
    }
    const int hidden = biased == 0 ? 0 : 1 << fraction_bits;
    const int exponent = biased == 0 ? least_exponent : biased - 1 + least_exponent;
    return sign * std::ldexp(hidden + fraction, exponent - fraction_bits);
}

inline double decode(Half x) { return value_of(x.bits, 10, -14); }
inline double decode(BFloat16 x) { return value_of(x.bits, 7, -126); }
inline void encode(double value, Half& x) {
    x.bits = bits_of(rounded(value, 11, -14, 65536.0), 10, -14);
}
inline void encode(double value, BFloat16& x) {
    x.bits = bits_of(rounded(value, 8, -126, std::ldexp(1.0, 128)), 7, -126);
}
inline void encode(double value, Bool& x) { x = Bool{value != 0.0}; }
template <class T>
void encode(double value, Complex<T>& x) {
    x = {static_cast<T>(value), static_cast<T>(-2.0 * value)};
}
template <class T>
    requires std::is_arithmetic_v<T>
void encode(double value, T& x) {
    x = std::is_integral_v<T> ? static_cast<T>(static_cast<long long>(value))
                              : static_cast<T>(value);
}

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

// One element of every input, in order.
template <class T>
T naive(Reduction how, const std::vector<T>& inputs) {
    const bool is_max = how == Reduction::kMax;
    T result = inputs[0];
    if constexpr (kIsHalf<T>) {
        if (how == Reduction::kSum) {
            if (inputs.size() == 1) return result;
            float total = static_cast<float>(decode(inputs[0]));
            for (std::size_t k = 1; k < inputs.size(); ++k)
                total += static_cast<float>(decode(inputs[k]));
            encode(static_cast<double>(total), result);
            return result;
        }
    }
    if constexpr (std::is_same_v<T, Bool>) result = Bool{result != Bool{0}};
    for (std::size_t k = 1; k < inputs.size(); ++k) {
        const T next = inputs[k];
        if constexpr (std::is_same_v<T, Bool>) {
            const bool a = result != Bool{0};
            const bool b = next != Bool{0};
            result = Bool{how == Reduction::kMin ? a && b : a || b};
        } else if constexpr (kIsHalf<T>) {
            const double a = decode(result);
            const double b = decode(next);
            if (std::isnan(a)) break;
            if (std::is_same_v<T, Half> && a == b) continue;
            if (!(is_max ? a > b : a < b)) result = next;
        } else if constexpr (std::is_floating_point_v<T>) {
            if (how == Reduction::kSum) {
                result += next;
            } else {
                if (std::isnan(result)) break;
                if (!(is_max ? result > next : result < next)) result = next;
            }
        } else if constexpr (std::is_integral_v<T>) {
            if (how == Reduction::kSum) {
                using Wide = unsigned long long;
                result = static_cast<T>(static_cast<Wide>(result) + static_cast<Wide>(next));
            } else if (is_max ? next > result : next < result) {
                result = next;
            }
        } else {
            if (how == Reduction::kSum) {
                result = {result.real + next.real, result.imag + next.imag};
                continue;
            }
            if (std::isnan(result.real) || std::isnan(result.imag)) break;
            const bool has_nan = std::isnan(next.real) || std::isnan(next.imag);
            const auto key = [](const T& z) { return std::pair(z.real, z.imag); };
            if (has_nan || (is_max ? key(next) > key(result) : key(next) < key(result)))
                result = next;
        }
    }
    return result;
}

// Calls fn with a value of the C++ type of a dtype.
template <class Fn>
void with_type(Dtype dtype, const Fn& fn) {
    switch (dtype) {
#define PHALANX_CASE(id, name, type) \
    case Dtype::id:                  \
        return fn(type{});
        PHALANX_DTYPES(PHALANX_CASE)
#undef PHALANX_CASE
        case Dtype::none:
            break;
    }
}

template <class T>
std::span<T> as(Bytes& bytes) {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace phalanx::test
