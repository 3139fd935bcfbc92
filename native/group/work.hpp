// Operations that run behind the caller's back: what was submitted, and the one thread of a group
// that does it, in order. How an operation is done it does not know.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/futex.hpp"
#include "collectives/op.hpp"

namespace phalanx {

// How one operation is called. x and out point at memory that outlives the operation: x of `count`
// elements, out of out_count(). They are the same or apart; for kSumScatter and kAllToAll apart.
struct Call {
    OpKind kind = OpKind::kBarrier;
    Dtype dtype = Dtype::none;
    std::uint64_t count = 0;  // elements of x
    std::span<const std::uint64_t> shape;
    int root = 0;  // of a message: the other rank
    const std::byte* x = nullptr;
    std::byte* out = nullptr;
    std::optional<Clock::duration> timeout;
    std::function<bool()> interrupt;  // runs signal handlers; true: leave
    // Where it was called, for an operation that the group's thread will run; else the group asks.
    const std::string* site = nullptr;
};

// Concurrency. The group's thread writes the outcome, then `state_` (release); anyone who has seen
// `is_done` (acquire) may read it. `owner_` keeps the arrays alive and may be something that only
// one lock may drop (Python's): the group's thread never touches it, see WorkQueue.
class Work {
  public:
    Work(const Call& call, Deadline deadline, std::shared_ptr<const void> owner);
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

    [[nodiscard]] bool is_done() const noexcept {
        return state_.load(std::memory_order_acquire) == kDone;
    }
    // Until done, a signal, or `limit`; perhaps for no reason.
    Woken sleep(std::chrono::nanoseconds limit) const noexcept;
    // Throws what the operation has thrown; only when done.
    void check() const;
    // Runs `operation` and notes how it ended.
    void finish(const std::function<void(const Call&, Deadline)>& operation) noexcept;
    void drop_owner() noexcept { owner_.reset(); }

    [[nodiscard]] const Call& call() const noexcept { return call_; }
    [[nodiscard]] Deadline deadline() const noexcept { return deadline_; }

  private:
    friend class WorkQueue;
    enum State : std::uint32_t { kPending, kAwaited, kDone };
    void perform(const std::function<void(const Call&, Deadline)>& operation) noexcept;
    void set_done() noexcept;

    std::vector<std::uint64_t> shape_;
    std::string site_;
    Call call_;
    Deadline deadline_;
    std::shared_ptr<const void> owner_;
    std::optional<Reason> aborted_;
    std::string closed_;
    mutable std::atomic<std::uint32_t> state_{kPending};
};

// Concurrency. `mutex_` guards the queue, the finished and the thread's life. `pending_` counts
// what was submitted and is not over: the submitter adds to it (take_room), and it falls when the
// operation has left the group's turn, before the work is done. So a thread that sees 0 after its
// own submissions (acquire) comes after them, and one that waited finds the short way free. Who
// submits takes the room first and then looks whether the group is usable; who ends the group
// looks for 0 after he has said so. Both are seq_cst: nobody who is yet to push is overlooked.
//
// The queue keeps each work until somebody takes the finished ones: the thread never drops the
// last share of a work, and so never its owner.
class WorkQueue {
  public:
    using Run = std::function<void(const Call&, Deadline)>;
    static constexpr std::uint32_t kMost =
        1024;  // a bound, so that a mistake shows: no measurement

    explicit WorkQueue(Run run);
    WorkQueue(const WorkQueue&) = delete;
    WorkQueue& operator=(const WorkQueue&) = delete;
    ~WorkQueue();

    // Whether anything ever was: most groups never submit.
    [[nodiscard]] bool was_used() const noexcept {
        return was_used_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] bool is_idle() const noexcept {
        return pending_.load(std::memory_order_seq_cst) == 0;
    }
    // False if there is none. push() follows, or give_room().
    [[nodiscard]] bool take_room() noexcept;
    void give_room() noexcept;
    // Not once the queue was closed, which is done when it is idle and stays so.
    void push(std::shared_ptr<Work> work);
    void sleep_until_room(std::chrono::nanoseconds limit) const noexcept;
    // Until nothing is queued or under way; of an aborted epoch, whose works fail at once.
    void sleep_until_idle(std::chrono::milliseconds patience) const noexcept;
    // Whoever calls it may drop owners.
    void drop_finished();
    [[nodiscard]] bool has_finished() const noexcept {
        return has_finished_.load(std::memory_order_relaxed);
    }

    // Takes no more; the thread ends when it is through with what it has. True if it has ended
    // within `patience`.
    bool close(std::chrono::milliseconds patience) noexcept;

  private:
    void start();
    void wake() noexcept;
    void serve();

    Run run_;
    std::mutex mutex_;
    std::deque<std::shared_ptr<Work>> queue_;
    std::vector<std::shared_ptr<Work>> finished_;
    std::unique_ptr<std::thread> thread_;
    pid_t pid_ = -1;  // whose the thread is: a child of fork has none
    bool is_closed_ = false;
    bool is_asleep_ = false;
    // Not a condition variable: one cannot be destroyed in a child of fork while a thread of the
    // parent slept on it.
    std::atomic<std::uint32_t> bell_{0};
    std::atomic<std::uint32_t> pending_{0};
    std::atomic<std::uint32_t> has_ended_{0};
    std::atomic<bool> has_finished_{false};
    std::atomic<bool> was_used_{false};
};

}  // namespace phalanx
