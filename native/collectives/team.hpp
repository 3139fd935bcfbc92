// A whole group: ranks of this host in an arena, hosts (or single ranks) over links, or both. Each
// collective is composed of host steps and link steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collectives/between_hosts/node_exchange.hpp"
#include "collectives/kernels/reduce.hpp"
#include "collectives/on_host/host_collectives.hpp"
#include "collectives/on_host/shared_memory_team.hpp"
#include "collectives/operation/op.hpp"
#include "collectives/operation/summation_order.hpp"

namespace phalanx {

// The placement of ranks on nodes; the same on all ranks of the group. nodes[i] has the ranks of
// node i, ascending; the first is the leader. Nodes are in the order of their leaders.
struct NodeLayout {
    std::vector<std::vector<int>> nodes;
    static NodeLayout by_host(std::span<const int> hosts);
    static NodeLayout of_single_ranks(int size);
    [[nodiscard]] int node_of(int rank) const;
    [[nodiscard]] bool has_single_ranks_only() const;
};

// Algorithm on the host << 4 | algorithm between nodes.
using Algorithm = std::uint8_t;

// The selector's choice; depends on the operation, not on the rank.
struct AlgorithmChoice {
    bool is_inline = false;  // on the host: the payload travels with the header
    bool is_mesh = false;    // between nodes: every node to every node, instead of a ring
    bool is_direct = false;  // between single ranks: each rank reduces a slice that all send to it
    bool is_wide = false;    // halves with partial sums on the wire, which travel as float32
    bool is_whole = false;   // small: never in blocks (inline payloads cannot be split)
    Algorithm code = 0;      // of these, as in the flight recorder
};

// The arithmetic of one operation, or of a block of it, in the dtype on the wire.
struct ReductionSpec {
    Reduction reduction = Reduction::kSum;
    Dtype dtype = Dtype::none;
    std::uint64_t count = 0;
    [[nodiscard]] std::uint64_t width() const noexcept { return size_of(dtype); }
    [[nodiscard]] std::uint64_t nbytes() const noexcept { return count * width(); }
};

// The current block of sum_scatter: the memory of each rank's piece.
struct ScatterBlock {
    const std::byte* terms;      // this node's term of the piece of rank 0
    std::uint64_t terms_stride;  // distance from there to the piece of the next rank
    std::byte* sums;             // partial sums, piece after piece
    std::byte* own;              // destination of the finished piece of this rank
    std::uint64_t nbytes;        // of each piece
};

// Concurrency: one thread at a time (the group's turn).
class Team {
  public:
    // host is null if this rank is alone on its node, links if there is only one node.
    // `work_bytes` is the approximate scratch for data that is sent in blocks.
    Team(NodeLayout formation, int rank, std::unique_ptr<SharedMemoryTeam> host,
         std::unique_ptr<NodeExchange> links, std::size_t work_bytes);

    // Exchanges headers: returns once every rank of the group is known to make the same call.
    // `payload` is this rank's input if it is small.
    void begin(const Op& op, AlgorithmChoice choice, const std::byte* x);
    void all_reduce(const Op& op, Reduction reduction, AlgorithmChoice choice, const std::byte* x,
                    std::byte* out);
    // x and out must be apart, here and in all_to_all.
    void sum_scatter(const Op& op, AlgorithmChoice choice, const std::byte* x, std::byte* out);
    void all_to_all(const Op& op, AlgorithmChoice choice, const std::byte* x, std::byte* out);
    void all_gather(const Op& op, AlgorithmChoice choice, const std::byte* x, std::byte* out);
    void broadcast(const Op& op, AlgorithmChoice choice, const std::byte* x, std::byte* out);

    [[nodiscard]] std::unique_ptr<SharedMemoryTeam> release_host() noexcept {
        return std::move(host_);
    }
    [[nodiscard]] SharedMemoryTeam* host() const noexcept { return host_.get(); }
    [[nodiscard]] NodeExchange* links() const noexcept { return links_.get(); }
    [[nodiscard]] const NodeLayout& formation() const noexcept { return formation_; }

  private:
    [[nodiscard]] bool is_leader() const noexcept { return host_ == nullptr || host_->is_leader(); }
    [[nodiscard]] bool is_flat() const noexcept { return is_flat_; }
    [[nodiscard]] const std::vector<int>& ranks_of(int node) const {
        return formation_.nodes[static_cast<std::size_t>(node)];
    }
    [[nodiscard]] std::byte* work(std::uint64_t nbytes);
    void reduce_block(const ReductionSpec& job, AlgorithmChoice choice, const std::byte* x,
                      std::byte* out);
    void ring_reduce(const ReductionSpec& job, const std::byte* x, std::byte* out);
    void mesh_reduce(const ReductionSpec& job, const std::byte* own, std::byte* out, Range part);
    void direct_reduce(const ReductionSpec& job, const std::byte* own, std::byte* out);
    void scatter_block(const ReductionSpec& job, AlgorithmChoice choice, ScatterBlock pieces);
    void ring_scatter(const ReductionSpec& job, const ScatterBlock& pieces);
    void exchange_blocks(const std::byte* gathered, std::byte* received, std::uint64_t nbytes);
    void ring_gather(const Op& op, std::byte* out);
    void chain_broadcast(const Op& op, const std::byte* x, std::byte* out);

    NodeLayout formation_;
    int rank_;
    int size_;
    bool is_flat_;
    std::unique_ptr<SharedMemoryTeam> host_;
    std::unique_ptr<NodeExchange> links_;
    std::size_t work_bytes_;
    std::vector<std::byte> work_;  // grows as needed and is kept
};

}  // namespace phalanx
