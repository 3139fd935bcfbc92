// Arithmetic on arrays. The order of combination is the order of the inputs, element by element,
// whatever the width of the machine's vectors: the same bits everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/dtype.hpp"

namespace phalanx {

enum class Reduction : std::uint8_t { kSum, kMax, kMin };

// out[i] = inputs[0][i] + inputs[1][i] + ... (or the greatest, or the least), and out_too[i] as
// well unless it is null. out may be one of the inputs (the same address, not a shifted one).
//
// float16 and bfloat16 are summed in float32 over all inputs and rounded once. Integers wrap. bool:
// sum and max are or, min is and; the result's bytes are 0 and 1. max and min treat NaN as
// numpy.maximum and numpy.minimum, complex numbers are ordered by (real, imag).
void reduce(Reduction reduction, Dtype dtype, std::byte* out, std::byte* out_too,
            std::span<const std::byte* const> inputs, std::size_t count) noexcept;

// Between a half precision and float32, for sums that travel: exact there, rounded once back.
void widen(Dtype half, const std::byte* from, float* to, std::size_t count) noexcept;
void narrow(Dtype half, const float* from, std::byte* to, std::size_t count) noexcept;

// Fills an array with what nobody takes for a result: NaN (in both parts), the least integer, the
// largest unsigned one, true.
void poison(Dtype dtype, std::byte* out, std::size_t count) noexcept;

}  // namespace phalanx
