// Host first, then between nodes, then host again. The algorithms over links are in ring.cpp;
// collectives whose ranks get different blocks are in team_blocks.cpp.
#include "collectives/team.hpp"

#include <algorithm>
#include <numeric>

#include "base/copy.hpp"
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
           std::unique_ptr<LinkTeam> links, std::size_t work_bytes)
    : formation_(std::move(formation)),
      rank_(rank),
      size_(std::accumulate(
          formation_.nodes.begin(), formation_.nodes.end(), 0,
          [](int sum, const auto& ranks) { return sum + static_cast<int>(ranks.size()); })),
      is_flat_(formation_.has_single_ranks_only()),
      host_(std::move(host)),
      links_(std::move(links)),
      work_bytes_(work_bytes) {}

std::byte* Team::work(std::uint64_t nbytes) {
    if (work_.size() < nbytes) work_.resize(static_cast<std::size_t>(nbytes));
    return work_.data();
}

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
        if (choice.is_direct) {
            links_->exchange_parts(op, {x, nbytes}, slices_of(op.count, size_of(op.dtype)), waiter);
        } else {
            links_->exchange(op, is_small ? std::span(x, nbytes) : std::span<const std::byte>(),
                             waiter);
        }
    }
    if (host_ != nullptr) host_->pass_gate(waiter);
}

// Halves whose sums travel in parts are widened, block by block, added as float32, and rounded once
// at the end: (2 + 4) bytes an element read and written here more, twice the bytes on the way, and
// `work_bytes` of scratch. All else goes as it is.
void Team::all_reduce(const Op& op, Reduction reduction, Choice choice, const std::byte* x,
                      std::byte* out, Waiter& waiter) {
    if (!choice.is_wide) {
        reduce_block({reduction, op.dtype, op.count}, choice, x, out, waiter);
        return;
    }
    const std::uint64_t width = size_of(op.dtype);
    const std::uint64_t per_block = std::max<std::uint64_t>(work_bytes_ / sizeof(float), 1);
    for (std::uint64_t begin = 0; begin < op.count; begin += per_block) {
        const std::uint64_t count = std::min(per_block, op.count - begin);
        const Job job{reduction, Dtype::float32, count};
        std::byte* wide = work(job.nbytes());
        if (begin > 0 && host_ != nullptr) host_->fence(waiter);
        widen(op.dtype, x + begin * width, reinterpret_cast<float*>(wide), count);
        reduce_block(job, choice, wide, wide, waiter);
        narrow(op.dtype, reinterpret_cast<const float*>(wide), out + begin * width, count);
    }
}

void Team::reduce_block(const Job& job, Choice choice, const std::byte* x, std::byte* out,
                        Waiter& waiter) {
    const Reader reader = links_ == nullptr ? Reader::kAll : Reader::kLeader;
    const Range all{0, job.count};
    if (host_ == nullptr) {
        if (choice.is_direct) return direct_reduce(job, x, out, waiter);
        if (is_flat()) {
            choice.is_mesh ? mesh_reduce(job, x, out, all) : ring_reduce(job, x, out, waiter);
            return;
        }
        copy_cached(out, x, job.nbytes());
    } else if (!choice.is_inline) {
        host_reduce_staged(*host_, waiter, job.reduction, job.dtype, x, out, job.count, reader);
    } else if (reader == Reader::kAll || is_leader()) {
        host_reduce_inline(*host_, job.reduction, job.dtype, x, out, all);
    }
    if (links_ == nullptr) return;
    if (is_leader() && choice.is_mesh) {
        links_->exchange_payload({out, static_cast<std::size_t>(job.nbytes())}, waiter);
        mesh_reduce(job, out, out, all);
    } else if (is_leader()) {
        ring_reduce(job, out, out, waiter);
    }
    if (host_ != nullptr) host_broadcast_staged(*host_, waiter, 0, out, out, job.nbytes());
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
        host_broadcast_staged(*host_, waiter, 0, out, out,
                              op.nbytes() * static_cast<std::uint64_t>(size_));
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
