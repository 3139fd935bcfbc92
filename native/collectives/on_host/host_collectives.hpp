// Collectives of the ranks of one host, in the arena. Every member calls them with the same
// arguments, apart from the pointers, after the headers were exchanged. Member order is rank order
// (operation/summation_order.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/kernels/dtype.hpp"
#include "collectives/kernels/reduce.hpp"
#include "collectives/on_host/shared_memory_team.hpp"
#include "collectives/operation/summation_order.hpp"

namespace phalanx {

// Before: x = one block of `count` elements per member. After: out = the reduction of the blocks
// for this member.
// 3 n bytes read and written per rank, n / chunk steps: each member stages the blocks of the
// others, in p parts per chunk, and reduces its own part of all chunks directly into out, without a
// gather.
void host_reduce_scatter_staged(SharedMemoryTeam& team, Reduction reduction, Dtype dtype,
                                const std::byte* x, std::byte* out, std::uint64_t count);

// Before: x = one block of `nbytes` per member. After: block m of out = member m's block for this
// member. 4 n bytes read and written per rank, n / chunk steps; inline: n bytes read, no step.
void host_all_to_all_inline(SharedMemoryTeam& team, const std::byte* x, std::byte* out,
                            std::uint64_t nbytes);
void host_all_to_all_staged(SharedMemoryTeam& team, Dtype dtype, const std::byte* x, std::byte* out,
                            std::uint64_t nbytes);

// Before: the leader has pieces[m], `nbytes` each (ignored on other members). After: out = the
// piece for this member. The leader reads and writes 2 p n bytes in p n / chunk steps.
void host_scatter_staged(SharedMemoryTeam& team, std::span<const std::byte* const> pieces,
                         std::byte* out, std::uint64_t nbytes);

enum class Reader { kAll, kLeader };  // the members that need the result

// Before: all payloads came with the headers. After: out = the reduction of elements `part`.
// Each member reads p - 1 payloads and reduces by itself; no further step.
void host_reduce_inline(SharedMemoryTeam& team, Reduction reduction, Dtype dtype,
                        const std::byte* x, std::byte* out, Range part);
// Before: every member has x. After: every reader has the reduction in out; out may be x.
// (5 - 2/p) n bytes read and written per rank, n / chunk + 2 steps: each member stages a chunk
// except its own slice, reduces its slice, and copies out the results of the others. This is the
// reduce-scatter and all-gather of Rabenseifner 2004, doi:10.1007/978-3-540-24685-5_1, in shared
// memory, where all members do each step together.
void host_reduce_staged(SharedMemoryTeam& team, Reduction reduction, Dtype dtype,
                        const std::byte* x, std::byte* out, std::uint64_t count, Reader reader);

// Copies the block of member m, `nbytes` long, to outs[m]; outs is used on readers only.
void host_gather_inline(SharedMemoryTeam& team, const std::byte* x,
                        std::span<std::byte* const> outs, std::uint64_t nbytes);
void host_gather_staged(SharedMemoryTeam& team, const std::byte* x,
                        std::span<std::byte* const> outs, std::uint64_t nbytes, Reader reader);

void host_broadcast_staged(SharedMemoryTeam& team, int root, const std::byte* x, std::byte* out,
                           std::uint64_t nbytes);

}  // namespace phalanx
