// Implement the collectives of the ranks of one host. A staged chunk has one part per member, and
// each chunk takes one post.
#include "collectives/on_host/host_collectives.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/copy.hpp"
#include "collectives/kernels/reduce.hpp"
#include "collectives/operation/plan.hpp"

namespace phalanx {

namespace {

constexpr std::uint64_t kGrainBytes = 64;  // parts of at least a cache line begin at cache lines

std::uint64_t part_nbytes(const SharedMemoryTeam& team, std::uint64_t width) {
    const std::uint64_t share = team.chunk_nbytes() / static_cast<std::uint64_t>(team.size());
    const std::uint64_t grain = share >= kGrainBytes ? kGrainBytes : width;
    return share / grain * grain;
}

// Post c means: chunk c is staged, chunk c - 1 used. stage[c + 1] is written after all members
// posted c: they have used chunk c - 1, which was in the same buffer.
// `use(range, parts)`: `range` is the range of bytes in each block; parts[m] points to these bytes
// staged by member m for this member, null for this member itself.
template <class Use>
void walk_blocks(SharedMemoryTeam& team, Waiter& waiter, const std::byte* x, std::uint64_t nbytes,
                 std::uint64_t width, const Use& use) {
    const std::uint64_t per_part = part_nbytes(team, width);
    const auto part_of = [&](std::uint64_t chunk) {
        return Range{chunk * per_part, std::min(per_part, nbytes - chunk * per_part)};
    };
    const auto offset = [&](int member) { return static_cast<std::uint64_t>(member) * per_part; };
    const auto stage = [&](std::uint64_t chunk) {
        const Range range = part_of(chunk);
        for (int member = 0; member < team.size(); ++member) {
            if (member == team.me()) continue;
            const std::byte* block = x + static_cast<std::uint64_t>(member) * nbytes;
            team.write_shared(team.own_stage(chunk) + offset(member), block + range.begin,
                              range.size, chunk);
        }
    };
    std::vector<const std::byte*> parts(static_cast<std::size_t>(team.size()));
    if (nbytes > 0) stage(0);
    for (std::uint64_t chunk = 0; chunk * per_part < nbytes; ++chunk) {
        team.advance_phase();
        team.await_members(waiter);
        for (int member = 0; member < team.size(); ++member) {
            parts[static_cast<std::size_t>(member)] =
                member == team.me() ? nullptr : team.stage(member, chunk) + offset(team.me());
        }
        if (chunk == 0) {
            team.measure_reads(part_of(0).size,
                               [&](int member) { return parts[static_cast<std::size_t>(member)]; });
        }
        use(part_of(chunk), parts);
        if ((chunk + 1) * per_part < nbytes) stage(chunk + 1);
    }
}

}  // namespace

void host_reduce_scatter_staged(SharedMemoryTeam& team, Waiter& waiter, Reduction reduction,
                                Dtype dtype, const std::byte* x, std::byte* out,
                                std::uint64_t count) {
    const std::uint64_t width = size_of(dtype);
    const auto me = static_cast<std::size_t>(team.me());
    const std::byte* own = x + me * count * width;
    walk_blocks(team, waiter, x, count * width, width,
                [&](const Range& range, std::vector<const std::byte*>& parts) {
                    parts[me] = own + range.begin;
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

void host_all_to_all_staged(SharedMemoryTeam& team, Waiter& waiter, Dtype dtype, const std::byte* x,
                            std::byte* out, std::uint64_t nbytes) {
    const std::uint64_t mine = static_cast<std::uint64_t>(team.me()) * nbytes;
    walk_blocks(team, waiter, x, nbytes, size_of(dtype),
                [&](const Range& range, const std::vector<const std::byte*>& parts) {
                    for (std::size_t member = 0; member < parts.size(); ++member) {
                        const std::byte* from =
                            parts[member] == nullptr ? x + mine + range.begin : parts[member];
                        copy_cached(out + member * nbytes + range.begin, from, range.size);
                    }
                });
}

// Like host_broadcast_staged, with one part of each chunk per member.
void host_scatter_staged(SharedMemoryTeam& team, Waiter& waiter,
                         std::span<const std::byte* const> pieces, std::byte* out,
                         std::uint64_t nbytes) {
    const std::uint64_t per_part = part_nbytes(team, kLargestElement);
    const auto offset = [&](std::size_t member) { return member * per_part; };
    const auto stage = [&](std::uint64_t chunk) {
        const std::uint64_t begin = chunk * per_part;
        for (std::size_t member = 1; member < pieces.size(); ++member) {
            team.write_shared(team.own_stage(chunk) + offset(member), pieces[member] + begin,
                              std::min(per_part, nbytes - begin), chunk);
        }
    };
    if (team.is_leader() && nbytes > 0) stage(0);
    for (std::uint64_t chunk = 0; chunk * per_part < nbytes; ++chunk) {
        const std::uint64_t begin = chunk * per_part;
        team.advance_phase();
        if (!team.is_leader()) {
            team.await_member(0, waiter);
            copy_cached(out + begin,
                        team.stage(0, chunk) + offset(static_cast<std::size_t>(team.me())),
                        std::min(per_part, nbytes - begin));
        } else if (begin + per_part < nbytes) {
            team.await_members(waiter);
            stage(chunk + 1);
        }
    }
    if (team.is_leader()) copy_cached(out, pieces[0], nbytes);
}

// The staged algorithms process the array in chunks, with one post per chunk. Two buffers
// alternate, so a buffer is reused two chunks later; each function says why the buffer is free by
// then.

namespace {

// Chunk `index` of `count` elements, `per_chunk` each.
Range chunk_of(std::uint64_t count, std::uint64_t per_chunk, std::uint64_t index) {
    const std::uint64_t begin = index * per_chunk;
    return {begin, std::min(per_chunk, count - begin)};
}

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
          inputs_(static_cast<std::size_t>(team.size())),
          is_reader_(reader == Reader::kAll || team.is_leader()) {}

    [[nodiscard]] std::uint64_t chunks() const noexcept {
        return (count_ + per_chunk_ - 1) / per_chunk_;
    }

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
        for (int member = 0; member < team_.size(); ++member) {
            inputs_[static_cast<std::size_t>(member)] =
                member == team_.me() ? x_ + (whole.begin + own.begin) * width_
                                     : team_.stage(member, chunk) + own.begin * width_;
        }
        if (chunk == 0) {
            team_.measure_reads(own.size * width_, [&](int member) {
                return inputs_[static_cast<std::size_t>(member)];
            });
        }
        std::byte* result = team_.own_result(chunk);
        std::byte* out = is_reader_ ? out_ + (whole.begin + own.begin) * width_ : nullptr;
        if (team_.uses_nontemporal(chunk)) {
            reduce_streaming(chunk, out, result, own.size);
        } else if (is_reader_) {
            reduce(reduction_, dtype_, out, result, inputs_, own.size);
        } else {
            reduce(reduction_, dtype_, result, nullptr, inputs_, own.size);
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
            reduce(reduction_, dtype_, block, nullptr, inputs_, size);
            team_.write_shared(result + at * width_, block, size * width_, chunk);
            for (const std::byte*& input : inputs_) input += size * width_;
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
    std::vector<const std::byte*> inputs_;
    bool is_reader_;
};

}  // namespace

void host_reduce_inline(SharedMemoryTeam& team, Reduction reduction, Dtype dtype,
                        const std::byte* x, std::byte* out, Range part) {
    constexpr int kFew = 16;  // up to here no allocation is needed
    const std::byte* few[kFew];
    std::vector<const std::byte*> many(team.size() > kFew ? static_cast<std::size_t>(team.size())
                                                          : 0);
    const std::byte** inputs = team.size() > kFew ? many.data() : few;
    const std::uint64_t begin = part.begin * size_of(dtype);
    for (int member = 0; member < team.size(); ++member) {
        inputs[member] = (member == team.me() ? x : team.inline_payload(member)) + begin;
    }
    team.measure_reads(part.size * size_of(dtype), [&](int member) { return inputs[member]; });
    reduce(reduction, dtype, out, nullptr, {inputs, static_cast<std::size_t>(team.size())},
           part.size);
}

// Post c means: chunk c is staged, chunk c - 1 reduced, chunk c - 2 copied out.
// stage[c + 1] is written after all members posted c: they have reduced chunk c - 1, which used the
// same buffer. result[c] is written after all members posted c: they have copied out chunk c - 2,
// which used the same buffer. In place (x is out) works: the part of x that is overwritten by the
// results of chunk c - 1 was staged before.
void host_reduce_staged(SharedMemoryTeam& team, Waiter& waiter, Reduction reduction, Dtype dtype,
                        const std::byte* x, std::byte* out, std::uint64_t count, Reader reader) {
    StagedReduction work(team, reduction, dtype, x, out, count, reader);
    const std::uint64_t chunks = work.chunks();
    if (chunks == 0) return;
    work.stage(0);
    team.advance_phase();
    for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
        team.await_members(waiter);
        work.reduce_own_slice(chunk);
        if (chunk > 0) work.copy_out(chunk - 1);
        if (chunk + 1 < chunks) work.stage(chunk + 1);
        team.advance_phase();
    }
    team.await_members(waiter);
    work.copy_out(chunks - 1);
}

void host_gather_inline(SharedMemoryTeam& team, const std::byte* x,
                        std::span<std::byte* const> outs, std::uint64_t nbytes) {
    for (int member = 0; member < team.size(); ++member) {
        const std::byte* from = member == team.me() ? x : team.inline_payload(member);
        copy_cached(outs[static_cast<std::size_t>(member)], from, nbytes);
    }
}

// Post c means: chunk c is staged, chunk c - 1 copied out. stage[c + 1] is written after all
// members posted c: they have copied out chunk c - 1, which used the same buffer.
void host_gather_staged(SharedMemoryTeam& team, Waiter& waiter, const std::byte* x,
                        std::span<std::byte* const> outs, std::uint64_t nbytes, Reader reader) {
    const bool is_reader = reader == Reader::kAll || team.is_leader();
    const std::uint64_t per_chunk = team.chunk_nbytes();
    const auto stage = [&](const Range& part, std::uint64_t chunk) {
        team.write_shared(team.own_stage(chunk), x + part.begin, part.size, chunk);
    };
    if (nbytes > 0) stage(chunk_of(nbytes, per_chunk, 0), 0);
    for (std::uint64_t chunk = 0; chunk * per_chunk < nbytes; ++chunk) {
        const Range part = chunk_of(nbytes, per_chunk, chunk);
        team.advance_phase();
        team.await_members(waiter);
        if (chunk == 0 && is_reader) {
            team.measure_reads(part.size, [&](int member) { return team.stage(member, 0); });
        }
        for (int member = 0; is_reader && member < team.size(); ++member) {
            const std::byte* from =
                member == team.me() ? x + part.begin : team.stage(member, chunk);
            copy_cached(outs[static_cast<std::size_t>(member)] + part.begin, from, part.size);
        }
        if (part.end() < nbytes) stage(chunk_of(nbytes, per_chunk, chunk + 1), chunk + 1);
    }
}

// Like the gather, but only the root stages, so the others wait for the root only. The root waits
// for all members before it overwrites a buffer.
void host_broadcast_staged(SharedMemoryTeam& team, Waiter& waiter, int root, const std::byte* x,
                           std::byte* out, std::uint64_t nbytes) {
    const bool is_root = team.me() == root;
    const std::uint64_t per_chunk = team.chunk_nbytes();
    if (is_root && nbytes > 0) {
        team.write_shared(team.own_stage(0), x, chunk_of(nbytes, per_chunk, 0).size, 0);
    }
    for (std::uint64_t chunk = 0; chunk * per_chunk < nbytes; ++chunk) {
        const Range part = chunk_of(nbytes, per_chunk, chunk);
        team.advance_phase();
        if (is_root) {
            if (part.end() < nbytes) {
                team.await_members(waiter);
                const Range next = chunk_of(nbytes, per_chunk, chunk + 1);
                team.write_shared(team.own_stage(chunk + 1), x + next.begin, next.size, chunk + 1);
            }
            continue;
        }
        team.await_member(root, waiter);
        copy_cached(out + part.begin, team.stage(root, chunk), part.size);
    }
    if (is_root) copy_cached(out, x, nbytes);
}

}  // namespace phalanx
