// Collectives of the ranks of one host in which every member gets something else. As in
// host_algorithms.hpp: called by every member, after the headers were met, with the same arguments
// but for the pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/host_team.hpp"
#include "collectives/kernels.hpp"

namespace phalanx {

// Before: x = one block of `count` elements for each member. After: out = the reduction of the
// blocks for this one, in the order of the members.
// 3 n bytes read and written per rank, n / chunk steps: each member stages what the others need,
// in p parts a chunk, and reduces its own part of all chunks straight into out. No gather follows.
void host_reduce_scatter_staged(HostTeam& team, Waiter& waiter, Reduction reduction, Dtype dtype,
                                const std::byte* x, std::byte* out, std::uint64_t count);

// Before: x = one block of `nbytes` for each member. After: block m of out = what member m had for
// this one. 4 n bytes read and written per rank, n / chunk steps; inline: n read, no step.
void host_all_to_all_inline(HostTeam& team, const std::byte* x, std::byte* out,
                            std::uint64_t nbytes);
void host_all_to_all_staged(HostTeam& team, Waiter& waiter, Dtype dtype, const std::byte* x,
                            std::byte* out, std::uint64_t nbytes);

// Before: pieces[m], `nbytes` each, at the leader (the others' are not used). After: out = the
// piece of this member. 2 p n bytes read and written by the leader, p n / chunk steps.
void host_hand_out_staged(HostTeam& team, Waiter& waiter, std::span<const std::byte* const> pieces,
                          std::byte* out, std::uint64_t nbytes);

}  // namespace phalanx
