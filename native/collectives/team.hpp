// A whole group as it stands: ranks of this host in an arena, hosts (or single ranks) over links,
// or both. Each collective is composed of what the two halves can do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collectives/host_algorithms.hpp"
#include "collectives/host_team.hpp"
#include "collectives/kernels.hpp"
#include "collectives/link_team.hpp"
#include "collectives/op.hpp"
#include "collectives/plan.hpp"

namespace phalanx {

// Which ranks stand together; the same on all ranks of the group. nodes[i] has the ranks of node i,
// ascending; its first is the leader; nodes are in the order of their leaders.
struct Formation {
    std::vector<std::vector<int>> nodes;
    static Formation by_host(std::span<const int> hosts);
    static Formation of_single_ranks(int size);
    [[nodiscard]] int node_of(int rank) const;
    [[nodiscard]] bool has_single_ranks_only() const;
};

// What the selector chose; depends on the operation, not on the rank.
struct Choice {
    bool is_inline = false;  // on the host: the payload travels with the header
    bool is_mesh = false;    // between nodes: everyone to everyone, instead of around the ring
    bool is_direct = false;  // between single ranks: each reduces a slice that all send to it
    bool is_wide = false;    // halves whose partial sums travel, and do so as float32
    bool is_whole = false;   // small: never in blocks (which inline payloads could not follow)
};

// The arithmetic of one operation, or of a block of it, as it travels.
struct Job {
    Reduction reduction = Reduction::kSum;
    Dtype dtype = Dtype::none;
    std::uint64_t count = 0;
    [[nodiscard]] std::uint64_t width() const noexcept { return size_of(dtype); }
    [[nodiscard]] std::uint64_t nbytes() const noexcept { return count * width(); }
};

// The block of sum_scatter that is under way: where the piece of each rank is read and written.
struct Pieces {
    const std::byte* terms;      // what this node adds to the piece of rank 0
    std::uint64_t terms_stride;  // ... and from there to the piece of the next rank
    std::byte* sums;             // partial sums, piece after piece
    std::byte* own;              // where the finished piece of this rank belongs
    std::uint64_t nbytes;        // of each piece
};

// Concurrency: one thread at a time (the group's turn).
class Team {
  public:
    // host is null where this rank is alone on its node, links where there is one node only.
    // `work_bytes` is about how much scratch it may keep for what travels in blocks.
    Team(Formation formation, int rank, std::unique_ptr<HostTeam> host,
         std::unique_ptr<LinkTeam> links, std::size_t work_bytes);

    // Headers first: returns once every rank of the group is known to make the same call.
    // `payload` is what this rank contributes if it is small.
    void begin(const Op& op, Choice choice, const std::byte* x, Waiter& waiter);
    void all_reduce(const Op& op, Reduction reduction, Choice choice, const std::byte* x,
                    std::byte* out, Waiter& waiter);
    // x and out must be apart, here and in all_to_all.
    void sum_scatter(const Op& op, Choice choice, const std::byte* x, std::byte* out,
                     Waiter& waiter);
    void all_to_all(const Op& op, Choice choice, const std::byte* x, std::byte* out,
                    Waiter& waiter);
    void all_gather(const Op& op, Choice choice, const std::byte* x, std::byte* out,
                    Waiter& waiter);
    void broadcast(const Op& op, Choice choice, const std::byte* x, std::byte* out, Waiter& waiter);

    [[nodiscard]] std::unique_ptr<HostTeam> release_host() noexcept { return std::move(host_); }
    [[nodiscard]] HostTeam* host() const noexcept { return host_.get(); }
    [[nodiscard]] LinkTeam* links() const noexcept { return links_.get(); }
    [[nodiscard]] const Formation& formation() const noexcept { return formation_; }

  private:
    [[nodiscard]] bool is_leader() const noexcept { return host_ == nullptr || host_->is_leader(); }
    [[nodiscard]] bool is_flat() const noexcept { return is_flat_; }
    [[nodiscard]] const std::vector<int>& ranks_of(int node) const {
        return formation_.nodes[static_cast<std::size_t>(node)];
    }
    [[nodiscard]] std::byte* work(std::uint64_t nbytes);
    void reduce_block(const Job& job, Choice choice, const std::byte* x, std::byte* out,
                      Waiter& waiter);
    void ring_reduce(const Job& job, const std::byte* x, std::byte* out, Waiter& waiter);
    void mesh_reduce(const Job& job, const std::byte* own, std::byte* out, Range part);
    void direct_reduce(const Job& job, const std::byte* own, std::byte* out, Waiter& waiter);
    [[nodiscard]] std::vector<Range> slices_of(std::uint64_t count, std::uint64_t width) const;
    void scatter_block(const Job& job, Choice choice, Pieces pieces, Waiter& waiter);
    void ring_scatter(const Job& job, const Pieces& pieces, Waiter& waiter);
    void trade_blocks(const std::byte* gathered, std::byte* received, std::uint64_t nbytes,
                      Waiter& waiter);
    void ring_gather(const Op& op, std::byte* out, Waiter& waiter);
    void chain_broadcast(const Op& op, const std::byte* x, std::byte* out, Waiter& waiter);

    Formation formation_;
    int rank_;
    int size_;
    bool is_flat_;
    std::unique_ptr<HostTeam> host_;
    std::unique_ptr<LinkTeam> links_;
    std::size_t work_bytes_;
    std::vector<std::byte> work_;  // grows to what was needed, and is kept
};

}  // namespace phalanx
