// Choice of the algorithm by a few comparisons.
#include "group/selector.hpp"

#include <iterator>

#include "base/error.hpp"

namespace phalanx {

namespace {
enum HostWay : std::uint8_t { kNoHost, kInline, kStaged };
enum LinkWay : std::uint8_t { kNoLinks, kMesh, kDirect, kRing, kChain, kPairwise };
constexpr const char* kHostWays[] = {"", "inline", "staged"};
constexpr const char* kLinkWays[] = {"",      "mesh",     "direct", "ring",
                                     "chain", "pairwise", "queue",  "wire"};
}  // namespace

AlgorithmChoice choose(const Op& op, const Tuning& tuning, int nodes, bool is_flat) {
    AlgorithmChoice choice;
    const bool has_links = nodes > 1;
    const std::uint64_t others = has_links ? static_cast<std::uint64_t>(nodes - 1) : 1;
    const bool is_broadcast = op.kind == OpKind::kBroadcast;
    const std::uint64_t limit = is_broadcast ? tuning.mesh_broadcast_bytes : tuning.mesh_bytes;
    // A mesh would send all blocks to all nodes.
    choice.is_mesh = op.kind != OpKind::kAllToAll && op.nbytes() <= limit / others;
    const bool is_reduction =
        op.kind == OpKind::kAllSum || op.kind == OpKind::kAllMax || op.kind == OpKind::kAllMin;
    choice.is_direct = is_flat && is_reduction && nodes > 2 && !choice.is_mesh &&
                       op.nbytes() <= tuning.direct_bytes;
    const bool is_sum = op.kind == OpKind::kAllSum || op.kind == OpKind::kSumScatter;
    choice.is_wide = is_sum && is_half(op.dtype) && has_links &&
                     !(is_flat && (choice.is_mesh || choice.is_direct));
    choice.is_whole = op.nbytes() <= tuning.host.inline_bytes;
    choice.is_inline =
        choice.is_whole && !choice.is_wide;  // wide data did not come with the header

    const HostWay host = is_flat ? kNoHost : choice.is_inline ? kInline : kStaged;
    const bool can_mesh = is_flat || !(is_broadcast || op.kind == OpKind::kAllGather);
    const LinkWay around = is_broadcast ? kChain : op.kind == OpKind::kAllToAll ? kPairwise : kRing;
    const LinkWay links = !has_links                   ? kNoLinks
                          : choice.is_direct           ? kDirect
                          : choice.is_mesh && can_mesh ? kMesh
                                                       : around;
    choice.code = static_cast<Algorithm>(host << 4 | links);
    return choice;
}

Tuning tuned_by(const SelectorTable& table) {
    Tuning tuning;
    for (const auto& [name, nbytes] : table) {
        if (name == "inline_bytes") {
            if (nbytes > SharedMemoryTeam::kInlineBytes) {
                throw UsageError("inline_bytes must be at most " +
                                 std::to_string(SharedMemoryTeam::kInlineBytes));
            }
            tuning.host.inline_bytes = static_cast<std::size_t>(nbytes);
        } else if (name == "mesh_bytes") {
            tuning.mesh_bytes = nbytes;
        } else if (name == "direct_bytes") {
            tuning.direct_bytes = nbytes;
        } else if (name == "mesh_broadcast_bytes") {
            tuning.mesh_broadcast_bytes = nbytes;
        } else {
            throw UsageError("the selector has no threshold '" + name + "'");
        }
    }
    return tuning;
}

std::string name_of_algorithm(Algorithm algorithm) {
    const auto host = static_cast<std::size_t>(algorithm >> 4);
    const auto links = static_cast<std::size_t>(algorithm & 0xF);
    if (host >= std::size(kHostWays) || links >= std::size(kLinkWays)) return "";
    if (algorithm == 0) return "copy";
    const std::string name = kHostWays[host];
    return name.empty() || links == 0 ? name + kLinkWays[links] : name + "+" + kLinkWays[links];
}

}  // namespace phalanx
