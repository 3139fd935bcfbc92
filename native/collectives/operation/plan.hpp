// Index arithmetic of the algorithms, as pure functions.
#pragma once

#include <cstdint>
#include <vector>

namespace phalanx {

// A range of an array, in bytes or in elements, as its creator defines.
struct Range {
    std::uint64_t begin = 0;
    std::uint64_t size = 0;
    [[nodiscard]] std::uint64_t end() const noexcept { return begin + size; }
    friend bool operator==(const Range&, const Range&) = default;
};

// Part `index` of `parts` of `count` elements. The parts cover all elements, in order, without
// overlap. They begin at multiples of `grain`; the last parts may be short or empty.
Range slice(std::uint64_t count, std::uint64_t parts, std::uint64_t index, std::uint64_t grain = 1);

// The order in which chunks of an array arrive at node `me` of a ring of `nodes`.
//   reduce-scatter: me-1, me-2, ..., me+1: afterwards chunk me+1 is complete here
//   all-gather of own blocks: me-1, me-2, ..., me+1
// A node sends first its own chunk, then each chunk that arrived, except the last.
std::vector<int> ring_arrivals(int nodes, int me);

}  // namespace phalanx
