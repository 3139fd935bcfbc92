// The staged algorithms walk the array in chunks with one post per chunk. Buffers are by parity of
// the chunk, so a buffer is written again two chunks later; each function says why it is free then.
#include "collectives/host_algorithms.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/copy.hpp"
#include "collectives/kernels.hpp"
#include "collectives/plan.hpp"

namespace phalanx {

namespace {

constexpr std::uint64_t kGrainBytes = 64;  // slices begin at cache lines

// Chunk `index` of `count` elements, `per_chunk` each.
Range chunk_of(std::uint64_t count, std::uint64_t per_chunk, std::uint64_t index) {
    const std::uint64_t begin = index * per_chunk;
    return {begin, std::min(per_chunk, count - begin)};
}

// The staged reduction, as a class only so that its steps have names.
class StagedReduction {
  public:
    StagedReduction(HostTeam& team, Reduction reduction, Dtype dtype, const std::byte* x,
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

    // Copies all of a chunk but the own slice, which nobody else reads, to the same places.
    void stage(std::uint64_t chunk) {
        const Range whole = chunk_of(count_, per_chunk_, chunk);
        const Range own = slice_of(whole, team_.me());
        std::byte* to = team_.own_stage(chunk);
        const std::byte* from = x_ + whole.begin * width_;
        team_.share(to, from, own.begin * width_, chunk);
        team_.share(to + own.end() * width_, from + own.end() * width_,
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
            team_.sample(own.size * width_,
                         [&](int member) { return inputs_[static_cast<std::size_t>(member)]; });
        }
        std::byte* result = team_.own_result(chunk);
        std::byte* out = is_reader_ ? out_ + (whole.begin + own.begin) * width_ : nullptr;
        if (team_.streams(chunk)) {
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
    // Block by block, each copied to the result past the caches while it is still in them.
    void reduce_streaming(std::uint64_t chunk, std::byte* out, std::byte* result,
                          std::uint64_t count) {
        constexpr std::uint64_t kBlockBytes = 8192;  // a quarter of a first-level cache
        alignas(64) std::byte scratch[kBlockBytes];
        for (std::uint64_t at = 0; at < count; at += kBlockBytes / width_) {
            const std::uint64_t size = std::min(kBlockBytes / width_, count - at);
            std::byte* block = out != nullptr ? out + at * width_ : scratch;
            reduce(reduction_, dtype_, block, nullptr, inputs_, size);
            team_.share(result + at * width_, block, size * width_, chunk);
            for (const std::byte*& input : inputs_) input += size * width_;
        }
    }

    [[nodiscard]] Range slice_of(const Range& whole, int member) const {
        return slice(whole.size, static_cast<std::uint64_t>(team_.size()),
                     static_cast<std::uint64_t>(member), kGrainBytes / width_);
    }

    HostTeam& team_;
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

void host_reduce_inline(HostTeam& team, Reduction reduction, Dtype dtype, const std::byte* x,
                        std::byte* out, Range part) {
    constexpr int kFew = 16;  // no allocation for the usual sizes
    const std::byte* few[kFew];
    std::vector<const std::byte*> many(team.size() > kFew ? static_cast<std::size_t>(team.size())
                                                          : 0);
    const std::byte** inputs = team.size() > kFew ? many.data() : few;
    const std::uint64_t begin = part.begin * size_of(dtype);
    for (int member = 0; member < team.size(); ++member) {
        inputs[member] = (member == team.me() ? x : team.inline_payload(member)) + begin;
    }
    team.sample(part.size * size_of(dtype), [&](int member) { return inputs[member]; });
    reduce(reduction, dtype, out, nullptr, {inputs, static_cast<std::size_t>(team.size())},
           part.size);
}

// Post c says: chunk c is staged, chunk c - 1 reduced, chunk c - 2 copied out.
// stage[c + 1] is written after post c of all: they have reduced c - 1, which lay there before.
// result[c] is written after post c of all: they have copied out c - 2, which lay there before.
// In place (x is out) works: what is copied out of chunk c - 1 was staged before it is overwritten.
void host_reduce_staged(HostTeam& team, Waiter& waiter, Reduction reduction, Dtype dtype,
                        const std::byte* x, std::byte* out, std::uint64_t count, Reader reader) {
    StagedReduction work(team, reduction, dtype, x, out, count, reader);
    const std::uint64_t chunks = work.chunks();
    if (chunks == 0) return;
    work.stage(0);
    team.post();
    for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
        team.await_all(waiter);
        work.reduce_own_slice(chunk);
        if (chunk > 0) work.copy_out(chunk - 1);
        if (chunk + 1 < chunks) work.stage(chunk + 1);
        team.post();
    }
    team.await_all(waiter);
    work.copy_out(chunks - 1);
}

void host_gather_inline(HostTeam& team, const std::byte* x, std::span<std::byte* const> outs,
                        std::uint64_t nbytes) {
    for (int member = 0; member < team.size(); ++member) {
        const std::byte* from = member == team.me() ? x : team.inline_payload(member);
        copy_cached(outs[static_cast<std::size_t>(member)], from, nbytes);
    }
}

// Post c says: chunk c is staged, chunk c - 1 copied out. stage[c + 1] is written after post c of
// all: they have copied out c - 1, which lay there before.
void host_gather_staged(HostTeam& team, Waiter& waiter, const std::byte* x,
                        std::span<std::byte* const> outs, std::uint64_t nbytes, Reader reader) {
    const bool is_reader = reader == Reader::kAll || team.is_leader();
    const std::uint64_t per_chunk = team.chunk_nbytes();
    const auto stage = [&](const Range& part, std::uint64_t chunk) {
        team.share(team.own_stage(chunk), x + part.begin, part.size, chunk);
    };
    if (nbytes > 0) stage(chunk_of(nbytes, per_chunk, 0), 0);
    for (std::uint64_t chunk = 0; chunk * per_chunk < nbytes; ++chunk) {
        const Range part = chunk_of(nbytes, per_chunk, chunk);
        team.post();
        team.await_all(waiter);
        if (chunk == 0 && is_reader) {
            team.sample(part.size, [&](int member) { return team.stage(member, 0); });
        }
        for (int member = 0; is_reader && member < team.size(); ++member) {
            const std::byte* from =
                member == team.me() ? x + part.begin : team.stage(member, chunk);
            copy_cached(outs[static_cast<std::size_t>(member)] + part.begin, from, part.size);
        }
        if (part.end() < nbytes) stage(chunk_of(nbytes, per_chunk, chunk + 1), chunk + 1);
    }
}

// As the gather, but only the root stages, so the others wait for the root alone; the root waits
// for all, because it must not overwrite what they still read.
void host_broadcast_staged(HostTeam& team, Waiter& waiter, int root, const std::byte* x,
                           std::byte* out, std::uint64_t nbytes) {
    const bool is_root = team.me() == root;
    const std::uint64_t per_chunk = team.chunk_nbytes();
    if (is_root && nbytes > 0) {
        team.share(team.own_stage(0), x, chunk_of(nbytes, per_chunk, 0).size, 0);
    }
    for (std::uint64_t chunk = 0; chunk * per_chunk < nbytes; ++chunk) {
        const Range part = chunk_of(nbytes, per_chunk, chunk);
        team.post();
        if (is_root) {
            if (part.end() < nbytes) {
                team.await_all(waiter);
                const Range next = chunk_of(nbytes, per_chunk, chunk + 1);
                team.share(team.own_stage(chunk + 1), x + next.begin, next.size, chunk + 1);
            }
            continue;
        }
        team.await(root, waiter);
        copy_cached(out + part.begin, team.stage(root, chunk), part.size);
    }
    if (is_root) copy_cached(out, x, nbytes);
}

}  // namespace phalanx
