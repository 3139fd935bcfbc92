// The algorithms between nodes. Each ring is one stream in and one stream out (stream.cpp), so
// steps overlap and no node waits for a global step.
#include <vector>

#include "base/copy.hpp"
#include "collectives/kernels/checksum.hpp"
#include "collectives/kernels/reduce.hpp"
#include "collectives/operation/summation_order.hpp"
#include "collectives/team.hpp"

namespace phalanx {

namespace {
int left_of(const NodeExchange& links) { return (links.me() - 1 + links.size()) % links.size(); }
int right_of(const NodeExchange& links) { return (links.me() + 1) % links.size(); }
}  // namespace

// Before: x on every node. After: out = the reduction, the same bits on all nodes.
// 2(m-1) steps, 2(m-1)/m n bytes sent per node: reduce-scatter, then all-gather.
// Source: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
// The result is (received) + own, in the order that summation_order.hpp states.
// `out` may be x: a byte of x is overwritten only by data that has gone around the ring, so after
// the byte was sent.
void Team::ring_reduce(const ReductionSpec& job, const std::byte* x, std::byte* out) {
    const int nodes = links_->size();
    const auto chunks = node_slices(job.count, job.width(), nodes);
    const auto chunk = [&](int node) { return chunks[static_cast<std::size_t>(node)]; };
    const Range first = chunk(links_->me());
    std::vector<Incoming> incoming;
    std::vector<Outgoing> outgoing{{x + first.begin, first.size}};
    for (const int index : ring_arrivals(nodes, links_->me())) {
        const Range range = chunk(index);
        incoming.push_back({out + range.begin, x + range.begin, range.size});
        outgoing.push_back({out + range.begin, range.size});
    }
    for (const int index : ring_arrivals(nodes, right_of(*links_))) {
        const Range range = chunk(index);
        incoming.push_back({out + range.begin, nullptr, range.size});
        outgoing.push_back({out + range.begin, range.size});
    }
    outgoing.pop_back();
    links_->stream(right_of(*links_), outgoing, 1, left_of(*links_), incoming, job.reduction,
                   job.dtype);
}

// Before: x of all nodes came with the headers or in an exchange. After: out = the reduction of
// elements `part`. For small arrays: one step, (m-1) n bytes sent per node.
void Team::mesh_reduce(const ReductionSpec& job, const std::byte* own, std::byte* out, Range part) {
    const std::uint64_t begin = part.begin * job.width();
    std::vector<const std::byte*> terms(static_cast<std::size_t>(links_->size()));
    in_rank_order(terms, links_->me(), own + begin,
                  [&](int node) { return links_->payload(node) + begin; });
    reduce(job.reduction, job.dtype, out, nullptr, terms, part.size);
}

// Before: slice m of x of all nodes came to node m with the headers. After: out = the reduction.
// 2 steps, 2(m-1)/m n bytes sent per node: the bytes of a ring without its 2(m-1) steps. But every
// node communicates with every other node, and n bytes are copied before sending.
// Source: Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521, section 4.4 (pairwise
// reduce-scatter). In place works: x was sent before out is written.
void Team::direct_reduce(const ReductionSpec& job, const std::byte* own, std::byte* out) {
    const auto slices = node_slices(job.count, job.width(), links_->size());
    const auto me = static_cast<std::size_t>(links_->me());
    std::vector<const std::byte*> terms(slices.size());
    in_rank_order(terms, links_->me(), own + slices[me].begin,
                  [&](int node) { return links_->payload(node); });
    std::byte* mine = out + slices[me].begin;
    reduce(job.reduction, job.dtype, mine, nullptr, terms, slices[me].size / job.width());
    const std::span made(mine, static_cast<std::size_t>(slices[me].size));
    const Outgoing result{mine, slices[me].size, checksum_of(made)};
    std::vector<PairTransfer> transfers(slices.size());
    for (std::size_t node = 0; node < slices.size(); ++node) {
        if (node == me) continue;
        transfers[node].outgoing = {result};
        transfers[node].incoming = {{out + slices[node].begin, nullptr, slices[node].size}};
    }
    links_->exchange_all_pairs(transfers);
}

// Before: every node has the terms of all ranks' pieces. After: every node has the sums of the
// pieces of its ranks. m-1 steps, (m-1)/m n bytes sent per node if nodes are equal.
// The first half of ring_reduce (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002), started
// one chunk earlier, so that the last complete chunk is this node's own.
void Team::ring_scatter(const ReductionSpec& job, const ScatterBlock& pieces) {
    const int nodes = links_->size();
    const int first = (links_->me() - 1 + nodes) % nodes;
    const auto at = [](int rank) { return static_cast<std::uint64_t>(rank); };
    std::vector<Incoming> incoming;
    std::vector<Outgoing> outgoing;
    for (const int rank : ranks_of(first)) {
        outgoing.push_back({pieces.terms + at(rank) * pieces.terms_stride, pieces.nbytes});
    }
    const std::size_t n_own = outgoing.size();
    for (const int node : ring_arrivals(nodes, first)) {
        for (const int rank : ranks_of(node)) {
            std::byte* to = rank == rank_ ? pieces.own : pieces.sums + at(rank) * pieces.nbytes;
            const std::byte* term = pieces.terms + at(rank) * pieces.terms_stride;
            incoming.push_back({to, term, pieces.nbytes});
            if (node != links_->me()) outgoing.push_back({to, pieces.nbytes});
        }
    }
    links_->stream(right_of(*links_), outgoing, n_own, left_of(*links_), incoming, job.reduction,
                   job.dtype);
}

// Before: out has the blocks of this node's ranks. After: the blocks of all ranks.
// m-1 steps; every block crosses every link of the ring except one.
void Team::ring_gather(const Op& op, std::byte* out) {
    std::vector<Incoming> incoming;
    std::vector<Outgoing> outgoing;
    const auto send_node = [&](int node) {
        for (const int rank : ranks_of(node)) {
            outgoing.push_back({out + static_cast<std::uint64_t>(rank) * op.nbytes(), op.nbytes()});
        }
    };
    send_node(links_->me());
    const std::size_t n_own = outgoing.size();
    const auto arrivals = ring_arrivals(links_->size(), links_->me());
    for (const int node : arrivals) {
        for (const int rank : ranks_of(node)) {
            std::byte* block = out + static_cast<std::uint64_t>(rank) * op.nbytes();
            incoming.push_back({block, nullptr, op.nbytes()});
        }
        if (node != arrivals.back()) send_node(node);
    }
    links_->stream(right_of(*links_), outgoing, n_own, left_of(*links_), incoming, Reduction::kSum,
                   op.dtype);
}

// A chain from the root's node to the right; each byte is forwarded when it arrives: n bytes sent
// per node, n / bandwidth + (m-1) latencies. Source: the pipeline of Pjesivac-Grbovic et al. 2007,
// doi:10.1007/s10586-007-0012-0.
void Team::chain_broadcast(const Op& op, const std::byte* x, std::byte* out) {
    const int nodes = links_->size();
    const int root_node = formation_.node_of(static_cast<int>(op.root));
    const int position = (links_->me() - root_node + nodes) % nodes;
    const bool is_first = position == 0;
    const bool is_last = position == nodes - 1;
    Outgoing outgoing{is_first ? x : out, op.nbytes()};
    const Incoming incoming{out, nullptr, op.nbytes()};
    links_->stream(is_last ? -1 : right_of(*links_), {&outgoing, 1}, is_first ? 1 : 0,
                   is_first ? -1 : left_of(*links_), {&incoming, 1}, Reduction::kSum, op.dtype);
}

}  // namespace phalanx
