// See work.hpp.
#include "group/work.hpp"

#include <unistd.h>

#include <utility>

#include "base/signals.hpp"

namespace phalanx {

Work::Work(const Call& call, Deadline deadline, std::shared_ptr<const void> owner)
    : shape_(call.shape.begin(), call.shape.end()),
      site_(call.site == nullptr ? std::string() : *call.site),
      call_(call),
      deadline_(deadline),
      owner_(std::move(owner)) {
    call_.shape = shape_;
    call_.site = &site_;
    call_.interrupt = nullptr;  // its caller has gone on
}

Woken Work::sleep(std::chrono::nanoseconds limit) const noexcept {
    std::uint32_t pending = kPending;
    state_.compare_exchange_strong(pending, kAwaited, std::memory_order_acquire);
    return pending == kDone ? Woken::kYes : futex_wait(state_, kAwaited, limit);
}

void Work::check() const {
    if (aborted_) throw Aborted(*aborted_);
    if (!closed_.empty()) throw Closed(closed_);
}

void Work::perform(const std::function<void(const Call&, Deadline)>& operation) noexcept {
    try {
        operation(call_, deadline_);
    } catch (const Aborted& error) {
        aborted_ = error.reason;
    } catch (const Closed& error) {
        closed_ = error.what();
    } catch (const std::exception& error) {
        aborted_ = Reason{AbortKind::kError, -1, error.what()};
    }
}

void Work::set_done() noexcept {
    if (state_.exchange(kDone, std::memory_order_acq_rel) == kAwaited) futex_wake_all(state_);
}

void Work::finish(const std::function<void(const Call&, Deadline)>& operation) noexcept {
    perform(operation);
    set_done();
}

WorkQueue::WorkQueue(Run run) : run_(std::move(run)) {}

WorkQueue::~WorkQueue() {
    if (thread_ != nullptr && pid_ != ::getpid()) {
        // In a child of fork there is no such thread: its handle must be neither joined nor ended.
        static_cast<void>(thread_.release());  // NOLINT(bugprone-unused-return-value)
        return;
    }
    close(std::chrono::milliseconds::zero());
    if (thread_ != nullptr) thread_->join();
}

bool WorkQueue::take_room() noexcept {
    auto pending = pending_.load(std::memory_order_relaxed);
    while (pending < kMost) {
        if (pending_.compare_exchange_weak(pending, pending + 1, std::memory_order_seq_cst)) {
            return true;
        }
    }
    return false;
}

void WorkQueue::give_room() noexcept {
    if (pending_.fetch_sub(1, std::memory_order_release) == kMost) futex_wake_all(pending_);
}

void WorkQueue::push(std::shared_ptr<Work> work) {
    const std::lock_guard lock(mutex_);
    was_used_.store(true, std::memory_order_relaxed);
    if (thread_ == nullptr) start();
    queue_.push_back(std::move(work));
    wake();
}

void WorkQueue::start() {
    const SignalsBlocked blocked;
    try {
        thread_ = std::make_unique<std::thread>([this] { serve(); });
    } catch (const std::system_error& error) {
        throw SystemError("cannot start the group's thread", error.code().value());
    }
    pid_ = ::getpid();
}

void WorkQueue::sleep_until_room(std::chrono::nanoseconds limit) const noexcept {
    futex_wait(pending_, kMost, limit);
}

void WorkQueue::sleep_until_idle(std::chrono::milliseconds patience) const noexcept {
    // Nobody is woken for this, which is rare: a look every millisecond.
    constexpr std::chrono::milliseconds kBite{1};
    const auto give_up_at = Clock::now() + patience;
    while (!is_idle() && Clock::now() < give_up_at) {
        futex_wait(pending_, pending_.load(std::memory_order_relaxed), kBite);
    }
}

void WorkQueue::wake() noexcept {
    bell_.fetch_add(1, std::memory_order_relaxed);
    if (is_asleep_) futex_wake_all(bell_);
}

void WorkQueue::serve() {
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
        // A plain pointer: the share stays in the containers, see above.
        Work& work = *queue_.front();
        lock.unlock();
        work.perform(run_);
        lock.lock();
        finished_.push_back(std::move(queue_.front()));
        queue_.pop_front();
        has_finished_.store(true, std::memory_order_relaxed);
        give_room();
        // Under the mutex: once it is free, whoever drops the finished may drop this work.
        work.set_done();
    }
    has_ended_.store(1, std::memory_order_release);
    futex_wake_all(has_ended_);
}

void WorkQueue::drop_finished() {
    std::vector<std::shared_ptr<Work>> finished;  // dropped after the mutex
    const std::lock_guard lock(mutex_);
    finished.swap(finished_);
    has_finished_.store(false, std::memory_order_relaxed);
}

bool WorkQueue::close(std::chrono::milliseconds patience) noexcept {
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
