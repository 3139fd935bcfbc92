// The collectives in which every rank gets something else: what is one block for each rank in
// memory is walked in pieces of all blocks at once, so that no rank needs a copy of a whole array.
#include <algorithm>

#include "base/copy.hpp"
#include "collectives/host_blocks.hpp"
#include "collectives/team.hpp"

namespace phalanx {

namespace {

std::uint64_t at(int rank) { return static_cast<std::uint64_t>(rank); }

}  // namespace

// Before: x, one block for each rank, on every rank. After: out = the sum of this rank's blocks.
//   On a host: host_reduce_scatter_staged, in rank order.
//   Between single ranks: small, everyone to everyone, in rank order; else ring_scatter.
//   Composed: the host reduces to its leader (in rank order), the leaders reduce-scatter the pieces
//   of each other's ranks (in the order of the ring), and hand out those of their own ranks.
// Scratch: about `work_bytes` on each rank, kept; composed arrays beyond that are packed piece by
// piece, which reads and writes them once more.
// Halves are summed in float32 and rounded once on every path; as float32 they travel (all_reduce).
void Team::sum_scatter(const Op& op, Choice choice, const std::byte* x, std::byte* out,
                       Waiter& waiter) {
    const std::uint64_t block = op.count / at(size_);
    const std::uint64_t width = size_of(op.dtype);
    const Range mine{block * at(rank_), block};
    const Job whole{Reduction::kSum, op.dtype, op.count};
    if (links_ == nullptr) {
        choice.is_inline
            ? host_reduce_inline(*host_, Reduction::kSum, op.dtype, x, out, mine)
            : host_reduce_scatter_staged(*host_, waiter, Reduction::kSum, op.dtype, x, out, block);
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
        const Job job{Reduction::kSum, travels, count * at(size_)};
        const std::uint64_t nbytes = count * job.width();
        std::byte* sums = work(job.nbytes());
        if (begin > 0 && host_ != nullptr) host_->fence(waiter);

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
        scatter_block(job, choice, {terms, is_packed ? nbytes : block * width, sums, own, nbytes},
                      waiter);
        if (choice.is_wide) {
            narrow(op.dtype, reinterpret_cast<const float*>(own), out + begin * width, count);
        }
    }
}

void Team::scatter_block(const Job& job, Choice choice, Pieces pieces, Waiter& waiter) {
    if (host_ != nullptr) {
        if (!choice.is_inline) {
            host_reduce_staged(*host_, waiter, job.reduction, job.dtype, pieces.terms, pieces.sums,
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
        links_->exchange_payload({pieces.terms, static_cast<std::size_t>(job.nbytes())}, waiter);
        const std::uint64_t count = pieces.nbytes / job.width();
        for (const int rank : ranks) {
            mesh_reduce(job, pieces.terms, place(rank), {at(rank) * count, count});
        }
    } else if (is_leader()) {
        ring_scatter(job, pieces, waiter);
    }
    if (host_ == nullptr) return;
    std::vector<const std::byte*> finished;
    for (const int rank : ranks) finished.push_back(place(rank));
    host_hand_out_staged(*host_, waiter, finished, pieces.own, pieces.nbytes);
}

// Before: x, one block for each rank, on every rank. After: block r of out = what rank r had for
// this one; nothing is computed.
//   On a host: host_all_to_all_*. Between single ranks: each pair directly, all pairs at once,
//   (p-1)/p n bytes sent per rank, 1 step (the linear algorithm of Thakur, Rabenseifner and Gropp
//   2005, doi:10.1177/1094342005051521, section 4.4).
//   Composed: the host gathers at its leader, each pair of leaders trades the blocks of its ranks,
//   the leader hands out. A leader sends what its ranks have for other nodes; the blocks for ranks
//   of the own node make the same way within the host.
// Scratch: about `work_bytes` on each rank, kept.
void Team::all_to_all(const Op& op, Choice choice, const std::byte* x, std::byte* out,
                      Waiter& waiter) {
    const std::uint64_t width = size_of(op.dtype);
    const std::uint64_t block = op.count / at(size_) * width;
    if (links_ == nullptr) {
        choice.is_inline ? host_all_to_all_inline(*host_, x, out, block)
                         : host_all_to_all_staged(*host_, waiter, op.dtype, x, out, block);
        return;
    }
    if (is_flat()) {
        copy_cached(out + at(rank_) * block, x + at(rank_) * block, block);
        trade_blocks(x, out, block, waiter);
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
        const std::uint64_t row = nbytes * at(size_);  // what one rank has for all
        const bool is_whole = nbytes == block;
        std::byte* gathered = work((is_leader() ? 2 * ranks.size() : 1) * row);
        if (begin > 0 && host_ != nullptr) host_->fence(waiter);

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
            host_gather_staged(*host_, waiter, packed, rows, row, Reader::kLeader);
        } else if (is_leader()) {
            host_gather_inline(*host_, packed, rows, row);
        }
        if (is_leader()) trade_blocks(gathered, gathered + ranks.size() * row, nbytes, waiter);
        std::byte* result = is_whole ? out : gathered;
        if (host_ != nullptr) {
            host_hand_out_staged(*host_, waiter, results, result, row);
        } else {
            copy_cached(result, results[0], row);
        }
        for (int rank = 0; !is_whole && rank < size_; ++rank) {
            copy_cached(out + at(rank) * block + begin, result + at(rank) * nbytes, nbytes);
        }
    }
}

// Rows of one block for each rank: `gathered` has one for each rank of this node, of what it has
// for all; `received` gets one for each of them, of what all have for it.
void Team::trade_blocks(const std::byte* gathered, std::byte* received, std::uint64_t nbytes,
                        Waiter& waiter) {
    const std::uint64_t row = nbytes * at(size_);
    const auto& mine = ranks_of(links_->me());
    std::vector<Trade> trades(formation_.nodes.size());
    for (int node = 0; node < links_->size(); ++node) {
        Trade& trade = trades[static_cast<std::size_t>(node)];
        for (std::size_t source = 0; source < mine.size(); ++source) {
            for (const int rank : ranks_of(node)) {
                trade.outgoing.push_back({gathered + source * row + at(rank) * nbytes, nbytes});
            }
        }
        for (const int rank : ranks_of(node)) {
            for (std::size_t target = 0; target < mine.size(); ++target) {
                trade.incoming.push_back(
                    {received + target * row + at(rank) * nbytes, nullptr, nbytes});
            }
        }
    }
    const Trade& own = trades[static_cast<std::size_t>(links_->me())];
    for (std::size_t i = 0; i < own.outgoing.size(); ++i) {
        copy_cached(own.incoming[i].out, own.outgoing[i].data, nbytes);
    }
    links_->trade(trades, waiter);
}

}  // namespace phalanx
