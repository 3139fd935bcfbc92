// Host first, then between nodes, then host again. The algorithms over links are in ring.cpp.
#include "collectives/team.hpp"

#include <algorithm>

#include "collectives/copy.hpp"
#include "collectives/kernels.hpp"

namespace phalanx {

Formation Formation::by_host(std::span<const int> hosts) {
    Formation formation;
    std::vector<int> seen;
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
        const auto at = static_cast<std::size_t>(std::find(seen.begin(), seen.end(), hosts[rank]) -
                                                 seen.begin());
        if (at == seen.size()) {
            seen.push_back(hosts[rank]);
            formation.nodes.emplace_back();
        }
        formation.nodes[at].push_back(static_cast<int>(rank));
    }
    return formation;
}

Formation Formation::of_single_ranks(int size) {
    Formation formation;
    for (int rank = 0; rank < size; ++rank) formation.nodes.push_back({rank});
    return formation;
}

int Formation::node_of(int rank) const {
    const auto found = std::find_if(nodes.begin(), nodes.end(), [&](const auto& ranks) {
        return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    });
    return static_cast<int>(found - nodes.begin());
}

bool Formation::has_single_ranks_only() const {
    return std::all_of(nodes.begin(), nodes.end(), [](const auto& n) { return n.size() == 1; });
}

Team::Team(Formation formation, int rank, std::unique_ptr<HostTeam> host,
           std::unique_ptr<LinkTeam> links)
    : formation_(std::move(formation)),
      rank_(rank),
      is_flat_(formation_.has_single_ranks_only()),
      host_(std::move(host)),
      links_(std::move(links)) {}

// With links, the leaders judge: they know all headers of their host, and exchange them with the
// other leaders. A leader that sees a mismatch aborts the epoch and says why on its links; members
// that were waiting for it to pass the gate are freed by that, with the same text everywhere.
void Team::begin(const Op& op, Choice choice, const std::byte* x, Waiter& waiter) {
    const bool has_payload = op.kind != OpKind::kBroadcast || static_cast<int>(op.root) == rank_;
    const auto nbytes = static_cast<std::size_t>(op.nbytes());
    if (host_ != nullptr) {
        const bool is_inline = choice.is_inline && has_payload;
        host_->announce(op, is_inline ? std::span(x, nbytes) : std::span<const std::byte>());
        host_->meet(waiter, links_ == nullptr);
    }
    if (links_ == nullptr) return;
    if (is_leader()) {
        if (host_ != nullptr) host_->judge();
        const bool is_small = is_flat() && choice.is_mesh;
        links_->exchange(op, is_small ? std::span(x, nbytes) : std::span<const std::byte>(),
                         waiter);
    }
    if (host_ != nullptr) host_->pass_gate(waiter);
}

void Team::all_sum(const Op& op, Choice choice, const std::byte* x, std::byte* out,
                   Waiter& waiter) {
    const Reader reader = links_ == nullptr ? Reader::kAll : Reader::kLeader;
    if (host_ == nullptr) {
        if (is_flat()) {
            choice.is_mesh ? mesh_sum(op, x, out) : ring_sum(op, x, out, waiter);
            return;
        }
        copy_cached(out, x, op.nbytes());
    } else if (!choice.is_inline) {
        host_sum_staged(*host_, waiter, op.dtype, x, out, op.count, reader);
    } else if (reader == Reader::kAll || is_leader()) {
        host_sum_inline(*host_, op.dtype, x, out, op.count);
    }
    if (links_ == nullptr) return;
    if (is_leader() && choice.is_mesh) {
        links_->exchange_payload({out, static_cast<std::size_t>(op.nbytes())}, waiter);
        mesh_sum(op, out, out);
    } else if (is_leader()) {
        ring_sum(op, out, out, waiter);
    }
    if (host_ != nullptr) host_broadcast_staged(*host_, waiter, 0, out, out, op.nbytes());
}

void Team::all_gather(const Op& op, Choice choice, const std::byte* x, std::byte* out,
                      Waiter& waiter) {
    const Reader reader = links_ == nullptr ? Reader::kAll : Reader::kLeader;
    const auto block = [&](int rank) {
        return out + static_cast<std::uint64_t>(rank) * op.nbytes();
    };
    if (host_ == nullptr) {
        copy_cached(block(rank_), x, op.nbytes());
        if (is_flat() && choice.is_mesh) {
            for (int node = 0; node < links_->size(); ++node) {
                if (node == links_->me()) continue;
                copy_cached(block(links_->rank(node)), links_->payload(node), op.nbytes());
            }
            return;
        }
    } else {
        std::vector<std::byte*> outs;
        for (int member = 0; member < host_->size(); ++member)
            outs.push_back(block(host_->rank(member)));
        if (!choice.is_inline) {
            host_gather_staged(*host_, waiter, x, outs, op.nbytes(), reader);
        } else if (reader == Reader::kAll || is_leader()) {
            host_gather_inline(*host_, x, outs, op.nbytes());
        }
    }
    if (links_ == nullptr) return;
    if (is_leader()) ring_gather(op, out, waiter);
    if (host_ != nullptr) {
        std::uint64_t ranks = 0;
        for (const auto& node : formation_.nodes) ranks += node.size();
        host_broadcast_staged(*host_, waiter, 0, out, out, op.nbytes() * ranks);
    }
}

void Team::broadcast(const Op& op, Choice choice, const std::byte* x, std::byte* out,
                     Waiter& waiter) {
    const int root = static_cast<int>(op.root);
    const bool has_root = formation_.node_of(root) == formation_.node_of(rank_);
    const auto member_of_root = [&] {
        int member = 0;
        while (host_->rank(member) != root) ++member;
        return member;
    };
    if (links_ != nullptr && is_flat() && choice.is_mesh) {
        copy_cached(out, root == rank_ ? x : links_->payload(formation_.node_of(root)),
                    op.nbytes());
        return;
    }
    if (has_root && host_ != nullptr) {
        if (choice.is_inline) {
            const int member = member_of_root();
            copy_cached(out, root == rank_ ? x : host_->inline_payload(member), op.nbytes());
        } else {
            host_broadcast_staged(*host_, waiter, member_of_root(), x, out, op.nbytes());
        }
    } else if (has_root) {
        copy_cached(out, x, op.nbytes());
    }
    if (links_ == nullptr) return;
    if (is_leader()) chain_broadcast(op, out, out, waiter);
    if (!has_root && host_ != nullptr) {
        host_broadcast_staged(*host_, waiter, 0, out, out, op.nbytes());
    }
}

}  // namespace phalanx
