// Which processors threads run on: one each, where the team fills all that there are.
//
// Threads that wait for each other hundreds of times in a step must not meet on one processor. In a server on two
// processors, holding them made two threads 1.2 to 1.7 times as fast as the system's own choice (docs/cpu-worker.md).
// A team that leaves processors over is not held fast, so that several workers do not choose the same ones.
#pragma once

#ifdef __linux__
#include <sched.h>
#endif

namespace octavo {

#ifdef __linux__

// The processors that the thread may use.
class Processors {
public:
    Processors() { is_known_ = sched_getaffinity(0, sizeof(all_), &all_) == 0; }

    int count() const { return is_known_ ? CPU_COUNT(&all_) : 0; }

    // Holds the calling thread on the processor number `index` of them.
    void hold(int index) const {
        for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
            if (!CPU_ISSET(processor, &all_) || index-- > 0) continue;
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(processor, &one);
            sched_setaffinity(0, sizeof(one), &one);
            return;
        }
    }

    void let_go() const { sched_setaffinity(0, sizeof(all_), &all_); }

private:
    cpu_set_t all_;
    bool is_known_;
};

#else

class Processors {
public:
    int count() const { return 0; }
    void hold(int) const {}
    void let_go() const {}
};

#endif

}  // namespace octavo
