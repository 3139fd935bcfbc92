// The table is small enough to be a few comparisons.
#include "group/selector.hpp"

namespace phalanx {

Choice choose(const Op& op, const Tuning& tuning, std::uint64_t inline_limit, int nodes,
              bool is_flat) {
    Choice choice;
    const std::uint64_t others = nodes > 1 ? static_cast<std::uint64_t>(nodes - 1) : 1;
    const std::uint64_t limit =
        op.kind == OpKind::kBroadcast ? tuning.mesh_broadcast_bytes : tuning.mesh_bytes;
    // Everyone to everyone would send all blocks to all.
    choice.is_mesh = op.kind != OpKind::kAllToAll && op.nbytes() <= limit / others;
    const bool is_reduction =
        op.kind == OpKind::kAllSum || op.kind == OpKind::kAllMax || op.kind == OpKind::kAllMin;
    choice.is_direct = is_flat && is_reduction && nodes > 2 && !choice.is_mesh &&
                       op.nbytes() <= tuning.direct_bytes;
    const bool is_sum = op.kind == OpKind::kAllSum || op.kind == OpKind::kSumScatter;
    choice.is_wide = is_sum && is_half(op.dtype) && nodes > 1 &&
                     !(is_flat && (choice.is_mesh || choice.is_direct));
    // What was widened did not come with the header.
    choice.is_inline = op.nbytes() <= inline_limit && !choice.is_wide;
    choice.is_whole = op.nbytes() <= tuning.host.inline_bytes;
    return choice;
}

std::string name_of(const Op& op, Choice choice, bool has_host, bool has_links) {
    if (!has_host && !has_links) return "copy";
    std::string name;
    if (has_host) name = choice.is_inline ? "inline" : "staged";
    if (!has_links) return name;
    const bool moves_only = op.kind == OpKind::kAllGather || op.kind == OpKind::kBroadcast;
    const bool can_mesh = !moves_only || !has_host;
    const char* around = op.kind == OpKind::kBroadcast  ? "chain"
                         : op.kind == OpKind::kAllToAll ? "pairwise"
                                                        : "ring";
    if (choice.is_direct) return "direct";
    return name + (has_host ? "+" : "") + (choice.is_mesh && can_mesh ? "mesh" : around);
}

}  // namespace phalanx
