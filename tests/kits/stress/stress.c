// A stress for whatever virtualizes a guest's memory: `stress [SEED [ROUNDS [PROCESSORS]]]`.
//
// Processes share, copy, protect, move and forget memory at random, and check each word, each fault and each count against
// what they expect. The same seed does the same; the sum does not depend on what runs beneath. One line tells the result;
// the status is 0, or 1 after a mismatch.
#include "stress.h"

_Noreturn void start(int count, char **arguments, char **environment);

static u32 number(const char *text) {
    u32 value = 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') {
            say("usage: stress [SEED [ROUNDS [PROCESSORS]]]");
            leave(2);
        }
        value = value * 10 + (u32)(*text - '0');
    }
    return value;
}

// As much as makes the processes of all processors together as long as one alone.
static u32 alone(u32 rounds, u32 processors) {
    u32 sum = seed;
    for (u32 round = 0; round < rounds; round++) {
        sum = fold(sum, pages_test(1500 / processors));
        sum = fold(sum, areas_test((8 << round % 3) / processors));
        sum = fold(sum, sharing_test(40 / processors));
        exec_test(2 * round);
        exec_test(2 * round + 1);
    }
    return sum;
}

void start(int count, char **arguments, char **environment) {
    shared = map(0, sizeof *shared, READ | WRITE, SHARED | ANONYMOUS, -1, 0);
    catch_faults();
    if (count > 1 && arguments[1][0] == 'e')
        leave(exec_main(count, arguments, environment));
    seed = count > 1 ? number(arguments[1]) : 1;
    u32 rounds = count > 2 ? number(arguments[2]) : 1, processors = count > 3 ? number(arguments[3]) : 1;
    random_state = mix(seed + 1) | 1;
    u32 sum = processors > 1 ? processors_test(processors, rounds, alone) : alone(rounds, 1);
    say("stress: seed %u, %u operations, checksum %x, ok", seed, operations + shared->operations, sum);
    leave(0);
}
