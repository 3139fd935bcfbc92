// Arithmetic on arrays. The order of summation is the order of the inputs, element by element,
// whatever the width of the machine's vectors: the same bits everywhere.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/dtype.hpp"

namespace phalanx {

// out[i] = inputs[0][i] + inputs[1][i] + ..., and out_too[i] as well unless it is null. out may be
// one of the inputs (the same address, not a shifted one).
void sum(Dtype dtype, std::byte* out, std::byte* out_too, std::span<const std::byte* const> inputs,
         std::size_t count) noexcept;

// Fills an array with what nobody takes for a result: NaN, or the least integer.
void poison(Dtype dtype, std::byte* out, std::size_t count) noexcept;

}  // namespace phalanx
