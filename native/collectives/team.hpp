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
#include "collectives/link_team.hpp"
#include "collectives/op.hpp"

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
};

// Concurrency: one thread at a time (the group's turn).
class Team {
  public:
    // host is null where this rank is alone on its node, links where there is one node only.
    Team(Formation formation, int rank, std::unique_ptr<HostTeam> host,
         std::unique_ptr<LinkTeam> links);

    // Headers first: returns once every rank of the group is known to make the same call.
    // `payload` is what this rank contributes if it is small.
    void begin(const Op& op, Choice choice, const std::byte* x, Waiter& waiter);
    void all_sum(const Op& op, Choice choice, const std::byte* x, std::byte* out, Waiter& waiter);
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
    void ring_sum(const Op& op, const std::byte* x, std::byte* out, Waiter& waiter);
    void mesh_sum(const Op& op, const std::byte* own, std::byte* out);
    void ring_gather(const Op& op, std::byte* out, Waiter& waiter);
    void chain_broadcast(const Op& op, const std::byte* x, std::byte* out, Waiter& waiter);

    Formation formation_;
    int rank_;
    bool is_flat_;
    std::unique_ptr<HostTeam> host_;
    std::unique_ptr<LinkTeam> links_;
};

}  // namespace phalanx
