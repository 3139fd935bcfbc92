// See async_queue.hpp.
#include "group/async_queue.hpp"

#include <unistd.h>

#include <utility>

#include "os/sync.hpp"

namespace phalanx {

AsyncOperation::AsyncOperation(const Call& call, Deadline deadline,
                               std::shared_ptr<const void> owner)
    : shape_(call.shape.begin(), call.shape.end()),
      site_(call.site == nullptr ? std::string() : *call.site),
      call_(call),
      deadline_(deadline),
      owner_(std::move(owner)) {
    call_.shape = shape_;
    call_.site = &site_;
    call_.interrupt = nullptr;  // the caller does not wait in this call
}

Woken AsyncOperation::sleep(std::chrono::nanoseconds limit) const noexcept {
    std::uint32_t pending = kPending;
    state_.compare_exchange_strong(pending, kAwaited, std::memory_order_acquire);
    return pending == kDone ? Woken::kYes : futex_wait(state_, kAwaited, limit);
}

void AsyncOperation::perform(const std::function<void(const Call&, Deadline)>& operation) noexcept {
    try {
        operation(call_, deadline_);
    } catch (...) {
        error_ = std::current_exception();
    }
}

void AsyncOperation::set_done() noexcept {
    if (state_.exchange(kDone, std::memory_order_acq_rel) == kAwaited) futex_wake_all(state_);
}

void AsyncOperation::finish(const std::function<void(const Call&, Deadline)>& operation) noexcept {
    perform(operation);
    set_done();
}

AsyncQueue::AsyncQueue(Run run) : run_(std::move(run)) {}

AsyncQueue::~AsyncQueue() {
    if (thread_ != nullptr && pid_ != ::getpid()) {
        // A child of fork has no such thread: the handle must be neither joined nor ended.
        static_cast<void>(thread_.release());  // NOLINT(bugprone-unused-return-value)
        return;
    }
    close(std::chrono::milliseconds::zero());
    if (thread_ != nullptr) thread_->join();
}

bool AsyncQueue::reserve_slot() noexcept {
    auto pending = pending_.load(std::memory_order_relaxed);
    while (pending < kMost) {
        if (pending_.compare_exchange_weak(pending, pending + 1, std::memory_order_seq_cst)) {
            return true;
        }
    }
    return false;
}

void AsyncQueue::release_slot() noexcept {
    if (pending_.fetch_sub(1, std::memory_order_release) == kMost) futex_wake_all(pending_);
}

void AsyncQueue::push(std::shared_ptr<AsyncOperation> work) {
    const std::lock_guard lock(mutex_);
    if (thread_ == nullptr) start();
    queue_.push_back(std::move(work));
    wake();
}

void AsyncQueue::start() {
    const SignalsBlocked blocked;
    try {
        thread_ = std::make_unique<std::thread>([this] { serve(); });
    } catch (const std::system_error& error) {
        throw SystemError("cannot start the group's thread", error.code().value());
    }
    pid_ = ::getpid();
}

void AsyncQueue::sleep_until_slot(std::chrono::nanoseconds limit) const noexcept {
    futex_wait(pending_, kMost, limit);
}

void AsyncQueue::sleep_until_idle(std::chrono::milliseconds patience) const noexcept {
    // No event signals this, which is rare: poll every millisecond.
    constexpr std::chrono::milliseconds kBite{1};
    const auto give_up_at = Clock::now() + patience;
    while (!is_idle() && Clock::now() < give_up_at) {
        futex_wait(pending_, pending_.load(std::memory_order_relaxed), kBite);
    }
}

void AsyncQueue::wake() noexcept {
    bell_.fetch_add(1, std::memory_order_relaxed);
    if (is_asleep_) futex_wake_all(bell_);
}

void AsyncQueue::serve() {
    std::unique_lock lock(mutex_);
    while (true) {
        while (queue_.empty() && !is_closed_) {
            const auto seen = bell_.load(std::memory_order_relaxed);
            is_asleep_ = true;
            lock.unlock();
            futex_wait(bell_, seen, std::chrono::hours(1));
            lock.lock();
            is_asleep_ = false;
        }
        if (queue_.empty()) break;
        // A plain pointer: the containers keep the share, see above.
        AsyncOperation& work = *queue_.front();
        lock.unlock();
        work.perform(run_);
        lock.lock();
        finished_.splice(finished_.end(), queue_, queue_.begin());  // needs no memory
        has_finished_.store(true, std::memory_order_relaxed);
        release_slot();
        // Under the mutex: after it is released, any thread in drop_finished may drop this work.
        work.set_done();
    }
    has_ended_.store(1, std::memory_order_release);
    futex_wake_all(has_ended_);
}

void AsyncQueue::drop_finished() {
    std::list<std::shared_ptr<AsyncOperation>> finished;  // destroyed after the mutex is released
    const std::lock_guard lock(mutex_);
    finished.swap(finished_);
    has_finished_.store(false, std::memory_order_relaxed);
}

bool AsyncQueue::close(std::chrono::milliseconds patience) noexcept {
    {
        const std::lock_guard lock(mutex_);
        is_closed_ = true;
        if (thread_ == nullptr) return true;
        wake();
    }
    const auto give_up_at = Clock::now() + patience;
    while (has_ended_.load(std::memory_order_acquire) == 0) {
        if (Clock::now() >= give_up_at) return false;
        futex_wait(has_ended_, 0, patience);
    }
    return true;
}

}  // namespace phalanx
