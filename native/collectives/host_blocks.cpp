// See host_blocks.hpp. A chunk of staging memory is cut into one part for each member, and walked
// with one post per chunk, as in host_algorithms.cpp.
#include "collectives/host_blocks.hpp"

#include <algorithm>
#include <vector>

#include "base/copy.hpp"
#include "collectives/plan.hpp"

namespace phalanx {

namespace {

constexpr std::uint64_t kGrainBytes = 64;  // parts begin at cache lines where they are that large

std::uint64_t part_nbytes(const HostTeam& team, std::uint64_t width) {
    const std::uint64_t share = team.chunk_nbytes() / static_cast<std::uint64_t>(team.size());
    const std::uint64_t grain = share >= kGrainBytes ? kGrainBytes : width;
    return share / grain * grain;
}

// Post c says: chunk c is staged, chunk c - 1 used. stage[c + 1] is written after post c of all:
// they have used c - 1, which lay there before.
// `use(range, parts)`: the bytes `range` of each block; parts[m] is what member m has staged of
// them for this member, null for this member itself.
template <class Use>
void walk_blocks(HostTeam& team, Waiter& waiter, const std::byte* x, std::uint64_t nbytes,
                 std::uint64_t width, const Use& use) {
    const std::uint64_t per_part = part_nbytes(team, width);
    const auto part_of = [&](std::uint64_t chunk) {
        return Range{chunk * per_part, std::min(per_part, nbytes - chunk * per_part)};
    };
    const auto offset = [&](int member) { return static_cast<std::uint64_t>(member) * per_part; };
    const auto stage = [&](std::uint64_t chunk) {
        const Range range = part_of(chunk);
        for (int member = 0; member < team.size(); ++member) {
            if (member == team.me()) continue;
            const std::byte* block = x + static_cast<std::uint64_t>(member) * nbytes;
            team.share(team.own_stage(chunk) + offset(member), block + range.begin, range.size,
                       chunk);
        }
    };
    std::vector<const std::byte*> parts(static_cast<std::size_t>(team.size()));
    if (nbytes > 0) stage(0);
    for (std::uint64_t chunk = 0; chunk * per_part < nbytes; ++chunk) {
        team.post();
        team.await_all(waiter);
        for (int member = 0; member < team.size(); ++member) {
            parts[static_cast<std::size_t>(member)] =
                member == team.me() ? nullptr : team.stage(member, chunk) + offset(team.me());
        }
        if (chunk == 0) {
            team.sample(part_of(0).size,
                        [&](int member) { return parts[static_cast<std::size_t>(member)]; });
        }
        use(part_of(chunk), parts);
        if ((chunk + 1) * per_part < nbytes) stage(chunk + 1);
    }
}

}  // namespace

void host_reduce_scatter_staged(HostTeam& team, Waiter& waiter, Reduction reduction, Dtype dtype,
                                const std::byte* x, std::byte* out, std::uint64_t count) {
    const std::uint64_t width = size_of(dtype);
    const auto me = static_cast<std::size_t>(team.me());
    const std::byte* own = x + me * count * width;
    walk_blocks(team, waiter, x, count * width, width,
                [&](const Range& range, std::vector<const std::byte*>& parts) {
                    parts[me] = own + range.begin;
                    reduce(reduction, dtype, out + range.begin, nullptr, parts, range.size / width);
                });
}

void host_all_to_all_inline(HostTeam& team, const std::byte* x, std::byte* out,
                            std::uint64_t nbytes) {
    const std::uint64_t mine = static_cast<std::uint64_t>(team.me()) * nbytes;
    for (int member = 0; member < team.size(); ++member) {
        const std::byte* from = member == team.me() ? x : team.inline_payload(member);
        copy_cached(out + static_cast<std::uint64_t>(member) * nbytes, from + mine, nbytes);
    }
}

void host_all_to_all_staged(HostTeam& team, Waiter& waiter, Dtype dtype, const std::byte* x,
                            std::byte* out, std::uint64_t nbytes) {
    const std::uint64_t mine = static_cast<std::uint64_t>(team.me()) * nbytes;
    walk_blocks(team, waiter, x, nbytes, size_of(dtype),
                [&](const Range& range, const std::vector<const std::byte*>& parts) {
                    for (std::size_t member = 0; member < parts.size(); ++member) {
                        const std::byte* from =
                            parts[member] == nullptr ? x + mine + range.begin : parts[member];
                        copy_cached(out + member * nbytes + range.begin, from, range.size);
                    }
                });
}

// As host_broadcast_staged, with a part of each chunk for each member.
void host_hand_out_staged(HostTeam& team, Waiter& waiter, std::span<const std::byte* const> pieces,
                          std::byte* out, std::uint64_t nbytes) {
    const std::uint64_t per_part = part_nbytes(team, kLargestElement);
    const auto offset = [&](std::size_t member) { return member * per_part; };
    const auto stage = [&](std::uint64_t chunk) {
        const std::uint64_t begin = chunk * per_part;
        for (std::size_t member = 1; member < pieces.size(); ++member) {
            team.share(team.own_stage(chunk) + offset(member), pieces[member] + begin,
                       std::min(per_part, nbytes - begin), chunk);
        }
    };
    if (team.is_leader() && nbytes > 0) stage(0);
    for (std::uint64_t chunk = 0; chunk * per_part < nbytes; ++chunk) {
        const std::uint64_t begin = chunk * per_part;
        team.post();
        if (!team.is_leader()) {
            team.await(0, waiter);
            copy_cached(out + begin,
                        team.stage(0, chunk) + offset(static_cast<std::size_t>(team.me())),
                        std::min(per_part, nbytes - begin));
        } else if (begin + per_part < nbytes) {
            team.await_all(waiter);
            stage(chunk + 1);
        }
    }
    if (team.is_leader()) copy_cached(out, pieces[0], nbytes);
}

}  // namespace phalanx
