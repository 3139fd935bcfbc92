// The 16-bit floats: their bits, and conversions to and from float32.
//
// The conversions use integer arithmetic without branches. So loops over them vectorise on every
// machine, and the bits are the same on every machine. The compiler's own conversions are library
// calls on processors without F16C.
#pragma once

#include <bit>
#include <cstdint>

namespace phalanx {

struct Half {  // IEEE binary16: 1 sign, 5 exponent, 10 fraction
    std::uint16_t bits;
};
struct BFloat16 {  // the upper half of a float32: 1 sign, 8 exponent, 7 fraction
    std::uint16_t bits;
};

// Exact. Subnormals result from a subtraction of normal numbers, so they are right even in a
// process that flushes subnormals to zero.
// Source: F. Giesen, half_to_float_fast5, https://gist.github.com/rygorous/2144712.
[[gnu::always_inline]] inline float widen(Half half) noexcept {
    constexpr std::uint32_t kExponent = 0x7c00U << 13;
    constexpr float kSmallestNormal = 0x1p-14F;
    const std::uint32_t shifted = (half.bits & 0x7fffU) << 13;
    const std::uint32_t exponent = shifted & kExponent;
    const std::uint32_t normal = shifted + (112U << 23);
    const std::uint32_t special = shifted + (224U << 23);  // inf and NaN
    const float subnormal = std::bit_cast<float>(normal + (1U << 23)) - kSmallestNormal;
    std::uint32_t bits = exponent == kExponent ? special : normal;
    bits = exponent == 0 ? std::bit_cast<std::uint32_t>(subnormal) : bits;
    return std::bit_cast<float>(bits | (half.bits & 0x8000U) << 16);
}

[[gnu::always_inline]] inline float widen(BFloat16 half) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(half.bits) << 16);
}

// Rounds to nearest, ties to even. Numbers beyond the largest become infinity. NaN becomes a quiet
// NaN with the upper bits of its payload, as in the processor's conversion.
// Source: F. Giesen, float_to_half_fast3_rtne, https://gist.github.com/rygorous/2156668.
[[gnu::always_inline]] inline void narrow(float value, Half& half) noexcept {
    constexpr std::uint32_t kInfinity = 255U << 23;
    constexpr std::uint32_t kTooLarge = 143U << 23;        // 2^16
    constexpr std::uint32_t kSmallestNormal = 113U << 23;  // 2^-14
    constexpr float kSubnormalUnit = 0.5F;  // its last bit is the unit of subnormal halves
    const std::uint32_t all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t bits = all & 0x7fffffffU;
    const std::uint32_t nan = 0x7e00U | (bits >> 13 & 0x1ffU);
    const std::uint32_t too_large = bits > kInfinity ? nan : 0x7c00U;
    const float scaled = std::bit_cast<float>(bits) + kSubnormalUnit;
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(scaled) - std::bit_cast<std::uint32_t>(kSubnormalUnit);
    const std::uint32_t is_odd = bits >> 13 & 1U;
    const std::uint32_t normal = (bits - (112U << 23) + 0xfffU + is_odd) >> 13;
    std::uint32_t result = bits < kSmallestNormal ? subnormal : normal;
    result = bits >= kTooLarge ? too_large : result;
    half.bits = static_cast<std::uint16_t>(result | (all >> 16 & 0x8000U));
}

[[gnu::always_inline]] inline void narrow(float value, BFloat16& half) noexcept {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t is_odd = bits >> 16 & 1U;
    const std::uint32_t rounded = (bits + 0x7fffU + is_odd) >> 16;
    const std::uint32_t nan = bits >> 16 | 0x40U;
    half.bits = static_cast<std::uint16_t>((bits & 0x7fffffffU) > (255U << 23) ? nan : rounded);
}

}  // namespace phalanx
