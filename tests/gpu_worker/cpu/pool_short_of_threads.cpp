// Started with memory for the stacks of a few threads only, asks for more of them: those that there are must do all the
// work. Prints how many they are; ends with 1 at a wrong result.
#include <stdio.h>

#include <vector>

#include "pool.h"

int main() {
    octavo::Pool pool(16);
    std::vector<int> values(1000);
    pool.run(16, [&](octavo::Member& member) {
        member.share(1000, 3, [&](int64_t first, int64_t end) {
            for (int64_t i = first; i < end; ++i) ++values[i];
        });
    });
    for (int value : values)
        if (value != 1) return 1;
    printf("%d\n", pool.size());
    return 0;
}
