// Collectives of the ranks of one host, in their arena. All are called by every member, after the
// headers were met, with the same arguments but for the pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/dtype.hpp"
#include "collectives/host_team.hpp"

namespace phalanx {

enum class Reader { kAll, kLeader };  // who needs the result

// Payloads that came with the headers: everybody sums everything. p - 1 reads, no further step.
void host_sum_inline(HostTeam& team, Dtype dtype, const std::byte* x, std::byte* out,
                     std::uint64_t count);
// (5 - 2/p) n bytes read and written per rank, n / chunk + 2 steps.
void host_sum_staged(HostTeam& team, Waiter& waiter, Dtype dtype, const std::byte* x,
                     std::byte* out, std::uint64_t count, Reader reader);

// The block of member m goes to outs[m]; nbytes each. outs of a rank that is no reader is not used.
void host_gather_inline(HostTeam& team, const std::byte* x, std::span<std::byte* const> outs,
                        std::uint64_t nbytes);
void host_gather_staged(HostTeam& team, Waiter& waiter, const std::byte* x,
                        std::span<std::byte* const> outs, std::uint64_t nbytes, Reader reader);

void host_broadcast_staged(HostTeam& team, Waiter& waiter, int root, const std::byte* x,
                           std::byte* out, std::uint64_t nbytes);

}  // namespace phalanx
