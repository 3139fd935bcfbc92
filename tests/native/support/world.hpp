// A world whose ranks are threads of the test: arenas and pages in the process,
// links as asked for.
#pragma once

#include <exception>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "group/group.hpp"
#include "memory_link.hpp"
#include "promise.hpp"

namespace phalanx::test {

enum class Wire { kSockets, kTcp, kMemory, kStriped };

struct WorldOptions {
    std::vector<int> hosts;
    Wire wire = Wire::kSockets;
    Tuning tuning;
    std::uint64_t epoch = 1;
    std::shared_ptr<LinkFaults> faults = nullptr;  // of all memory links
    std::size_t region_nbytes = 0;                 // 0: small
};

// Where this thread's operations are called from now on.
void stand_at(const std::string& site);

class World {
  public:
    explicit World(WorldOptions options);
    [[nodiscard]] int size() const { return static_cast<int>(groups_.size()); }
    Group& group(int rank) { return *groups_.at(static_cast<std::size_t>(rank)); }
    ControlPage& page_of(int rank) { return *pages_.at(static_cast<std::size_t>(rank)); }
    Arena& arena_of(int rank) { return *arenas_.at(static_cast<std::size_t>(rank)); }
    void destroy(int rank) { groups_.at(static_cast<std::size_t>(rank)).reset(); }
    // Groups of some of the ranks, in that order, beside the world's; on one
    // host.
    std::vector<std::unique_ptr<Group>> split(const std::vector<int>& ranks, int channel,
                                              std::uint64_t tag);
    // New groups over the same regions and pages, as recovery makes them.
    void renew(std::uint64_t epoch);

    // Runs fn on every rank, each in its thread; what each has thrown, if it has.
    using Body = std::function<void(Group&)>;
    std::vector<std::exception_ptr> run(const Body& body);
    // As run, but whatever is thrown fails the test.
    void run_well(const Body& body);

  private:
    void build();
    WorldOptions options_;
    std::vector<std::unique_ptr<ControlPage>> roots_;  // one per host, which owns the memory
    std::vector<std::shared_ptr<Arena>> arenas_;       // by rank
    std::vector<std::shared_ptr<ControlPage>> pages_;  // by rank
    std::vector<int> slots_;                           // by rank, on its host
    std::vector<std::unique_ptr<Group>> groups_;
};

// Tells other threads that ranks wait in their calls: after 50 ms, so first bytes have been sent.
class WaitsInCall {
  public:
    explicit WaitsInCall(std::ptrdiff_t n_calls = 1) : all_(n_calls) {}
    // Each call is watched once, and waited for by `wait`.
    void watch(Call& call) {
        call.interrupt = [this, has_counted = false]() mutable {
            if (!has_counted) all_.count_down();
            has_counted = true;
            return false;
        };
    }
    void wait() const { all_.wait(); }

  private:
    std::latch all_;
};

// Interrupts a call once its link is frozen and it has looked twice: all that came has been read.
inline auto when_frozen(std::shared_ptr<LinkFaults> faults) {
    return [faults = std::move(faults), n_frozen = 0]() mutable {
        return faults->bytes_left == 0 && ++n_frozen == 2;
    };
}

// The reason with which a rank failed; none where it did not fail that way.
std::optional<AbortReason> reason_of(const std::exception_ptr& thrown);

template <class T>
Call call_of(OpKind kind, Dtype dtype, const std::vector<T>& x, std::vector<T>& out,
             std::span<const std::uint64_t> shape, int root = 0) {
    Call call;
    call.kind = kind;
    call.dtype = dtype;
    call.count = x.size();
    call.shape = shape;
    call.root = root;
    call.x = reinterpret_cast<const std::byte*>(x.data());
    call.out = reinterpret_cast<std::byte*>(out.data());
    return call;
}

// Input of ones (or of `value`) and output of an operation.
struct FloatArrays {
    std::vector<float> x, out;
    std::vector<std::uint64_t> shape;
    explicit FloatArrays(std::size_t count, float value = 1.F)
        : x(count, value), out(count, -1.F), shape{count} {}
    Call call(OpKind kind = OpKind::kAllSum, int root = 0) {
        return call_of(kind, Dtype::float32, x, out, shape, root);
    }
};

// Counts a latch down at the end of a scope, also if the scope ends by an exception.
struct CountDownAtExit {
    std::latch& latch;
    bool is_counted = true;
    ~CountDownAtExit() {
        if (is_counted) latch.count_down();
    }
};

inline constexpr std::size_t kSmallRegion =
    Arena::kHeaderBytes + Arena::kChannels * (std::size_t{192} << 10);

// Small limits, so that small arrays reach every branch.
Tuning tiny_tuning();

}  // namespace phalanx::test
