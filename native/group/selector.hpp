// Which algorithm, from (op, bytes, ranks, hosts) only: the same call gives the same bits.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/op.hpp"
#include "collectives/team.hpp"

namespace phalanx {

struct Tuning {
    HostTuning host;
    LinkTuning link;
    // Between nodes: loopback tcp takes 4-6 us one way busily polled and moves 1.6-4.5 GB/s
    // (RESULTS.md section 2): the second step of a ring is worth that much only above ~16 KiB.
    std::uint64_t mesh_bytes = std::uint64_t{16} << 10;
    // A mesh broadcast sends as much from everyone as from the root.
    std::uint64_t mesh_broadcast_bytes = std::uint64_t{1} << 10;
    // Scratch of a rank for what travels in blocks: so large that the steps of a block (some
    // 10 us each) are lost beside its bytes (1 ms), so small that nobody misses it.
    std::size_t work_bytes = std::size_t{4} << 20;
};

// inline_limit is the arena's share of Tuning::host, 0 where this rank has no neighbour;
// is_flat: every node is one rank.
Choice choose(const Op& op, const Tuning& tuning, std::uint64_t inline_limit, int nodes,
              bool is_flat);

// "inline", "staged", "mesh", "ring", "staged+pairwise", ... for describe().
std::string name_of(const Op& op, Choice choice, bool has_host, bool has_links);

}  // namespace phalanx
