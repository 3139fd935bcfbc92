// One epoch of one group, as one of its ranks sees it: operations, their failure, and its end.
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

#include "base/fd.hpp"
#include "base/turn.hpp"
#include "collectives/team.hpp"
#include "group/here.hpp"
#include "group/pairs.hpp"
#include "group/recorder.hpp"
#include "group/selector.hpp"
#include "group/work.hpp"
#include "transport/abort_page.hpp"
#include "transport/arena.hpp"
#include "transport/link.hpp"
#include "transport/waiter.hpp"

namespace phalanx {

struct GroupOptions {
    int rank = 0;
    int size = 1;
    std::uint64_t epoch = 1;
    int channel = 0;
    std::uint64_t tag = 0;     // a split's own number, the same on all its ranks; 0: the world
    std::vector<int> members;  // the world's number of each rank; empty: the same
    std::vector<int> hosts;
    std::vector<int> slots;               // empty: no arena
    std::vector<std::string> host_names;  // by rank of the world; empty: unnamed
    std::shared_ptr<Arena> arena;
    std::map<int, std::unique_ptr<Link>> links;
    std::map<int, PairWire> pair_links;  // to ranks with which no arena is shared
    std::shared_ptr<AbortPage> page;
    int wake_fd = -1;  // duplicated
    // Ranks of the group on this machine, with or without an arena; 0: those that share it.
    int ranks_here = 0;
    // Slots on the page by rank, also where no arena is shared; -1: on another page. Empty: slots.
    std::vector<int> page_slots;
    SiteSource site;
    std::shared_ptr<Recorder> recorder;  // this process's; none: one of its own
    Tuning tuning;
};

// Elements of the output of an operation with `count` elements of input.
constexpr std::uint64_t out_count(OpKind kind, std::uint64_t count, int size) noexcept {
    const auto ranks = static_cast<std::uint64_t>(size);
    const bool is_gather = kind == OpKind::kAllGather || kind == OpKind::kSplit;
    return is_gather ? count * ranks : kind == OpKind::kSumScatter ? count / ranks : count;
}
// Whether x is one block for each rank.
constexpr bool has_blocks(OpKind kind) noexcept {
    return kind == OpKind::kSumScatter || kind == OpKind::kAllToAll;
}

// "rank 3", "ranks 0-2, 5".
std::string list_ranks(std::vector<int> ranks);

struct Counters {
    std::uint64_t operations = 0;
    std::uint64_t bytes = 0;  // of arrays, as given
    std::uint64_t link_bytes_sent = 0;
    std::uint64_t messages_sent = 0;
    std::uint64_t message_bytes_sent = 0;
    std::uint64_t messages_received = 0;
    std::uint64_t message_bytes_received = 0;
};

// Concurrency. run() may be called by any thread; the Turn lets one in at a time, and everything
// below team_ belongs to it. send() and recv() likewise, with a turn per peer and direction and
// pairs_ below it: a message never waits for a collective, nor the other way round. abort(),
// failure(), close(), is_closed() may be called at any time by any thread: they touch only the
// page, the wake and atomics, and take the turn before they touch links; close() takes all
// turns. Counters are atomics, relaxed: statistics.
//
// Where the program has called is asked of `site` (options) only once an operation fails or waits
// long, on the thread that has called it; of what is queued, by who queues it (Call::site).
//
// submit() hands an operation to the group's thread (work.hpp); while any is queued, run() queues
// its own behind them and waits, so that a rank's operations keep the order of its calls.
//
// Failure. Whatever goes wrong in an operation aborts the epoch: first on the page (the first
// reason wins and frees everybody on this host), then as last words on the links. From then on
// every operation of the group throws that reason at once.
class Group {
  public:
    explicit Group(GroupOptions options);
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    ~Group();

    // Throws a UsageError if this rank can see by itself that the call is wrong.
    void check_call(const Call& call) const;
    // Throws UsageError, Closed, Aborted, or Interrupted.
    void run(const Call& call);
    // x to rank `root`: at once where it is small (Pairs::kBufferedBytes) or the receiver is there.
    void send(const Call& call) { pass(call, false); }
    // From rank `root` to out.
    void recv(const Call& call) { pass(call, true); }

    // The same, later: `owner` keeps x and out alive. The timeout counts from here.
    std::shared_ptr<Work> submit(const Call& call, std::shared_ptr<const void> owner);
    // Throws what the work has thrown. A `timeout` that passes is an Aborted of kTimeout, and ends
    // this wait only: the operation goes on. An interrupt aborts the epoch, as in run().
    void wait(const Work& work, std::optional<Clock::duration> timeout,
              const std::function<bool()>& interrupt);
    // Drops what kept the arrays of finished works alive (on a thread that may do so).
    [[nodiscard]] bool has_submitted() const noexcept { return queue_.was_used(); }
    [[nodiscard]] bool has_finished() const noexcept { return queue_.has_finished(); }
    void drop_finished();
    [[nodiscard]] bool is_idle() const noexcept { return queue_.is_idle(); }

    // Of calls that have none; none at first. At any time, by any thread.
    [[nodiscard]] std::optional<Clock::duration> timeout() const noexcept;
    void set_timeout(std::optional<Clock::duration> timeout) noexcept;

    bool abort(const Reason& reason) noexcept;
    [[nodiscard]] std::optional<Reason> failure() const;
    // Waits until nobody is inside any more, if the epoch was aborted: from then on this group
    // reads and writes nothing of the arena, and the group of a new epoch may use the same channel.
    // False if somebody still is. What a close() that gave up has left to do is done here.
    [[nodiscard]] bool settle(std::chrono::milliseconds patience) noexcept;
    // Returns after `patience` in any case: who is inside by then may be stuck for good.
    void close(std::chrono::milliseconds patience = kClosePatience) noexcept;
    [[nodiscard]] bool is_closed() const noexcept { return is_closed_.load(); }

    [[nodiscard]] int rank() const noexcept { return rank_; }
    [[nodiscard]] int size() const noexcept { return size_; }
    [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
    [[nodiscard]] int channel() const noexcept { return channel_; }
    [[nodiscard]] const std::vector<int>& members() const noexcept { return members_; }
    // The rank that a reason accuses, as this one sees it.
    [[nodiscard]] int accused_by(const Reason& reason) const {
        return reason.accused(world_rank(rank_));
    }
    // Of a rank of the world; "" where unknown.
    [[nodiscard]] std::string host_of(int world_rank) const;
    // After close(): whether no member looks at this rank's memory any more, so that another group
    // may have the channel.
    [[nodiscard]] bool is_left_by_all() noexcept;
    [[nodiscard]] const Formation& formation() const noexcept { return formation_; }
    [[nodiscard]] const Tuning& tuning() const noexcept { return tuning_; }
    // How an operation of so many bytes is done; the dtype matters for sums of halves only.
    [[nodiscard]] std::string algorithm(OpKind kind, std::uint64_t nbytes,
                                        Dtype dtype = Dtype::none) const;
    // Of a group of more than one.
    [[nodiscard]] const Recorder& recorder() const noexcept { return *recorder_; }
    [[nodiscard]] Counters counters() const noexcept;
    // "address to address" of each connection, by rank of those that are reached over several.
    [[nodiscard]] const std::map<int, std::vector<std::string>>& stripes() const noexcept {
        return stripes_;
    }

  private:
    static constexpr Clock::rep kNoTimeout = -1;
    // An operation leaves within one sleep of its waiter (50 ms) once the epoch is aborted.
    static constexpr std::chrono::milliseconds kClosePatience{5000};
    void check_usable() const;
    void check_process() const;
    void run_now(const Call& call, Deadline deadline);
    void run_queued(const Call& call, Deadline deadline);
    void enqueue(const std::shared_ptr<Work>& work, const Call& call);
    void take_room(const Work& work, const Call& call);
    [[nodiscard]] int world_rank(int rank) const {
        return members_[static_cast<std::size_t>(rank)];
    }
    [[nodiscard]] std::string me() const;
    void take_turn(Turn& turn, const Call& call, Deadline deadline);
    [[nodiscard]] Op make_op(const Call& call, std::uint64_t seq) const;
    [[nodiscard]] Choice choice_of(const Op& op) const;
    [[nodiscard]] Algorithm algorithm_of(const Op& op, Choice choice) const noexcept;
    void perform(const Op& op, const Call& call, Choice choice);
    // What was completed, on the page: by the holder of the turn; of a message by any thread.
    void count(const Op& op, const Recording& recording) noexcept;
    void count_message(const Op& op, const Recording& recording, bool is_local) noexcept;
    void pass(const Call& call, bool is_recv);
    void check_peer(const Call& call, bool is_recv) const;
    // `hear` asks the links of this operation for last words.
    using Hear = FunctionRef<std::optional<Reason>()>;
    [[nodiscard]] Reason reason_of_current(const std::string& what, Here& here, bool has_begun,
                                           Hear hear);
    [[nodiscard]] Reason reason_of_loss(const PeerLost& lost, const std::string& what, Hear hear);
    [[nodiscard]] Reason reason_of_timeout(const Timeout& error, const std::string& what,
                                           Here& here, bool has_begun);
    [[nodiscard]] std::string describe_missing(const Timeout& error, std::uint64_t word) const;
    [[nodiscard]] std::string doing_of(int slot, std::uint64_t word) const;
    [[nodiscard]] std::vector<int> come_of(const Timeout& error) const;
    [[nodiscard]] std::vector<int> silent_ranks(const Timeout& error, Here& here,
                                                bool has_begun) const;
    [[nodiscard]] bool waits_for_leader(const Timeout& error, const Here& here) const;
    // Fills the gaps of a mismatch (base/site_text.hpp); `lane` of a message, else null.
    void learn_sites(Reason& reason, Here& here, Pairs::Lane* lane);
    bool find_sites_here(std::string& text, const Here& here, const Pairs::Lane* lane,
                         bool may_come) const;
    bool find_sites_afar(std::string& text, Pairs::Lane* lane);
    [[nodiscard]] Link* voice_of(int world_rank, const Pairs::Lane* lane) const noexcept;
    // On the page; -1 of a rank that is elsewhere.
    [[nodiscard]] int slot_of(int world_rank) const noexcept;
    [[nodiscard]] std::optional<Clock::duration> limit_of(const Call& call) const noexcept {
        return call.timeout ? call.timeout : timeout();
    }
    [[nodiscard]] Deadline deadline_of(const Call& call) const noexcept {
        const auto limit = limit_of(call);
        return limit ? Deadline(*limit) : Deadline();
    }
    // Puts the reason on the page, unless one is there: then that is the reason.
    void tell(Reason& reason) noexcept;
    void say_last_words(const Reason& reason) noexcept;
    bool take_all_turns(const Reason& reason, Clock::time_point give_up_at) noexcept;
    bool leave(Clock::time_point give_up_at) noexcept;
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
    std::shared_ptr<AbortPage> page_;
    Fd wake_;
    Tuning tuning_;
    Formation formation_;
    bool is_flat_ = true;
    std::uint64_t layout_ = 0;
    std::uint64_t inline_limit_ = 0;

    Turn turn_;
    std::atomic<bool> is_closed_{false};
    std::atomic<bool> has_left_{false};          // closed, and nobody is inside
    Turn leaving_;                               // of whoever is at work on that
    std::optional<std::vector<Turn*>> awaited_;  // which it has yet to take; others it keeps
    std::atomic<Clock::rep> timeout_{kNoTimeout};
    std::shared_ptr<Recorder> recorder_;
    Activity* activity_ = nullptr;  // on the page
    Totals* totals_ = nullptr;      // on the page
    OwnSites own_sites_;
    std::vector<int> page_slots_;  // by rank
    std::unique_ptr<Waiter> waiter_;
    std::unique_ptr<Team> team_;
    std::unique_ptr<Pairs> pairs_;  // none in a group of one
    std::uint64_t seq_ = 0;
    std::atomic<std::uint64_t> operations_{0};
    std::atomic<std::uint64_t> bytes_{0};
    std::atomic<std::uint64_t> link_bytes_{0};
    std::atomic<std::uint64_t> sent_{0};
    std::atomic<std::uint64_t> sent_bytes_{0};
    std::atomic<std::uint64_t> received_{0};
    std::atomic<std::uint64_t> received_bytes_{0};
    std::unique_ptr<HostTeam> left_;  // after close: to see when the others have gone as well
    WorkQueue queue_;
};

}  // namespace phalanx
