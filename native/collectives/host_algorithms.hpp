// Collectives of the ranks of one host, in their arena. All are called by every member, after the
// headers were met, with the same arguments but for the pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/dtype.hpp"
#include "collectives/host_team.hpp"
#include "collectives/kernels.hpp"
#include "collectives/plan.hpp"

namespace phalanx {

enum class Reader { kAll, kLeader };  // who needs the result

// Reductions are in the order of the members, which is the order of their ranks.

// Before: all payloads came with the headers. After: out = the reduction of elements `part` of all.
// p - 1 reads, no further step: everybody reduces for itself.
void host_reduce_inline(HostTeam& team, Reduction reduction, Dtype dtype, const std::byte* x,
                        std::byte* out, Range part);
// Before: x at every member. After: out = the reduction at every reader; out may be x.
// (5 - 2/p) n bytes read and written per rank, n / chunk + 2 steps: each member stages all but its
// own slice of a chunk, reduces its slice, and copies out the results of the others. It is the
// reduce-scatter and all-gather of Rabenseifner 2004, doi:10.1007/978-3-540-24685-5_1, in shared
// memory, where each step is one for all members.
void host_reduce_staged(HostTeam& team, Waiter& waiter, Reduction reduction, Dtype dtype,
                        const std::byte* x, std::byte* out, std::uint64_t count, Reader reader);

// The block of member m goes to outs[m]; nbytes each. outs of a rank that is no reader is not used.
void host_gather_inline(HostTeam& team, const std::byte* x, std::span<std::byte* const> outs,
                        std::uint64_t nbytes);
void host_gather_staged(HostTeam& team, Waiter& waiter, const std::byte* x,
                        std::span<std::byte* const> outs, std::uint64_t nbytes, Reader reader);

void host_broadcast_staged(HostTeam& team, Waiter& waiter, int root, const std::byte* x,
                           std::byte* out, std::uint64_t nbytes);

}  // namespace phalanx
