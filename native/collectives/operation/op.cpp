// Texts about operations for error messages.
#include "collectives/operation/op.hpp"

#include <algorithm>

#include "base/call_site.hpp"

namespace phalanx {

std::string name_of(OpKind kind) {
    switch (kind) {
        case OpKind::kBarrier:
            return "barrier";
        case OpKind::kAllSum:
            return "all_sum";
        case OpKind::kAllGather:
            return "all_gather";
        case OpKind::kBroadcast:
            return "broadcast";
        case OpKind::kAllMax:
            return "all_max";
        case OpKind::kAllMin:
            return "all_min";
        case OpKind::kSumScatter:
            return "sum_scatter";
        case OpKind::kAllToAll:
            return "all_to_all";
        case OpKind::kSend:
            return "send";
        case OpKind::kRecv:
            return "recv";
        case OpKind::kSplit:
            return "split";
    }
    return "unknown operation " + std::to_string(static_cast<std::uint32_t>(kind));
}

std::string describe_array(const Op& op) {
    std::string text = std::string(name_of(op.dtype)) + ", shape (";
    const auto shown = std::min<std::size_t>(op.ndim, Op::kMaxDims);
    for (std::size_t i = 0; i < shown; ++i) {
        text += (i > 0 ? ", " : "") + std::to_string(op.dims[i]);
    }
    if (op.ndim > shown) text += ", ...";
    return text + (op.ndim == 1 ? ",)" : ")");
}

std::string describe(const Op& op) {
    const std::string text = name_of(op.kind) + " #" + std::to_string(op.seq);
    if (op.kind == OpKind::kBarrier || op.kind == OpKind::kSplit) return text;
    const bool has_root = op.kind == OpKind::kBroadcast;
    return text + " (" + describe_array(op) +
           (has_root ? ", root " + std::to_string(op.root) : "") + ")";
}

OpMismatch::OpMismatch(int one, const Op& of_one, int another, const Op& of_another)
    : Mismatch(describe_mismatch(one, of_one, another, of_another)),
      rank(one),
      op(of_one),
      other_rank(another),
      other(of_another) {}

std::string describe_mismatch(int rank, const Op& op, int other_rank, const Op& other) {
    return "rank " + std::to_string(rank) + ": " + describe(op) + site_gap(rank) + " met rank " +
           std::to_string(other_rank) + ": " + describe(other) + site_gap(other_rank) +
           describe_difference(op, other);
}

std::string describe_difference(const Op& op, const Op& other) {
    std::string text;
    if (op.epoch != other.epoch) text += "; they are of different epochs";
    if (op.layout != other.layout)
        text += "; the ranks disagree about hosts or about the sizes for each algorithm";
    if (op.channel != other.channel) text += "; they are of different groups";
    return text;
}

}  // namespace phalanx
