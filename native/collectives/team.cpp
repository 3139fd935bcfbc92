// Run collectives on the host first, then between nodes, then on the host again.
// between_hosts/algorithms.cpp has the algorithms over links.
#include "collectives/team.hpp"

#include <algorithm>
#include <numeric>

#include "base/copy.hpp"
#include "collectives/kernels/reduce.hpp"
#include "collectives/on_host/host_collectives.hpp"

namespace phalanx {

NodeLayout NodeLayout::by_host(std::span<const int> hosts) {
    NodeLayout formation;
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

NodeLayout NodeLayout::of_single_ranks(int size) {
    NodeLayout formation;
    for (int rank = 0; rank < size; ++rank) formation.nodes.push_back({rank});
    return formation;
}

int NodeLayout::node_of(int rank) const {
    const auto found = std::find_if(nodes.begin(), nodes.end(), [&](const auto& ranks) {
        return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    });
    return static_cast<int>(found - nodes.begin());
}

bool NodeLayout::has_single_ranks_only() const {
    return std::all_of(nodes.begin(), nodes.end(), [](const auto& n) { return n.size() == 1; });
}

Team::Team(NodeLayout formation, int rank, std::unique_ptr<SharedMemoryTeam> host,
           std::unique_ptr<NodeExchange> links, std::size_t work_bytes)
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

// With links, the leaders compare headers: a leader has all headers of its host and exchanges them
// with the other leaders. A leader that finds a mismatch aborts the epoch and sends the reason on
// its links. Members that wait for the leader at the gate are woken by the abort; all get the same
// text.
void Team::begin(const Op& op, AlgorithmChoice choice, const std::byte* x) {
    const bool has_payload = op.kind != OpKind::kBroadcast || static_cast<int>(op.root) == rank_;
    const auto nbytes = static_cast<std::size_t>(op.nbytes());
    if (host_ != nullptr) {
        const bool is_inline = choice.is_inline && has_payload;
        host_->publish_header(op, is_inline ? std::span(x, nbytes) : std::span<const std::byte>());
        host_->await_headers(links_ == nullptr);
    }
    if (links_ == nullptr) return;
    if (is_leader()) {
        if (host_ != nullptr) host_->check_headers();
        const bool is_small = is_flat() && choice.is_mesh;
        if (choice.is_direct) {
            const auto parts = node_slices(op.count, size_of(op.dtype), links_->size());
            links_->exchange_parts(op, {x, nbytes}, parts);
        } else {
            links_->exchange(op, is_small ? std::span(x, nbytes) : std::span<const std::byte>());
        }
    }
    if (host_ != nullptr) host_->await_leader();
}

// Halves with partial sums on the wire are converted to float32 block by block, added, and rounded
// once at the end. That costs (2 + 4) more bytes read and written per element, twice the bytes on
// the wire, and `work_bytes` of scratch. All other types are sent as they are.
void Team::all_reduce(const Op& op, Reduction reduction, AlgorithmChoice choice, const std::byte* x,
                      std::byte* out) {
    if (!choice.is_wide) {
        reduce_block({reduction, op.dtype, op.count}, choice, x, out);
        return;
    }
    const std::uint64_t width = size_of(op.dtype);
    const std::uint64_t per_block = wide_block(work_bytes_);
    for (std::uint64_t begin = 0; begin < op.count; begin += per_block) {
        const std::uint64_t count = std::min(per_block, op.count - begin);
        const ReductionSpec job{reduction, Dtype::float32, count};
        std::byte* wide = work(job.nbytes());
        if (begin > 0 && host_ != nullptr) host_->phase_barrier();
        widen(op.dtype, x + begin * width, reinterpret_cast<float*>(wide), count);
        reduce_block(job, choice, wide, wide);
        narrow(op.dtype, reinterpret_cast<const float*>(wide), out + begin * width, count);
    }
}

void Team::reduce_block(const ReductionSpec& job, AlgorithmChoice choice, const std::byte* x,
                        std::byte* out) {
    const Reader reader = links_ == nullptr ? Reader::kAll : Reader::kLeader;
    const Range all{0, job.count};
    if (host_ == nullptr) {
        if (choice.is_direct) return direct_reduce(job, x, out);
        if (is_flat()) {
            choice.is_mesh ? mesh_reduce(job, x, out, all) : ring_reduce(job, x, out);
            return;
        }
        copy_cached(out, x, job.nbytes());
    } else if (!choice.is_inline) {
        host_reduce_staged(*host_, job.reduction, job.dtype, x, out, job.count, reader);
    } else if (reader == Reader::kAll || is_leader()) {
        host_reduce_inline(*host_, job.reduction, job.dtype, x, out, all);
    }
    if (links_ == nullptr) return;
    if (is_leader() && choice.is_mesh) {
        links_->exchange_payload({out, static_cast<std::size_t>(job.nbytes())});
        mesh_reduce(job, out, out, all);
    } else if (is_leader()) {
        ring_reduce(job, out, out);
    }
    if (host_ != nullptr) host_broadcast_staged(*host_, 0, out, out, job.nbytes());
}

void Team::all_gather(const Op& op, AlgorithmChoice choice, const std::byte* x, std::byte* out) {
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
            host_gather_staged(*host_, x, outs, op.nbytes(), reader);
        } else if (reader == Reader::kAll || is_leader()) {
            host_gather_inline(*host_, x, outs, op.nbytes());
        }
    }
    if (links_ == nullptr) return;
    if (is_leader()) ring_gather(op, out);
    if (host_ != nullptr) {
        host_broadcast_staged(*host_, 0, out, out, op.nbytes() * static_cast<std::uint64_t>(size_));
    }
}

void Team::broadcast(const Op& op, AlgorithmChoice choice, const std::byte* x, std::byte* out) {
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
            host_broadcast_staged(*host_, member_of_root(), x, out, op.nbytes());
        }
    } else if (has_root) {
        copy_cached(out, x, op.nbytes());
    }
    if (links_ == nullptr) return;
    if (is_leader()) chain_broadcast(op, out, out);
    if (!has_root && host_ != nullptr) {
        host_broadcast_staged(*host_, 0, out, out, op.nbytes());
    }
}

// The collectives that give each rank a different block. The array has one block per rank, and is
// processed in pieces of all blocks at once, so that no rank needs a copy of a whole array.

namespace {

std::uint64_t at(int rank) { return static_cast<std::uint64_t>(rank); }

}  // namespace

// Before: every rank has x, one block per rank. After: out = the sum of this rank's blocks.
//   On a host: host_reduce_scatter_staged.
//   Between single ranks: small arrays as a mesh; else ring_scatter.
//   Composed: the host reduces to its leader, the leaders reduce-scatter the pieces of their ranks,
//   and distribute the pieces to their own ranks.
// Scratch: about `work_bytes` on each rank, kept. Larger composed arrays are packed piece by piece,
// which reads and writes them once more.
// Halves are summed in float32 and rounded once on every path, and sent as float32 (all_reduce).
void Team::sum_scatter(const Op& op, AlgorithmChoice choice, const std::byte* x, std::byte* out) {
    const std::uint64_t block = op.count / at(size_);
    const std::uint64_t width = size_of(op.dtype);
    const Range mine{block * at(rank_), block};
    const ReductionSpec whole{Reduction::kSum, op.dtype, op.count};
    if (links_ == nullptr) {
        choice.is_inline
            ? host_reduce_inline(*host_, Reduction::kSum, op.dtype, x, out, mine)
            : host_reduce_scatter_staged(*host_, Reduction::kSum, op.dtype, x, out, block);
        return;
    }
    if (is_flat() && choice.is_mesh) {
        mesh_reduce(whole, x, out, mine);
        return;
    }
    const Dtype travels = choice.is_wide ? Dtype::float32 : op.dtype;
    const std::uint64_t room = work_bytes_ / (at(size_) * size_of(travels));
    const std::uint64_t per_piece = choice.is_whole ? block : std::max<std::uint64_t>(room, 1);
    for (std::uint64_t begin = 0; begin < block; begin += per_piece) {
        const std::uint64_t count = std::min(per_piece, block - begin);
        const ReductionSpec job{Reduction::kSum, travels, count * at(size_)};
        const std::uint64_t nbytes = count * job.width();
        std::byte* sums = work(job.nbytes());
        if (begin > 0 && host_ != nullptr) host_->phase_barrier();

        const bool is_whole = count == block;
        const bool is_packed = choice.is_wide || (!is_flat() && !is_whole);
        for (int rank = 0; is_packed && rank < size_; ++rank) {
            const std::byte* from = x + (block * at(rank) + begin) * width;
            std::byte* to = sums + at(rank) * nbytes;
            choice.is_wide ? widen(op.dtype, from, reinterpret_cast<float*>(to), count)
                           : copy_cached(to, from, nbytes);
        }
        std::byte* own = choice.is_wide ? sums + at(rank_) * nbytes : out + begin * width;
        const std::byte* terms = is_packed ? sums : x + begin * width;
        scatter_block(job, choice, {terms, is_packed ? nbytes : block * width, sums, own, nbytes});
        if (choice.is_wide) {
            narrow(op.dtype, reinterpret_cast<const float*>(own), out + begin * width, count);
        }
    }
}

void Team::scatter_block(const ReductionSpec& job, AlgorithmChoice choice, ScatterBlock pieces) {
    if (host_ != nullptr) {
        if (!choice.is_inline) {
            host_reduce_staged(*host_, job.reduction, job.dtype, pieces.terms, pieces.sums,
                               job.count, Reader::kLeader);
        } else if (is_leader()) {
            host_reduce_inline(*host_, job.reduction, job.dtype, pieces.terms, pieces.sums,
                               {0, job.count});
        }
        pieces.terms = pieces.sums;
        pieces.terms_stride = pieces.nbytes;
    }
    const auto place = [&](int rank) {
        return rank == rank_ ? pieces.own : pieces.sums + at(rank) * pieces.nbytes;
    };
    const auto& ranks = ranks_of(links_->me());
    if (is_leader() && choice.is_mesh) {
        links_->exchange_payload({pieces.terms, static_cast<std::size_t>(job.nbytes())});
        const std::uint64_t count = pieces.nbytes / job.width();
        for (const int rank : ranks) {
            mesh_reduce(job, pieces.terms, place(rank), {at(rank) * count, count});
        }
    } else if (is_leader()) {
        ring_scatter(job, pieces);
    }
    if (host_ == nullptr) return;
    std::vector<const std::byte*> finished;
    for (const int rank : ranks) finished.push_back(place(rank));
    host_scatter_staged(*host_, finished, pieces.own, pieces.nbytes);
}

// Before: every rank has x, one block per rank. After: block r of out = the block of rank r for
// this rank; nothing is computed.
//   On a host: host_all_to_all_*. Between single ranks: each pair directly, all pairs at once,
//   (p-1)/p n bytes sent per rank, 1 step (the linear algorithm of Thakur, Rabenseifner and Gropp
//   2005, doi:10.1177/1094342005051521, section 4.4).
//   Composed: the host gathers at its leader, each pair of leaders transfers the blocks of its
//   ranks, and the leader distributes. A leader sends the blocks of its ranks for other nodes;
//   blocks for ranks of the own node take the same path within the host.
// Scratch: about `work_bytes` on each rank, kept.
void Team::all_to_all(const Op& op, AlgorithmChoice choice, const std::byte* x, std::byte* out) {
    const std::uint64_t width = size_of(op.dtype);
    const std::uint64_t block = op.count / at(size_) * width;
    if (links_ == nullptr) {
        choice.is_inline ? host_all_to_all_inline(*host_, x, out, block)
                         : host_all_to_all_staged(*host_, op.dtype, x, out, block);
        return;
    }
    if (is_flat()) {
        copy_cached(out + at(rank_) * block, x + at(rank_) * block, block);
        exchange_blocks(x, out, block);
        return;
    }
    std::size_t largest = 0;  // node: pieces must be of one size everywhere
    for (const auto& node : formation_.nodes) largest = std::max(largest, node.size());
    const auto& ranks = ranks_of(links_->me());
    const std::uint64_t room = work_bytes_ / (2 * largest * at(size_) * width);
    const std::uint64_t per_piece =
        choice.is_whole ? block : std::max<std::uint64_t>(room, 1) * width;
    for (std::uint64_t begin = 0; begin < block; begin += per_piece) {
        const std::uint64_t nbytes = std::min(per_piece, block - begin);
        const std::uint64_t row = nbytes * at(size_);  // one rank's blocks for all ranks
        const bool is_whole = nbytes == block;
        std::byte* gathered = work((is_leader() ? 2 * ranks.size() : 1) * row);
        if (begin > 0 && host_ != nullptr) host_->phase_barrier();

        const std::byte* packed = is_whole ? x : gathered;
        for (int rank = 0; !is_whole && rank < size_; ++rank) {
            copy_cached(gathered + at(rank) * nbytes, x + at(rank) * block + begin, nbytes);
        }
        std::vector<std::byte*> rows;
        std::vector<const std::byte*> results;
        for (std::size_t member = 0; is_leader() && member < ranks.size(); ++member) {
            rows.push_back(gathered + member * row);
            results.push_back(gathered + (ranks.size() + member) * row);
        }
        if (host_ == nullptr) {
            copy_cached(gathered, packed, row);
        } else if (!choice.is_inline) {
            host_gather_staged(*host_, packed, rows, row, Reader::kLeader);
        } else if (is_leader()) {
            host_gather_inline(*host_, packed, rows, row);
        }
        if (is_leader()) exchange_blocks(gathered, gathered + ranks.size() * row, nbytes);
        std::byte* result = is_whole ? out : gathered;
        if (host_ != nullptr) {
            host_scatter_staged(*host_, results, result, row);
        } else {
            copy_cached(result, results[0], row);
        }
        for (int rank = 0; !is_whole && rank < size_; ++rank) {
            copy_cached(out + at(rank) * block + begin, result + at(rank) * nbytes, nbytes);
        }
    }
}

// Rows have one block per rank. `gathered` has a row for each rank of this node: its blocks for all
// ranks. `received` gets a row for each rank of this node: the blocks of all ranks for it.
void Team::exchange_blocks(const std::byte* gathered, std::byte* received, std::uint64_t nbytes) {
    const std::uint64_t row = nbytes * at(size_);
    const auto& mine = ranks_of(links_->me());
    std::vector<PairTransfer> transfers(formation_.nodes.size());
    for (int node = 0; node < links_->size(); ++node) {
        PairTransfer& transfer = transfers[static_cast<std::size_t>(node)];
        for (std::size_t source = 0; source < mine.size(); ++source) {
            for (const int rank : ranks_of(node)) {
                transfer.outgoing.push_back({gathered + source * row + at(rank) * nbytes, nbytes});
            }
        }
        for (const int rank : ranks_of(node)) {
            for (std::size_t target = 0; target < mine.size(); ++target) {
                transfer.incoming.push_back(
                    {received + target * row + at(rank) * nbytes, nullptr, nbytes});
            }
        }
    }
    const PairTransfer& own = transfers[static_cast<std::size_t>(links_->me())];
    for (std::size_t i = 0; i < own.outgoing.size(); ++i) {
        copy_cached(own.incoming[i].out, own.outgoing[i].data, nbytes);
    }
    links_->exchange_all_pairs(transfers);
}

}  // namespace phalanx
