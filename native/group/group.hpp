// One epoch of one group on one of its ranks: operations, failure and end.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/team.hpp"
#include "group/async_queue.hpp"
#include "group/operation_context.hpp"
#include "group/point_to_point.hpp"
#include "group/selector.hpp"
#include "monitoring/recorder.hpp"
#include "os/descriptors.hpp"
#include "os/sync.hpp"
#include "shm/arena.hpp"
#include "shm/control_page.hpp"
#include "transport/link.hpp"
#include "transport/waiter.hpp"

namespace phalanx {

struct GroupOptions {
    int rank = 0;
    int size = 1;
    std::uint64_t epoch = 1;
    int channel = 0;
    std::uint64_t tag = 0;     // identifies a split, the same on all its ranks; 0: the world
    std::vector<int> members;  // world rank of each rank; empty: the same numbers
    std::vector<int> hosts;
    std::vector<int> slots;               // empty: no arena
    std::vector<std::string> host_names;  // by rank of the world; empty: unnamed
    std::shared_ptr<Arena> arena;
    std::map<int, std::unique_ptr<Link>> links;
    std::map<int, PeerConnection> pair_links;  // to ranks that share no arena with this rank
    std::shared_ptr<ControlPage> page;
    int wake_fd = -1;  // duplicated
    // Ranks of the group on this machine, with or without an arena; 0: the ranks that share one.
    int ranks_here = 0;
    // Slot on the page by rank, even if no arena is shared; -1: on another page. Empty: slots.
    std::vector<int> page_slots;
    SiteSource site;
    Tuning tuning;
};

// Number of output elements of an operation with `count` input elements.
constexpr std::uint64_t out_count(OpKind kind, std::uint64_t count, int size) noexcept {
    const auto ranks = static_cast<std::uint64_t>(size);
    const bool is_gather = kind == OpKind::kAllGather || kind == OpKind::kSplit;
    return is_gather ? count * ranks : kind == OpKind::kSumScatter ? count / ranks : count;
}
// Whether x has one block per rank.
constexpr bool has_blocks(OpKind kind) noexcept {
    return kind == OpKind::kSumScatter || kind == OpKind::kAllToAll;
}

// Text of a close by a rank.
std::string closed_text(int rank);
// "rank 3", "ranks 0-2, 5".
std::string list_ranks(std::vector<int> ranks);

// Concurrency. run() may be called by any thread; the mutex turn_ admits one collective at a time,
// and everything below team_ belongs to its holder. Messages likewise have a turn per peer and
// direction, which protects pairs_: a message never waits for a collective, nor the other way
// round. abort(), failure(), close() and is_closed() may be called at any time by any thread: they
// touch only the page, the wake descriptor and atomics, and take the turn before they touch links.
// close() takes all turns.
//
// A stop holds the rank's main thread in run() or submit() before the operation begins; the time
// limit of a call includes that wait.
//
// The source line of a call is looked up with `site` (options) only when an operation fails or
// waits long, on the calling thread. For queued operations the submitter looks it up (Call::site).
//
// submit() passes an operation to the group's thread (async_queue.hpp). While any is queued, run()
// queues its own behind them and waits, so that a rank's operations keep the order of its calls.
//
// Failure. Any error in an operation aborts the epoch: first on the page (the first reason wins and
// wakes all ranks of this host), then as an abort notice on the links. From then on
// every operation of the group throws that reason at once.
class Group {
  public:
    explicit Group(GroupOptions options);
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    ~Group();

    // Throws a UsageError if the call is wrong as far as this rank can check alone.
    void check_call(const Call& call) const;
    // Runs a collective or a message: kSend sends x to rank `root` and returns at once if x is
    // small (PointToPoint::kBufferedBytes) or is awaited; kRecv receives from rank `root` into out.
    // Throws UsageError, Closed, Aborted, or Interrupted.
    void run(const Call& call);

    // Runs the call later: `owner` keeps x and out alive. The timeout counts from now.
    std::shared_ptr<AsyncOperation> submit(const Call& call, std::shared_ptr<const void> owner);
    // Throws the work's error. If `timeout` passes, throws an Aborted of kTimeout that ends only
    // this wait: the operation goes on. An interrupt aborts the epoch, as in run().
    void wait(const AsyncOperation& work, std::optional<Clock::duration> timeout,
              const std::function<bool()>& interrupt);
    // Drops the owners of finished works' arrays (on a thread that may do so).
    [[nodiscard]] bool has_finished() const noexcept { return queue_.has_finished(); }
    void drop_finished();
    [[nodiscard]] bool is_idle() const noexcept { return queue_.is_idle(); }
    // Tells the page whether threads other than the waiting one may act for the user.
    void tell_threads(bool has_others) noexcept {
        activity_->wait.threads.store(has_others ? 0 : Activity::kNoOthers,
                                      std::memory_order_seq_cst);
    }

    // Default timeout of calls; none at first. May be called at any time by any thread.
    [[nodiscard]] std::optional<Clock::duration> timeout() const noexcept;
    void set_timeout(std::optional<Clock::duration> timeout) noexcept;

    bool abort(const AbortReason& reason) noexcept;
    [[nodiscard]] std::optional<AbortReason> failure() const;
    // If the epoch was aborted, waits until no thread is inside. Afterwards this group accesses no
    // arena memory, and the group of a new epoch may use the same channel. Returns false if a
    // thread is still inside. Also finishes a close() that gave up.
    [[nodiscard]] bool wait_until_idle(std::chrono::milliseconds patience) noexcept;
    // Returns after `patience` in any case: a thread that is still inside may be stuck for good.
    void close(std::chrono::milliseconds patience = kClosePatience) noexcept;
    [[nodiscard]] bool is_closed() const noexcept { return is_closed_.load(); }

    [[nodiscard]] int rank() const noexcept { return rank_; }
    [[nodiscard]] int size() const noexcept { return size_; }
    [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
    [[nodiscard]] int channel() const noexcept { return channel_; }
    [[nodiscard]] const std::vector<int>& members() const noexcept { return members_; }
    // The rank that a reason blames, from this rank's view.
    [[nodiscard]] int culprit_seen_by(const AbortReason& reason) const {
        return reason.culprit_rank(world_rank(rank_));
    }
    // Host of a world rank; "" if unknown.
    [[nodiscard]] std::string host_of(int world_rank) const;
    // After close(): whether all members have stopped reading this rank's memory, so that another
    // group may use the channel.
    [[nodiscard]] bool all_members_left() noexcept;
    [[nodiscard]] const NodeLayout& formation() const noexcept { return formation_; }
    // The algorithm for an operation of this size; the dtype matters only for sums of halves.
    [[nodiscard]] std::string algorithm(OpKind kind, std::uint64_t nbytes,
                                        Dtype dtype = Dtype::none) const;
    // The flight recorder of this rank; a group of one records nothing.
    [[nodiscard]] TraceRing& trace() const noexcept { return page_->trace(own_sites_.slot); }
    // Number of collectives that this rank has begun. The page counts bytes, times and messages.
    [[nodiscard]] std::uint64_t operations() const noexcept {
        return seq_.load(std::memory_order_relaxed);
    }
    // "address to address" per connection, for ranks that are connected several times.
    [[nodiscard]] const std::map<int, std::vector<std::string>>& stripes() const noexcept {
        return stripes_;
    }

  private:
    static constexpr Clock::rep kNoTimeout = -1;
    // An operation leaves within one sleep of its waiter (50 ms) once the epoch is aborted.
    static constexpr std::chrono::milliseconds kClosePatience{5000};
    void check_usable() const;
    void check_process() const;
    // Before an operation of this rank begins: a stop may hold the rank (shm/control_page.hpp).
    void pass_hold(const Call& call, const PointToPoint::PeerEndpoint* lane) {
        if (hold_->state.load(std::memory_order_relaxed) != Hold::kNone) [[unlikely]] {
            wait_while_held(call, lane);
        }
    }
    void wait_while_held(const Call& call, const PointToPoint::PeerEndpoint* lane);
    [[nodiscard]] std::optional<std::uint64_t> number_of_next(
        const PointToPoint::PeerEndpoint* lane) const;
    void run_now(const Call& call, Deadline deadline);
    void run_queued(const Call& call, Deadline deadline);
    void enqueue(const std::shared_ptr<AsyncOperation>& work, const Call& call);
    void reserve_slot(const AsyncOperation& work, const Call& call);
    [[nodiscard]] int world_rank(int rank) const {
        return members_[static_cast<std::size_t>(rank)];
    }
    [[nodiscard]] std::string me() const;
    void take_turn(TimedMutex& turn, const Call& call, Deadline deadline);
    [[nodiscard]] Op make_op(const Call& call, std::uint64_t seq) const;
    [[nodiscard]] AlgorithmChoice choice_of(const Op& op) const;
    void perform(const Op& op, const Call& call, AlgorithmChoice choice);
    // Counts a completed operation on the page: by the holder of the turn; messages by any thread.
    void count(const Op& op, const Recording& recording) noexcept;
    void count_message(const Op& op, const Recording& recording, bool is_local) noexcept;
    void run_message(const Call& call);
    // Called in the catch block of `error`: ends the epoch, with the error as its reason. Here and
    // below, `lane` is that of a message, null for a collective.
    [[noreturn]] void fail(const std::exception& error, const Op& op, OperationContext& here,
                           Recording& recording, bool has_begun, PointToPoint::PeerEndpoint* lane);
    [[nodiscard]] AbortReason describe_current(const Op& op, OperationContext& here, bool has_begun,
                                               PointToPoint::PeerEndpoint* lane);
    [[nodiscard]] AbortReason reason_of_loss(const PeerLost& lost, const std::string& what,
                                             PointToPoint::PeerEndpoint* lane);
    [[nodiscard]] AbortReason reason_of_timeout(const Timeout& error, const std::string& what,
                                                OperationContext& here, bool has_begun);
    [[nodiscard]] std::string describe_missing(const Timeout& error, std::uint64_t word) const;
    [[nodiscard]] std::string describe_activity(int slot, std::uint64_t word) const;
    [[nodiscard]] std::vector<int> arrived_ranks(const Timeout& error) const;
    [[nodiscard]] std::vector<int> stopped_ranks(const Timeout& error, OperationContext& here,
                                                 bool has_begun) const;
    [[nodiscard]] bool waits_for_leader(const Timeout& error, const OperationContext& here) const;
    // Fills the gaps of a mismatch text (base/call_site.hpp).
    void collect_call_sites(AbortReason& reason, OperationContext& here,
                            PointToPoint::PeerEndpoint* lane);
    bool read_local_sites(std::string& text, const OperationContext& here,
                          const PointToPoint::PeerEndpoint* lane, bool may_come) const;
    bool read_remote_sites(std::string& text, PointToPoint::PeerEndpoint* lane);
    [[nodiscard]] Link* link_to_rank(int world_rank,
                                     const PointToPoint::PeerEndpoint* lane) const noexcept;
    // Slot on the page; -1 for a rank on another page.
    [[nodiscard]] int slot_of(int world_rank) const noexcept;
    [[nodiscard]] std::optional<Clock::duration> limit_of(const Call& call) const noexcept {
        return call.timeout ? call.timeout : timeout();
    }
    [[nodiscard]] Deadline deadline_of(const Call& call) const noexcept {
        const auto limit = limit_of(call);
        return limit ? Deadline(*limit) : Deadline();
    }
    // Puts the reason on the page; if the page has one already, sets `reason` to that.
    void tell(AbortReason& reason) noexcept;
    [[nodiscard]] std::optional<AbortReason> first_reason() const noexcept;
    void send_abort_notice(const AbortReason& reason) noexcept;
    bool take_all_turns(Clock::time_point give_up_at) noexcept;
    bool finish_close(Clock::time_point give_up_at) noexcept;
    void build_team(GroupOptions& options);
    void build_pairs(GroupOptions& options, int slot);

    int rank_;
    int size_;
    std::uint64_t epoch_;
    int channel_;
    std::uint64_t tag_;
    int pid_;
    std::vector<int> members_;
    std::vector<std::string> host_names_;
    std::map<int, std::vector<std::string>> stripes_;
    std::shared_ptr<Arena> arena_;
    std::shared_ptr<ControlPage> page_;
    Fd wake_;
    Tuning tuning_;
    NodeLayout formation_;
    bool is_flat_ = true;
    std::uint64_t layout_ = 0;

    TimedMutex turn_;
    std::atomic<bool> is_closed_{false};
    std::atomic<bool> has_left_{false};  // closed, and no thread is inside
    TimedMutex closing_;                 // of the thread in finish_close()
    // Turns that finish_close() has yet to take; it keeps the others. With room for all from the
    // beginning.
    std::vector<TimedMutex*> awaited_;
    bool has_tried_turns_ = false;
    AbortReason closed_here_;  // of close(); made at the beginning, as a close may have no memory
    std::atomic<Clock::rep> timeout_{kNoTimeout};
    Activity* activity_ = nullptr;       // on the page
    Hold* hold_ = nullptr;               // on the page
    TrafficCounters* totals_ = nullptr;  // on the page
    CallSiteWriter own_sites_;
    std::vector<int> page_slots_;  // by rank
    std::unique_ptr<Waiter> waiter_;
    std::unique_ptr<Team> team_;
    std::unique_ptr<PointToPoint> pairs_;  // none in a group of one
    std::atomic<std::uint64_t> seq_{0};    // written by the holder of the turn
    std::atomic<std::uint64_t> submitted_{0};
    std::unique_ptr<SharedMemoryTeam>
        left_;  // after close: to check when the other members have left
    AsyncQueue queue_;
};

}  // namespace phalanx
