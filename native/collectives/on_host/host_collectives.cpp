// Implement the collectives of the ranks of one host.
#include "collectives/on_host/host_collectives.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/copy.hpp"
#include "collectives/kernels/reduce.hpp"
#include "collectives/operation/summation_order.hpp"

namespace phalanx {

namespace {

constexpr std::uint64_t kGrainBytes = 64;  // parts of at least a cache line begin at cache lines

std::uint64_t part_nbytes(const SharedMemoryTeam& team, std::uint64_t width) {
    const std::uint64_t share = team.chunk_nbytes() / static_cast<std::uint64_t>(team.size());
    const std::uint64_t grain = share >= kGrainBytes ? kGrainBytes : width;
    return share / grain * grain;
}

// Chunk `index` of `count` elements (or bytes), `per_chunk` each.
Range chunk_of(std::uint64_t count, std::uint64_t per_chunk, std::uint64_t index) {
    const std::uint64_t begin = index * per_chunk;
    return {begin, std::min(per_chunk, count - begin)};
}

std::uint64_t n_chunks(std::uint64_t count, std::uint64_t per_chunk) {
    return count / per_chunk + (count % per_chunk != 0 ? 1 : 0);
}

// All members stage their chunks and use those of all others, with one post per chunk. Post c
// means: chunk c is staged, chunk c - 1 used. Chunk c + 1 is staged after all members posted c:
// they have used chunk c - 1, which was in the same one of the two buffers.
template <class Stage, class Use>
void walk_chunks(SharedMemoryTeam& team, std::uint64_t chunks, const Stage& stage, const Use& use) {
    if (chunks > 0) stage(0);
    for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
        team.advance_phase();
        team.await_members();
        use(chunk);
        if (chunk + 1 < chunks) stage(chunk + 1);
    }
}

// Only the root stages, so the others wait for the root only. The root waits for all members before
// it overwrites a buffer.
template <class Stage, class Take>
void walk_chunks_of(int root, SharedMemoryTeam& team, std::uint64_t chunks, const Stage& stage,
                    const Take& take) {
    const bool is_root = team.me() == root;
    if (is_root && chunks > 0) stage(0);
    for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
        team.advance_phase();
        if (!is_root) {
            team.await_member(root);
            take(chunk);
        } else if (chunk + 1 < chunks) {
            team.await_members();
            stage(chunk + 1);
        }
    }
}

// Each member has a block of `nbytes` for each member; a chunk has a part of every block.
// `use(range, parts)`: `range` is the range of bytes in each block; parts[m] points to these bytes
// of member m's block for this member.
template <class Use>
void walk_blocks(SharedMemoryTeam& team, const std::byte* x, std::uint64_t nbytes,
                 std::uint64_t width, const Use& use) {
    const std::uint64_t per_part = part_nbytes(team, width);
    const auto block = [&](int member) { return x + static_cast<std::uint64_t>(member) * nbytes; };
    const auto offset = [&](int member) { return static_cast<std::uint64_t>(member) * per_part; };
    const auto stage = [&](std::uint64_t chunk) {
        const Range range = chunk_of(nbytes, per_part, chunk);
        for (int member = 0; member < team.size(); ++member) {
            if (member == team.me()) continue;
            team.write_shared(team.own_stage(chunk) + offset(member), block(member) + range.begin,
                              range.size, chunk);
        }
    };
    std::vector<const std::byte*> parts(static_cast<std::size_t>(team.size()));
    walk_chunks(team, n_chunks(nbytes, per_part), stage, [&](std::uint64_t chunk) {
        const Range range = chunk_of(nbytes, per_part, chunk);
        in_rank_order(parts, team.me(), block(team.me()) + range.begin,
                      [&](int member) { return team.stage(member, chunk) + offset(team.me()); });
        if (chunk == 0) {
            team.measure_reads(range.size,
                               [&](int member) { return parts[static_cast<std::size_t>(member)]; });
        }
        use(range, parts);
    });
}

}  // namespace

void host_reduce_scatter_staged(SharedMemoryTeam& team, Reduction reduction, Dtype dtype,
                                const std::byte* x, std::byte* out, std::uint64_t count) {
    const std::uint64_t width = size_of(dtype);
    walk_blocks(team, x, count * width, width,
                [&](const Range& range, const std::vector<const std::byte*>& parts) {
                    reduce(reduction, dtype, out + range.begin, nullptr, parts, range.size / width);
                });
}

void host_all_to_all_inline(SharedMemoryTeam& team, const std::byte* x, std::byte* out,
                            std::uint64_t nbytes) {
    const std::uint64_t mine = static_cast<std::uint64_t>(team.me()) * nbytes;
    for (int member = 0; member < team.size(); ++member) {
        const std::byte* from = member == team.me() ? x : team.inline_payload(member);
        copy_cached(out + static_cast<std::uint64_t>(member) * nbytes, from + mine, nbytes);
    }
}

void host_all_to_all_staged(SharedMemoryTeam& team, Dtype dtype, const std::byte* x, std::byte* out,
                            std::uint64_t nbytes) {
    walk_blocks(team, x, nbytes, size_of(dtype),
                [&](const Range& range, const std::vector<const std::byte*>& parts) {
                    for (std::size_t member = 0; member < parts.size(); ++member) {
                        copy_cached(out + member * nbytes + range.begin, parts[member], range.size);
                    }
                });
}

// Like host_broadcast_staged, with one part of each chunk per member.
void host_scatter_staged(SharedMemoryTeam& team, std::span<const std::byte* const> pieces,
                         std::byte* out, std::uint64_t nbytes) {
    const std::uint64_t per_part = part_nbytes(team, kLargestElement);
    const auto stage = [&](std::uint64_t chunk) {
        const Range range = chunk_of(nbytes, per_part, chunk);
        for (std::size_t member = 1; member < pieces.size(); ++member) {
            team.write_shared(team.own_stage(chunk) + member * per_part,
                              pieces[member] + range.begin, range.size, chunk);
        }
    };
    const std::uint64_t offset = static_cast<std::uint64_t>(team.me()) * per_part;
    walk_chunks_of(0, team, n_chunks(nbytes, per_part), stage, [&](std::uint64_t chunk) {
        const Range range = chunk_of(nbytes, per_part, chunk);
        copy_cached(out + range.begin, team.stage(0, chunk) + offset, range.size);
    });
    if (team.is_leader()) copy_cached(out, pieces[0], nbytes);
}

namespace {

// The staged reduction; a class only to name its steps.
class StagedReduction {
  public:
    StagedReduction(SharedMemoryTeam& team, Reduction reduction, Dtype dtype, const std::byte* x,
                    std::byte* out, std::uint64_t count, Reader reader)
        : team_(team),
          reduction_(reduction),
          dtype_(dtype),
          x_(x),
          out_(out),
          count_(count),
          width_(size_of(dtype)),
          per_chunk_(team.chunk_nbytes() / width_),
          terms_(static_cast<std::size_t>(team.size())),
          is_reader_(reader == Reader::kAll || team.is_leader()) {}

    [[nodiscard]] std::uint64_t chunks() const noexcept { return n_chunks(count_, per_chunk_); }

    // Copies a chunk to the staging buffer, except the own slice, which no peer reads.
    void stage(std::uint64_t chunk) {
        const Range whole = chunk_of(count_, per_chunk_, chunk);
        const Range own = slice_of(whole, team_.me());
        std::byte* to = team_.own_stage(chunk);
        const std::byte* from = x_ + whole.begin * width_;
        team_.write_shared(to, from, own.begin * width_, chunk);
        team_.write_shared(to + own.end() * width_, from + own.end() * width_,
                           (whole.size - own.end()) * width_, chunk);
    }

    void reduce_own_slice(std::uint64_t chunk) {
        const Range whole = chunk_of(count_, per_chunk_, chunk);
        const Range own = slice_of(whole, team_.me());
        in_rank_order(terms_, team_.me(), x_ + (whole.begin + own.begin) * width_,
                      [&](int member) { return team_.stage(member, chunk) + own.begin * width_; });
        if (chunk == 0) {
            team_.measure_reads(own.size * width_, [&](int member) {
                return terms_[static_cast<std::size_t>(member)];
            });
        }
        std::byte* result = team_.own_result(chunk);
        std::byte* out = is_reader_ ? out_ + (whole.begin + own.begin) * width_ : nullptr;
        if (team_.uses_nontemporal(chunk)) {
            reduce_streaming(chunk, out, result, own.size);
        } else if (is_reader_) {
            reduce(reduction_, dtype_, out, result, terms_, own.size);
        } else {
            reduce(reduction_, dtype_, result, nullptr, terms_, own.size);
        }
    }

    void copy_out(std::uint64_t chunk) {
        if (!is_reader_) return;
        const Range whole = chunk_of(count_, per_chunk_, chunk);
        for (int member = 0; member < team_.size(); ++member) {
            if (member == team_.me()) continue;
            const Range theirs = slice_of(whole, member);
            copy_cached(out_ + (whole.begin + theirs.begin) * width_, team_.result(member, chunk),
                        theirs.size * width_);
        }
    }

  private:
    // Reduces block by block and copies each block to the result with streaming stores while it is
    // still in the cache.
    void reduce_streaming(std::uint64_t chunk, std::byte* out, std::byte* result,
                          std::uint64_t count) {
        constexpr std::uint64_t kBlockBytes = 8192;  // a quarter of a first-level cache
        alignas(64) std::byte scratch[kBlockBytes];
        for (std::uint64_t at = 0; at < count; at += kBlockBytes / width_) {
            const std::uint64_t size = std::min(kBlockBytes / width_, count - at);
            std::byte* block = out != nullptr ? out + at * width_ : scratch;
            reduce(reduction_, dtype_, block, nullptr, terms_, size);
            team_.write_shared(result + at * width_, block, size * width_, chunk);
            for (const std::byte*& term : terms_) term += size * width_;
        }
    }

    [[nodiscard]] Range slice_of(const Range& whole, int member) const {
        return slice(whole.size, static_cast<std::uint64_t>(team_.size()),
                     static_cast<std::uint64_t>(member), kGrainBytes / width_);
    }

    SharedMemoryTeam& team_;
    Reduction reduction_;
    Dtype dtype_;
    const std::byte* x_;
    std::byte* out_;
    std::uint64_t count_;
    std::uint64_t width_;
    std::uint64_t per_chunk_;
    std::vector<const std::byte*> terms_;
    bool is_reader_;
};

}  // namespace

void host_reduce_inline(SharedMemoryTeam& team, Reduction reduction, Dtype dtype,
                        const std::byte* x, std::byte* out, Range part) {
    constexpr int kFew = 16;  // up to here no allocation is needed
    const std::byte* few[kFew];
    std::vector<const std::byte*> many(team.size() > kFew ? static_cast<std::size_t>(team.size())
                                                          : 0);
    const std::span terms(team.size() > kFew ? many.data() : few,
                          static_cast<std::size_t>(team.size()));
    const std::uint64_t begin = part.begin * size_of(dtype);
    in_rank_order(terms, team.me(), x + begin,
                  [&](int member) { return team.inline_payload(member) + begin; });
    team.measure_reads(part.size * size_of(dtype),
                       [&](int member) { return terms[static_cast<std::size_t>(member)]; });
    reduce(reduction, dtype, out, nullptr, terms, part.size);
}

// Post c means: chunk c is staged, chunk c - 1 reduced, chunk c - 2 copied out.
// stage[c + 1] is written after all members posted c: they have reduced chunk c - 1, which used the
// same buffer. result[c] is written after all members posted c: they have copied out chunk c - 2,
// which used the same buffer. In place (x is out) works: the part of x that is overwritten by the
// results of chunk c - 1 was staged before.
void host_reduce_staged(SharedMemoryTeam& team, Reduction reduction, Dtype dtype,
                        const std::byte* x, std::byte* out, std::uint64_t count, Reader reader) {
    StagedReduction work(team, reduction, dtype, x, out, count, reader);
    const std::uint64_t chunks = work.chunks();
    if (chunks == 0) return;
    work.stage(0);
    team.advance_phase();
    for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
        team.await_members();
        work.reduce_own_slice(chunk);
        if (chunk > 0) work.copy_out(chunk - 1);
        if (chunk + 1 < chunks) work.stage(chunk + 1);
        team.advance_phase();
    }
    team.await_members();
    work.copy_out(chunks - 1);
}

void host_gather_inline(SharedMemoryTeam& team, const std::byte* x,
                        std::span<std::byte* const> outs, std::uint64_t nbytes) {
    for (int member = 0; member < team.size(); ++member) {
        const std::byte* from = member == team.me() ? x : team.inline_payload(member);
        copy_cached(outs[static_cast<std::size_t>(member)], from, nbytes);
    }
}

void host_gather_staged(SharedMemoryTeam& team, const std::byte* x,
                        std::span<std::byte* const> outs, std::uint64_t nbytes, Reader reader) {
    const std::uint64_t per_chunk = team.chunk_nbytes();
    const auto stage = [&](std::uint64_t chunk) {
        const Range part = chunk_of(nbytes, per_chunk, chunk);
        team.write_shared(team.own_stage(chunk), x + part.begin, part.size, chunk);
    };
    const auto copy_out = [&](std::uint64_t chunk) {
        if (reader == Reader::kLeader && !team.is_leader()) return;
        const Range part = chunk_of(nbytes, per_chunk, chunk);
        if (chunk == 0) {
            team.measure_reads(part.size, [&](int member) { return team.stage(member, 0); });
        }
        for (int member = 0; member < team.size(); ++member) {
            const std::byte* from =
                member == team.me() ? x + part.begin : team.stage(member, chunk);
            copy_cached(outs[static_cast<std::size_t>(member)] + part.begin, from, part.size);
        }
    };
    walk_chunks(team, n_chunks(nbytes, per_chunk), stage, copy_out);
}

void host_broadcast_staged(SharedMemoryTeam& team, int root, const std::byte* x, std::byte* out,
                           std::uint64_t nbytes) {
    const std::uint64_t per_chunk = team.chunk_nbytes();
    const auto stage = [&](std::uint64_t chunk) {
        const Range part = chunk_of(nbytes, per_chunk, chunk);
        team.write_shared(team.own_stage(chunk), x + part.begin, part.size, chunk);
    };
    const auto copy_out = [&](std::uint64_t chunk) {
        const Range part = chunk_of(nbytes, per_chunk, chunk);
        copy_cached(out + part.begin, team.stage(root, chunk), part.size);
    };
    walk_chunks_of(root, team, n_chunks(nbytes, per_chunk), stage, copy_out);
    if (team.me() == root) copy_cached(out, x, nbytes);
}

}  // namespace phalanx
