// Arithmetic on arrays. Inputs are combined in their order, element by element, whatever the vector
// width of the machine: the same bits everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/kernels/dtype.hpp"

namespace phalanx {

enum class Reduction : std::uint8_t { kSum, kMax, kMin };

// out[i] = inputs[0][i] + inputs[1][i] + ... (or the maximum, or the minimum). out_too[i] gets the
// same unless it is null. out may be one of the inputs (the same address, not a shifted one).
//
// float16 and bfloat16 are summed in float32 over all inputs and rounded once. Integers wrap. bool:
// sum and max are or, min is and; the result's bytes are 0 and 1. max and min treat NaN as
// numpy.maximum and numpy.minimum, complex numbers are ordered by (real, imag).
void reduce(Reduction reduction, Dtype dtype, std::byte* out, std::byte* out_too,
            std::span<const std::byte* const> inputs, std::size_t count) noexcept;

// Converts halves to float32 (exact) and back (rounded once), for partial sums on the wire.
void widen(Dtype half, const std::byte* from, float* to, std::size_t count) noexcept;
void narrow(Dtype half, const float* from, std::byte* to, std::size_t count) noexcept;

// Fills an array with values that nobody takes for a result: NaN (in both parts), the smallest
// integer, the largest unsigned integer, true.
void invalidate(Dtype dtype, std::byte* out, std::size_t count) noexcept;

}  // namespace phalanx
