// The table is small enough to be three comparisons.
#include "group/selector.hpp"

namespace phalanx {

Choice choose(const Op& op, const Tuning& tuning, std::uint64_t inline_limit, int nodes) {
    Choice choice;
    choice.is_inline = op.nbytes() <= inline_limit;
    const std::uint64_t others = nodes > 1 ? static_cast<std::uint64_t>(nodes - 1) : 1;
    const std::uint64_t limit =
        op.kind == OpKind::kBroadcast ? tuning.mesh_broadcast_bytes : tuning.mesh_bytes;
    choice.is_mesh = op.nbytes() <= limit / others;
    return choice;
}

std::string name_of(const Op& op, Choice choice, bool has_host, bool has_links) {
    if (!has_host && !has_links) return "copy";
    std::string name;
    if (has_host) name = choice.is_inline ? "inline" : "staged";
    if (!has_links) return name;
    const bool can_mesh = op.kind == OpKind::kAllSum || !has_host;
    const char* around = op.kind == OpKind::kBroadcast ? "chain" : "ring";
    return name + (has_host ? "+" : "") + (choice.is_mesh && can_mesh ? "mesh" : around);
}

}  // namespace phalanx
