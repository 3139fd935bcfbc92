// The order in which the terms of a sum are added.
//
// The promise: the same call gives the same bits on all ranks and in every run. A sum of floats
// depends on the order of its terms, so each element has one order, which follows from the
// operation, its size and dtype, the ranks and their hosts. It never depends on the time at which
// data arrives or on the processor. (Only the sign and payload of a NaN from two NaNs may differ.)
// max and min depend on the order only in which zero or NaN is kept.
//
//   on a host (inline, staged)            rank 0, 1, ..., p-1                in_rank_order
//   between nodes: mesh, direct           node 0, 1, ..., m-1                in_rank_order
//   ring of all_sum, _max, _min: chunk c  node c, c+1, ..., c-1 (cyclic)     ring_arrivals
//   ring of sum_scatter: pieces of node c node c+1, c+2, ..., c (cyclic)     ring_arrivals
//   composed                              first on each host, then mesh or ring of these sums
//
// `choose` (group/selector.cpp) chooses the row. node_slices() decides which elements are chunk c.
// A result is computed once and copied, or everywhere in one order. So sum_scatter and all_sum may
// differ in the last bits. reduce() (kernels/reduce.hpp) adds the terms of an element in the order
// of its inputs, with any vector width.
//
// float16 and bfloat16 are summed in float32 and rounded once. Where partial sums travel (ring,
// composed), the array is summed in blocks of wide_block() elements, which travel as float32; ring
// chunk c is then part c of each block.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
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

// The chunk of each node, as ranges of bytes of an array of `count` elements of `width` bytes.
std::vector<Range> node_slices(std::uint64_t count, std::uint64_t width, int nodes);

// Sets the terms of ranks (or nodes) 0, 1, ...: `own` is that of `me`, term_of(rank) any other.
template <class TermOf>
void in_rank_order(std::span<const std::byte*> terms, int me, const std::byte* own,
                   const TermOf& term_of) {
    int rank = 0;
    for (const std::byte*& term : terms) {
        term = rank == me ? own : term_of(rank);
        ++rank;
    }
}

// The order in which chunks arrive at a node of a ring that sends chunk `first` first, and then
// each chunk that arrived, except the last: first-1, first-2, ..., first+1. In a reduction a node
// adds its own term to each chunk that arrives. So a chunk's first term is that of the node that
// sends it first; the other terms follow in the order of the nodes.
//   all_sum: first = me, and chunk me+1 is complete here afterwards
//   sum_scatter: first = me-1, and chunk me is complete here afterwards
std::vector<int> ring_arrivals(int nodes, int first);

// Number of elements of a block of halves that travels as float32.
constexpr std::uint64_t wide_block(std::size_t work_bytes) noexcept {
    return std::max<std::uint64_t>(work_bytes / sizeof(float), 1);
}

}  // namespace phalanx
