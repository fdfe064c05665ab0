// Threads that work together on one call: parallel regions, barriers, and ranges that are claimed piece by piece.
//
// A region is one function that every member of a team runs. Between its barriers the members share loops: each claims
// pieces of its own part of the range first and then of the others' parts, so that a thread that the machine holds up
// delays the pieces in its hands only. Waiting is a short spin and then sleep: on few cores the one that spins takes
// the place of the one it waits for. Nothing here depends on the instruction set, and no result on the team's size.
#pragma once

#include <stdint.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "processors.h"

namespace octavo {

constexpr int kMaxThreads = 64;
constexpr int kBarrierSpins = 4000;  // looks before a member sleeps: some 50 us, longer than a piece of work
constexpr int kIdleSpins = 2000;     // of a thread between two regions

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

inline int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Returns when `word` is not `seen` any more.
inline void await_change(const std::atomic<uint32_t>& word, uint32_t seen, int num_spins) {
    for (int spin = 0; spin < num_spins; ++spin) {
        if (word.load(std::memory_order_acquire) != seen) return;
        relax();
    }
    while (word.load(std::memory_order_acquire) == seen) word.wait(seen, std::memory_order_acquire);
}

// What the members of a team share. Two sets of counters take turns: while one is in use the other is set back.
struct TeamState {
    struct alignas(64) Counter {
        std::atomic<int64_t> num_claimed{0};
    };
    alignas(64) std::atomic<uint32_t> num_arrived{0};
    alignas(64) std::atomic<uint32_t> generation{0};
    Counter counters[2][kMaxThreads];
};

// One thread's part in a region.
class Member {
public:
    Member(TeamState& team, int id, int size) : team_(team), id_(id), size_(size) {}

    int id() const { return id_; }
    int64_t waited_ns() const { return waited_ns_; }

    // Everybody is here, and sees what everybody wrote.
    void barrier() {
        if (size_ == 1) return;
        const uint32_t generation = team_.generation.load(std::memory_order_relaxed);
        if (team_.num_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size_)) {
            team_.num_arrived.store(0, std::memory_order_relaxed);
            team_.generation.store(generation + 1, std::memory_order_release);
            team_.generation.notify_all();
            return;
        }
        const int64_t started_ns = now_ns();
        await_change(team_.generation, generation, kBarrierSpins);
        waited_ns_ += now_ns() - started_ns;
    }

    // Calls work(first, end) for pieces of at most `grain` of 0 .. count, each once in the team; then a barrier.
    template <class Work>
    void share(int64_t count, int64_t grain, Work&& work) {
        if (size_ == 1) {
            for (int64_t first = 0; first < count; first += grain)
                work(first, first + grain < count ? first + grain : count);
            return;
        }
        TeamState::Counter* counters = team_.counters[turn_];
        team_.counters[turn_ ^ 1][id_].num_claimed.store(0, std::memory_order_relaxed);
        turn_ ^= 1;
        for (int offset = 0; offset < size_; ++offset) {
            const int owner = id_ + offset < size_ ? id_ + offset : id_ + offset - size_;
            claim(counters[owner], count * owner / size_, count * (owner + 1) / size_, grain, work);
        }
        barrier();
    }

private:
    template <class Work>
    static void claim(TeamState::Counter& counter, int64_t begin, int64_t end, int64_t grain, Work& work) {
        while (counter.num_claimed.load(std::memory_order_relaxed) < end - begin) {
            const int64_t first = begin + counter.num_claimed.fetch_add(grain, std::memory_order_relaxed);
            if (first >= end) return;
            work(first, first + grain < end ? first + grain : end);
        }
    }

    TeamState& team_;
    const int id_, size_;
    int turn_ = 0;
    int64_t waited_ns_ = 0;
};

// The threads. One caller at a time; it is member 0.
class Pool {
public:
    explicit Pool(int num_threads)
        : size_(num_threads < 1             ? 1
                : num_threads > kMaxThreads ? kMaxThreads
                                            : num_threads) {
        for (int id = 1; id < size_; ++id) {
            helpers_.push_back(std::make_unique<Helper>());
            Helper& helper = *helpers_.back();
            try {
                helper.thread = std::thread([this, id, &helper] { help(id, helper); });
            } catch (const std::system_error&) {  // the system has no more threads: those that there are compute
                helpers_.pop_back();
                size_ = id;
            }
        }
        is_holding_ = size_ > 1 && size_ == processors_.count();
    }

    ~Pool() {
        is_ending_.store(true, std::memory_order_relaxed);
        for (auto& helper : helpers_) call(*helper);
        for (auto& helper : helpers_) helper->thread.join();
    }

    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return size_; }

    // How many threads run(num_threads) takes.
    int team_of(int num_threads) const { return num_threads < 1 ? 1 : num_threads > size_ ? size_ : num_threads; }

    // Runs region(member) in `num_threads` threads (at most the pool's); returns the ns that one of them waited for the
    // others, the longest of all. A region ends with a barrier, so that no member still reads what the caller then takes
    // away.
    template <class Region>
    int64_t run(int num_threads, Region&& region) {
        using Function = std::remove_reference_t<Region>;
        const int size = team_of(num_threads);
        region_ = const_cast<void*>(static_cast<const void*>(&region));
        enter_ = [](void* function, Member& member) { (*static_cast<Function*>(function))(member); };
        team_size_ = size;
        for (auto& counters : team_.counters)
            for (int id = 0; id < size; ++id) counters[id].num_claimed.store(0, std::memory_order_relaxed);
        for (int id = 1; id < size; ++id) call(*helpers_[id - 1]);
        if (is_holding_ && size > 1) processors_.hold(0);
        Member caller(team_, 0, size);
        region(caller);
        caller.barrier();
        int64_t longest_ns = caller.waited_ns();
        for (int id = 1; id < size; ++id)
            if (helpers_[id - 1]->waited_ns > longest_ns) longest_ns = helpers_[id - 1]->waited_ns;
        if (is_holding_ && size > 1) processors_.let_go();
        return longest_ns;
    }

private:
    struct alignas(64) Helper {
        std::atomic<uint32_t> num_calls{0};
        int64_t waited_ns = 0;  // in the last region, but for its end
        std::thread thread;
    };

    static void call(Helper& helper) {
        helper.num_calls.fetch_add(1, std::memory_order_release);
        helper.num_calls.notify_one();
    }

    void help(int id, Helper& helper) {
        bool is_held = false;
        for (uint32_t seen = 0;; ++seen) {
            await_change(helper.num_calls, seen, kIdleSpins);
            if (is_ending_.load(std::memory_order_relaxed)) return;
            if (is_holding_ && !is_held) processors_.hold(id);
            is_held = true;
            Member member(team_, id, team_size_);
            enter_(region_, member);
            helper.waited_ns = member.waited_ns();
            member.barrier();
        }
    }

    const Processors processors_;
    int size_;
    bool is_holding_ = false;  // a processor for each thread; the caller's only while a region runs
    TeamState team_;
    std::vector<std::unique_ptr<Helper>> helpers_;
    std::atomic<bool> is_ending_{false};
    void* region_ = nullptr;
    void (*enter_)(void*, Member&) = nullptr;
    int team_size_ = 1;
};

}  // namespace octavo
