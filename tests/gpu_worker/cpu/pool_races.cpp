// Uses the pool of threads as the kernels do, for ThreadSanitizer to watch: regions of changing teams, shared loops that
// write plain memory, and other members that read it behind the barrier. Ends with 1 at a wrong result.
#include <stdio.h>

#include <vector>

#include "pool.h"

namespace {

constexpr int kThreads = 4, kRegions = 400, kLoops = 5;

// Every loop adds 1 to what the loop before left, each element read from where another member may have written it.
bool region_is_right(octavo::Pool& pool, int num_threads, int64_t count, int64_t grain) {
    std::vector<int64_t> values(count), next(count);
    pool.run(num_threads, [&](octavo::Member& member) {
        for (int loop = 0; loop < kLoops; ++loop) {
            std::vector<int64_t>&from = loop % 2 ? next : values, &to = loop % 2 ? values : next;
            member.share(count, grain, [&](int64_t first, int64_t end) {
                for (int64_t i = first; i < end; ++i) to[i] = from[count - 1 - i] + 1;
            });
        }
    });
    const std::vector<int64_t>& last = kLoops % 2 ? next : values;
    for (int64_t value : last)
        if (value != kLoops) return false;
    return true;
}

}  // namespace

int main() {
    octavo::Pool pool(kThreads);
    for (int region = 0; region < kRegions; ++region) {
        if (region_is_right(pool, 1 + region % kThreads, region % 37, 1 + region % 3)) continue;
        printf("wrong in region %d\n", region);
        return 1;
    }
    printf("%d regions\n", kRegions);
    return 0;
}
