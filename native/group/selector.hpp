// Which algorithm, from (op, bytes, ranks, hosts) only, and of sums whether they are of halves: the
// same call gives the same bits.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "collectives/op.hpp"
#include "collectives/team.hpp"

namespace phalanx {

struct Tuning {
    HostTuning host;
    LinkTuning link;
    // Between nodes, all_sum of float32 over loopback tcp, near, medians of
    // tests/bench/beside_peers.py in us (mesh / direct / ring; 2026-11-21):
    //   4 ranks: 16 KiB 42 / 68 / 78, 64 KiB 94 / 74 / 89, 256 KiB 371 / 185 / 185,
    //            1 MiB 905 / 800 / 1340, 4 MiB 5440 / 5100 / 5250, 64 MiB 89000 / 133000 / 91000
    //   2 ranks: 64 KiB 20 / 20 / 22, 256 KiB 61 / 58 / 57, 1 MiB 233 / 235 / 197
    // A mesh sends everything to everyone: the limit is for what a rank sends.
    std::uint64_t mesh_bytes = std::uint64_t{96} << 10;
    // Up to here a reduction between more than two single ranks has two steps, not a ring's.
    std::uint64_t direct_bytes = std::uint64_t{2} << 20;
    // A mesh broadcast sends as much from everyone as from the root.
    std::uint64_t mesh_broadcast_bytes = std::uint64_t{1} << 10;
    // Scratch of a rank for what travels in blocks: so large that the steps of a block (some
    // 10 us each) are lost beside its bytes (1 ms), so small that nobody misses it.
    std::size_t work_bytes = std::size_t{4} << 20;
};

// The thresholds by name, as a table of `phalanx bench --tune` has them: what is not named stays as
// it is. UsageError where a name or a size is none of ours. All ranks of a group have the same, or
// their first operation says that they have not.
using SelectorTable = std::map<std::string, std::uint64_t>;
Tuning tuned_by(const SelectorTable& table);
SelectorTable table_of(const Tuning& tuning);

// inline_limit is the arena's share of Tuning::host, 0 where this rank has no neighbour;
// is_flat: every node is one rank.
Choice choose(const Op& op, const Tuning& tuning, std::uint64_t inline_limit, int nodes,
              bool is_flat);

// What is done on the host << 4 | what is done between nodes. Of a message: how it travels.
using Algorithm = std::uint8_t;
inline constexpr Algorithm kQueue = 6;
inline constexpr Algorithm kWire = 7;
inline constexpr int kAlgorithms = 3 << 4;  // all are less

Algorithm algorithm_of(const Op& op, Choice choice, bool has_host, bool has_links) noexcept;
// "inline", "staged", "mesh", "ring", "staged+pairwise", ...; "" where there is no such.
std::string name_of_algorithm(Algorithm algorithm);

}  // namespace phalanx
