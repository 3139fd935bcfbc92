// Choice of the algorithm from (op, bytes, ranks, hosts) only, and for sums whether the dtype is a
// half: the same call gives the same bits.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "collectives/operation/op.hpp"
#include "collectives/team.hpp"

namespace phalanx {

struct Tuning {
    HostTuning host;
    LinkTuning link;
    // Between nodes, all_sum of float32 over loopback tcp, near, medians of
    // tests/bench/peers/beside_peers.py in us (mesh / direct / ring; 2026-11-21):
    //   4 ranks: 16 KiB 42 / 68 / 78, 64 KiB 94 / 74 / 89, 256 KiB 371 / 185 / 185,
    //            1 MiB 905 / 800 / 1340, 4 MiB 5440 / 5100 / 5250, 64 MiB 89000 / 133000 / 91000
    //   2 ranks: 64 KiB 20 / 20 / 22, 256 KiB 61 / 58 / 57, 1 MiB 233 / 235 / 197
    // A mesh sends everything to every node: the limit is on the bytes that a rank sends.
    std::uint64_t mesh_bytes = std::uint64_t{96} << 10;
    // Up to this size a reduction between more than two single ranks takes two steps, not a ring's.
    std::uint64_t direct_bytes = std::uint64_t{2} << 20;
    // In a mesh broadcast every node sends as much as the root.
    std::uint64_t mesh_broadcast_bytes = std::uint64_t{1} << 10;
    // Scratch of a rank for data that is sent in blocks: large enough that the steps of a block
    // (some 10 us each) are small beside its bytes (1 ms), small enough not to matter.
    std::size_t work_bytes = std::size_t{4} << 20;
};

// The thresholds by name, for tests; unnamed thresholds keep their values. Throws UsageError for an
// unknown name or size. All ranks of a group need the same thresholds; otherwise their first
// operation fails with a mismatch.
using SelectorTable = std::map<std::string, std::uint64_t>;
Tuning tuned_by(const SelectorTable& table);

// is_flat: every node is one rank.
AlgorithmChoice choose(const Op& op, const Tuning& tuning, int nodes, bool is_flat);

// The algorithms of messages: their transport.
inline constexpr Algorithm kQueue = 6;
inline constexpr Algorithm kWire = 7;
inline constexpr int kAlgorithms = 3 << 4;  // upper bound of all values

// "inline", "staged", "mesh", "ring", "staged+pairwise", ...; "" for an unknown value.
std::string name_of_algorithm(Algorithm algorithm);

}  // namespace phalanx
