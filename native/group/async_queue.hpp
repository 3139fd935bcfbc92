// Asynchronous operations: the submitted works, and the thread of a group that runs them in order.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "collectives/operation/op.hpp"
#include "os/sync.hpp"

namespace phalanx {

// The arguments of one operation. x and out point to memory that outlives the operation: x has
// `count` elements, out has out_count(). They are equal or disjoint; for kSumScatter and kAllToAll
// disjoint.
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
    // Source line of the call, for operations on the group's thread; else the group looks it up.
    const std::string* site = nullptr;
    // The thread runs this for the main thread, which waits for it: a stop holds it there.
    bool is_for_main_thread = false;
};

// Concurrency. The group's thread writes the outcome, then `state_` (release); a thread that has
// seen `is_done` (acquire) may read it. `owner_` keeps the arrays alive. Dropping it may need a
// lock (Python's GIL): the group's thread never touches it, see AsyncQueue.
class AsyncOperation {
  public:
    AsyncOperation(const Call& call, Deadline deadline, std::shared_ptr<const void> owner);
    AsyncOperation(const AsyncOperation&) = delete;
    AsyncOperation& operator=(const AsyncOperation&) = delete;

    [[nodiscard]] bool is_done() const noexcept {
        return state_.load(std::memory_order_acquire) == kDone;
    }
    // Sleeps until done, a signal, or `limit`; may wake early.
    Woken sleep(std::chrono::nanoseconds limit) const noexcept;
    // Throws the operation's error; call only when done.
    void check() const {
        if (error_ != nullptr) std::rethrow_exception(error_);
    }
    // Runs `operation` and stores its outcome.
    void finish(const std::function<void(const Call&, Deadline)>& operation) noexcept;
    void drop_owner() noexcept { owner_.reset(); }

    [[nodiscard]] const Call& call() const noexcept { return call_; }
    [[nodiscard]] Deadline deadline() const noexcept { return deadline_; }
    // Position among all works submitted to the group, from 1; 0: never queued.
    [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
    void set_number(std::uint64_t number) noexcept { number_ = number; }

  private:
    friend class AsyncQueue;
    enum State : std::uint32_t { kPending, kAwaited, kDone };
    void perform(const std::function<void(const Call&, Deadline)>& operation) noexcept;
    void set_done() noexcept;

    std::vector<std::uint64_t> shape_;
    std::string site_;
    Call call_;
    Deadline deadline_;
    std::shared_ptr<const void> owner_;
    std::exception_ptr error_;
    std::uint64_t number_ = 0;
    mutable std::atomic<std::uint32_t> state_{kPending};
};

// Concurrency. `mutex_` guards the queue, the finished works and the thread. `pending_` counts the
// submitted works that are not over: the submitter increments it (reserve_slot); it is decremented
// after the operation left the group's turn, before the work is done. So a thread that sees 0 after
// its own submissions (acquire) runs after them, and a thread that waited finds the direct path
// free. A submitter reserves a slot and then checks that the group is usable; close() marks the
// group and then waits for zero slots. Both are seq_cst, so that no submission is missed.
//
// The queue keeps each work until drop_finished(): the thread never drops the last share of a work,
// and so never its owner.
class AsyncQueue {
  public:
    using Run = std::function<void(const Call&, Deadline)>;
    static constexpr std::uint32_t kMost =
        1024;  // a bound that makes mistakes visible; not measured

    explicit AsyncQueue(Run run);
    AsyncQueue(const AsyncQueue&) = delete;
    AsyncQueue& operator=(const AsyncQueue&) = delete;
    ~AsyncQueue();

    [[nodiscard]] bool is_idle() const noexcept {
        return pending_.load(std::memory_order_seq_cst) == 0;
    }
    // Reserves a place; false if the queue is full. push() or release_slot() must follow.
    [[nodiscard]] bool reserve_slot() noexcept;
    void release_slot() noexcept;
    // Not after close(), which is called when the queue is idle and stays idle.
    void push(std::shared_ptr<AsyncOperation> work);
    void sleep_until_slot(std::chrono::nanoseconds limit) const noexcept;
    // Waits until nothing is queued or running; in an aborted epoch all works fail at once.
    void sleep_until_idle(std::chrono::milliseconds patience) const noexcept;
    // Callers must be allowed to drop owners.
    void drop_finished();
    [[nodiscard]] bool has_finished() const noexcept {
        return has_finished_.load(std::memory_order_relaxed);
    }

    // Accepts no more works; the thread ends after the queued works. Returns true if it has ended
    // within `patience`.
    bool close(std::chrono::milliseconds patience) noexcept;

  private:
    void start();
    void wake() noexcept;
    void serve();

    Run run_;
    std::mutex mutex_;
    std::list<std::shared_ptr<AsyncOperation>> queue_;
    std::list<std::shared_ptr<AsyncOperation>> finished_;
    std::unique_ptr<std::thread> thread_;
    pid_t pid_ = -1;  // the process that has the thread: a child of fork has none
    bool is_closed_ = false;
    bool is_asleep_ = false;
    // Not a condition variable: in a child of fork one cannot be destroyed if a thread of the
    // parent slept on it.
    std::atomic<std::uint32_t> bell_{0};
    std::atomic<std::uint32_t> pending_{0};
    std::atomic<std::uint32_t> has_ended_{0};
    std::atomic<bool> has_finished_{false};
};

}  // namespace phalanx
