// The algorithms between nodes. Each ring is one stream in and one stream out (stream.cpp), so
// steps overlap and nobody waits for a step of everybody.
#include <vector>

#include "collectives/copy.hpp"
#include "collectives/kernels.hpp"
#include "collectives/plan.hpp"
#include "collectives/team.hpp"

namespace phalanx {

namespace {
int left_of(const LinkTeam& links) { return (links.me() - 1 + links.size()) % links.size(); }
int right_of(const LinkTeam& links) { return (links.me() + 1) % links.size(); }
}  // namespace

// Before: x on every node. After: out = sum, the same bits on all nodes.
// 2(m-1) steps, 2(m-1)/m n bytes sent per node: reduce-scatter, then all-gather.
// Source: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
// Chunk c is summed in the order c, c+1, ..., c-1 (as (received) + own), then only copied.
// In place works: a byte of x is overwritten by what has gone around the ring, hence after it left.
void Team::ring_sum(const Op& op, const std::byte* x, std::byte* out, Waiter& waiter) {
    const int nodes = links_->size();
    const auto chunk = [&](int index) {
        const Range range = slice(op.count, static_cast<std::uint64_t>(nodes),
                                  static_cast<std::uint64_t>((index + nodes) % nodes));
        return Range{range.begin * size_of(op.dtype), range.size * size_of(op.dtype)};
    };
    const Range first = chunk(links_->me());
    std::vector<Incoming> incoming;
    std::vector<Outgoing> outgoing{{x + first.begin, first.size}};
    for (const int index : ring_arrivals(nodes, links_->me())) {
        const Range range = chunk(index);
        incoming.push_back({out + range.begin, x + range.begin, range.size});
        outgoing.push_back({out + range.begin, range.size});
    }
    for (const int index : ring_arrivals(nodes, links_->me() + 1)) {
        const Range range = chunk(index);
        incoming.push_back({out + range.begin, nullptr, range.size});
        outgoing.push_back({out + range.begin, range.size});
    }
    outgoing.pop_back();
    links_->stream(right_of(*links_), outgoing, left_of(*links_), incoming, first.size, op.dtype,
                   waiter);
}

// Small arrays: one step, (m-1) n bytes sent per node; summed in the order of the nodes.
void Team::mesh_sum(const Op& op, const std::byte* own, std::byte* out) {
    std::vector<const std::byte*> inputs;
    for (int node = 0; node < links_->size(); ++node) {
        inputs.push_back(node == links_->me() ? own : links_->payload(node));
    }
    sum(op.dtype, out, nullptr, inputs, op.count);
}

// Before: out has the blocks of this node's ranks. After: of all ranks.
// m-1 steps, every block crosses every link of the ring but one.
void Team::ring_gather(const Op& op, std::byte* out, Waiter& waiter) {
    std::vector<Incoming> incoming;
    std::vector<Outgoing> outgoing;
    std::uint64_t head_start = 0;
    const auto send_node = [&](int node) {
        for (const int rank : formation_.nodes[static_cast<std::size_t>(node)]) {
            outgoing.push_back({out + static_cast<std::uint64_t>(rank) * op.nbytes(), op.nbytes()});
        }
    };
    send_node(links_->me());
    for (const Outgoing& piece : outgoing) head_start += piece.nbytes;
    const auto arrivals = ring_arrivals(links_->size(), links_->me());
    for (const int node : arrivals) {
        for (const int rank : formation_.nodes[static_cast<std::size_t>(node)]) {
            std::byte* block = out + static_cast<std::uint64_t>(rank) * op.nbytes();
            incoming.push_back({block, nullptr, op.nbytes()});
        }
        if (node != arrivals.back()) send_node(node);
    }
    links_->stream(right_of(*links_), outgoing, left_of(*links_), incoming, head_start, op.dtype,
                   waiter);
}

// A chain from the root's node to the right, each byte passed on as soon as it has come: n bytes
// sent per node, n / bandwidth + (m-1) latencies.
void Team::chain_broadcast(const Op& op, const std::byte* x, std::byte* out, Waiter& waiter) {
    const int nodes = links_->size();
    const int root_node = formation_.node_of(static_cast<int>(op.root));
    const int position = (links_->me() - root_node + nodes) % nodes;
    const bool is_first = position == 0;
    const bool is_last = position == nodes - 1;
    const Outgoing outgoing{is_first ? x : out, op.nbytes()};
    const Incoming incoming{out, nullptr, op.nbytes()};
    links_->stream(is_last ? -1 : right_of(*links_), {&outgoing, 1},
                   is_first ? -1 : left_of(*links_), {&incoming, 1}, is_first ? op.nbytes() : 0,
                   op.dtype, waiter);
}

}  // namespace phalanx
