// Several processors in one address space: what one changes, the others must see at once. And the ways in which they
// wait for each other: pipes, futexes, signals.
#include "stress.h"

enum { MOST = 16, STACK = 8 * PAGE };

static u32 team;                   // workers, one for each processor
static volatile u32 waiting, gate; // of the barrier
static u8 *stacks;
static long members[MOST];

// Waits until `*word` is `value`. If another has failed by then, the value will never come.
static void wait_until(volatile u32 *word, u32 value) {
    for (u32 spins = 0; *word != value; spins++) {
        __builtin_ia32_pause();
        if (spins % 64 == 63)
            yield();
        if (shared->failed)
            leave(1);
    }
}

static void barrier(void) {
    u32 now = gate;
    if (__sync_add_and_fetch(&waiting, 1) == team) {
        waiting = 0;
        __sync_add_and_fetch(&gate, 1);
    } else {
        wait_until(&gate, now + 1);
    }
}

// Calls `run(number)` in as many processes of this address space as there are processors.
static void with_team(int (*run)(word)) {
    waiting = gate = 0;
    stacks = map(0, team * STACK, READ | WRITE, PRIVATE | ANONYMOUS, -1, 0);
    for (u32 i = 0; i < team; i++) {
        members[i] = clone_vm(stacks + (i + 1) * STACK, run, i);
        CHECK(members[i] > 0, "clone: error %u", (u32)-members[i]);
    }
    for (u32 i = 0; i < team; i++)
        expect_exit(members[i], 0);
    unmap(stacks, team * STACK);
}

// ---- changes of mappings that others use

// Pages of a board show pages of a file, or private pages. Each such page has an id; each worker has a word in it.
enum { BOARD = 16, FILE_IDS = 24, IDS = FILE_IDS + BOARD + 1, HOLE = IDS, CHANGES = 5 };

static u8 *board, *window; // the window shows the whole file, and never changes
static long board_file;
static struct { u32 id, rights; } places[BOARD];
static u32 written[IDS];   // the turn in which all workers last wrote to the page; 0: not since it was all zeroes
static u32 board_turns, board_tag;
static volatile u32 changed;

static u32 tag_of(u32 id) { return mix(board_tag ^ id) | 1; }
static u32 word_of(u32 turn, u32 id, word worker) { return mix(turn * 0x10001 ^ id << 8 ^ (u32)worker); }
static volatile u32 *in_page(u8 *pages, u32 page, u32 at) { return (volatile u32 *)(pages + page * PAGE) + at; }
enum { OWN = 16, NOISE = 8 }; // words between those of two workers; and from there to one that is not checked

static u32 free_id(u32 first, u32 end) {
    for (u32 id = first;; id++) {
        u32 used = 0;
        CHECK(id < end, "no page is free");
        for (u32 page = 0; page < BOARD; page++)
            used |= places[page].id == id;
        if (!used)
            return id;
    }
}

// A child gets a copy of all pages: what the others write from now on must not reach it.
static void copy_board(void) {
    long child = fork();
    if (child == 0) {
        u32 seen[BOARD][MOST], value;
        for (u32 turn = 0; turn < 2; turn++) {
            for (u32 page = 0; page < BOARD; page++) {
                if (places[page].id < FILE_IDS || places[page].id == HOLE || !places[page].rights)
                    continue;
                for (u32 worker = 0; worker < team; worker++) {
                    int can = try_load(in_page(board, page, worker * OWN + NOISE), &value);
                    CHECK(can, "page %u of the child's board cannot be read", page);
                    CHECK(turn == 0 || value == seen[page][worker], "another writes to page %u of the child's board: %x, was %x",
                          page, value, seen[page][worker]);
                    seen[page][worker] = value;
                }
            }
            for (u32 i = 0; i < 20; i++)
                yield();
        }
        leave(0);
    }
    expect_exit(child, 0);
}

static void change(u32 page, u32 kind) {
    u8 *at = board + page * PAGE;
    switch (kind) {
    case 0: // another page of the file
        places[page].id = free_id(0, FILE_IDS);
        places[page].rights = READ | WRITE;
        map(at, PAGE, READ | WRITE, SHARED | FIXED, (int)board_file, places[page].id * PAGE);
        break;
    case 1: // a new page
        places[page].id = free_id(FILE_IDS, IDS);
        places[page].rights = READ | WRITE;
        written[places[page].id] = 0;
        map(at, PAGE, READ | WRITE, PRIVATE | ANONYMOUS | FIXED, -1, 0);
        break;
    case 2:
        places[page].id = HOLE;
        places[page].rights = NONE;
        CHECK(unmap(at, PAGE) == 0, "munmap fails");
        break;
    case 3: case 4: case 5:
        if (places[page].id == HOLE)
            break;
        places[page].rights = kind == 3 ? NONE : kind == 4 ? READ : READ | WRITE;
        CHECK(protect(at, PAGE, (int)places[page].rights) == 0, "mprotect fails");
        break;
    case 6: // zeroes again
        if (places[page].id == HOLE || places[page].id < FILE_IDS)
            break;
        written[places[page].id] = 0;
        CHECK(advise(at, PAGE, DONTNEED) == 0, "madvise fails");
        break;
    case 7: { // away from where it was
        u32 to = (page + 1) % BOARD;
        if (places[page].id == HOLE)
            break;
        CHECK((word)move(at, PAGE, board + to * PAGE) == (word)(board + to * PAGE), "mremap fails");
        places[to] = places[page];
        places[page].id = HOLE;
        places[page].rights = NONE;
        break;
    }
    default: copy_board();
    }
}

// Uses all pages while they change; nothing can be said about what it finds.
static void use_board(word worker) {
    u32 value;
    for (u32 page = 0; page < BOARD; page++) {
        try_load(in_page(board, page, 0), &value);
        try_store(in_page(board, page, (u32)worker * OWN + NOISE), (u32)changed + page);
    }
}

// All pages are now what they were changed to.
static void check_board(word worker, u32 turn) {
    for (u32 page = 0; page < BOARD; page++) {
        u32 id = places[page].id, rights = places[page].rights, at = (u32)worker * OWN + 1, value = 0;
        int can = try_load(in_page(board, page, 0), &value);
        CHECK(can == (rights != NONE), "turn %u, page %u (%u) of the board, rights %u: a load %s, finding %x", turn, page, id,
              rights, can ? "succeeds" : "fails", value);
        if (can) {
            u32 expected = id < FILE_IDS ? tag_of(id) : 0;
            CHECK(value == expected, "turn %u, page %u (%u) of the board: %x, expected %x", turn, page, id, value, expected);
            try_load(in_page(board, page, at), &value);
            expected = written[id] ? word_of(written[id], id, worker) : 0;
            CHECK(value == expected, "turn %u, page %u (%u) of the board, own word: %x, expected %x", turn, page, id, value,
                  expected);
        }
        if (id == HOLE)
            continue;
        can = try_store(in_page(board, page, at), word_of(turn, id, worker));
        CHECK(can == !!(rights & WRITE), "turn %u, page %u (%u) of the board, rights %u: a store %s", turn, page, id, rights,
              can ? "succeeds" : "fails");
    }
}

// No worker has written to a page of the file that is not its own.
static void check_file(word worker, u32 turn) {
    for (u32 id = 0; id < FILE_IDS; id++) {
        u32 value = *in_page(window, id, (u32)worker * OWN + 1);
        u32 expected = written[id] ? word_of(written[id], id, worker) : 0;
        CHECK(value == expected, "turn %u, page %u of the board's file: %x, expected %x", turn, id, value, expected);
    }
}

static int board_worker(word worker) {
    u32 state = board_tag;
    for (u32 turn = 1; turn <= board_turns; turn++) {
        use_board(worker); // so that the processor remembers the pages
        barrier();
        if (turn % team == worker) {
            for (u32 i = 0; i < CHANGES; i++) {
                state = mix(state + turn + i);
                change(state % BOARD, state / BOARD % 9);
            }
            __sync_synchronize();
            changed = turn;
        } else {
            while (changed != turn && !shared->failed)
                use_board(worker);
        }
        check_board(worker, turn);
        barrier();
        if (turn % team == worker)
            for (u32 page = 0; page < BOARD; page++)
                if (places[page].rights & WRITE)
                    written[places[page].id] = turn;
        barrier();
        check_file(worker, turn);
    }
    return 0;
}

static void changes_test(u32 turns) {
    step = "changes of a board";
    board_turns = turns;
    board_tag = draw();
    changed = 0;
    memset(written, 0, sizeof written);
    board_file = create_file(FILE_IDS * PAGE);
    window = map(0, FILE_IDS * PAGE, READ | WRITE, SHARED, (int)board_file, 0);
    board = map(0, BOARD * PAGE, NONE, PRIVATE | ANONYMOUS, -1, 0);
    for (u32 id = 0; id < FILE_IDS; id++)
        *in_page(window, id, 0) = tag_of(id);
    for (u32 page = 0; page < BOARD; page++)
        places[page].id = HOLE;
    for (u32 page = 0; page < BOARD; page++)
        change(page, page & 1);
    with_team(board_worker);
    unmap(board, BOARD * PAGE);
    unmap(window, FILE_IDS * PAGE);
    close_file(board_file);
    operations += turns * team;
}

// ---- page faults of all at once

enum { FIELD = 96 };

static u8 *field;
static u32 field_turns;

// All touch the same new pages for the first time, each in another order, and have some of their own meanwhile.
static int field_worker(word worker) {
    for (u32 turn = 0; turn < field_turns; turn++) {
        u8 *own = map(0, 8 * PAGE, READ | WRITE, PRIVATE | ANONYMOUS, -1, 0);
        for (u32 i = 0; i < FIELD; i++) {
            u32 page = (i * (2 * (u32)worker + 5) + turn) % FIELD; // 96 has no factor but 2 and 3
            if ((2 * worker + 5) % 3 == 0)
                page = (FIELD - i + turn) % FIELD;
            __sync_fetch_and_add(in_page(field, page, page), page + 1);
            __sync_fetch_and_add(in_page(field, page, 1000), 1);
            *in_page(own, i % 8, i) = turn ^ i;
        }
        barrier();
        for (u32 page = 0; page < FIELD; page++) {
            u32 sum = *in_page(field, page, page), count = *in_page(field, page, 1000);
            CHECK(sum == team * (page + 1) && count == team, "turn %u, page %u of the field: %u and %u, expected %u and %u", turn,
                  page, sum, count, team * (page + 1), team);
            CHECK(*in_page(own, page % 8, page) == (turn ^ page), "turn %u: a word of an own page is lost", turn);
        }
        CHECK(unmap(own, 8 * PAGE) == 0, "munmap fails");
        barrier();
        if (turn % team == worker)
            CHECK(advise(field, FIELD * PAGE, DONTNEED) == 0, "madvise fails");
        barrier();
    }
    return 0;
}

static void field_test(u32 turns) {
    step = "page faults of all";
    field_turns = turns;
    field = map(0, FIELD * PAGE, READ | WRITE, PRIVATE | ANONYMOUS, -1, 0);
    with_team(field_worker);
    unmap(field, FIELD * PAGE);
    operations += turns * team;
}

// ---- messages

static u32 laps;
static int pipes[MOST][2];
static volatile u32 tokens[MOST], turns_of[MOST], signals[MOST];

// Each starts a token on its way round; a token comes back changed by all, `laps` times.
static u32 pass_tokens(u32 worker) {
    u32 token = mix(seed + worker);
    for (u32 step = 0; step < laps * team; step++) {
        write_all(pipes[(worker + 1) % team][1], &token, sizeof token);
        read_all(pipes[worker][0], &token, sizeof token);
        token = mix(token + worker);
    }
    return token;
}

// Two in turn; the other one sleeps.
static void take_turns(u32 worker) {
    volatile u32 *turn = &turns_of[worker & ~1u];
    if ((worker | 1) >= team)
        return;
    for (u32 i = 0; i < laps; i++) {
        for (u32 now; ((now = *turn) ^ worker) & 1;)
            futex_wait(turn, now);
        __sync_add_and_fetch(turn, 1);
        futex_wake(turn);
    }
}

static void on_signal(int signal, const u8 *info, u8 *context) {
    (void)signal, (void)info;
    // Each handler runs on the stack of its process.
    signals[(word)(context - stacks) / STACK]++;
}

static void send_signals(u32 worker) {
    u32 next = (worker + 1) % team;
    for (u32 i = 1; i <= laps; i++) {
        send_signal(members[next], SIGUSR1);
        wait_until(&signals[next], i); // two at once would be one
    }
}

static int message_worker(word worker) {
    catch_signal(SIGUSR1, on_signal);
    tokens[worker] = pass_tokens((u32)worker);
    barrier();
    take_turns((u32)worker);
    barrier();
    send_signals((u32)worker);
    barrier();
    CHECK(signals[worker] == laps, "worker %u got %u signals, expected %u", (u32)worker, signals[worker], laps);
    return 0;
}

static u32 messages_test(u32 rounds) {
    step = "messages";
    laps = rounds;
    memset((void *)turns_of, 0, sizeof turns_of);
    memset((void *)signals, 0, sizeof signals);
    for (u32 i = 0; i < team; i++)
        make_pipe(pipes[i]);
    with_team(message_worker);
    u32 sum = 0;
    for (u32 i = 0; i < team; i++) {
        close_file(pipes[i][0]);
        close_file(pipes[i][1]);
        u32 pairs = (i | 1) < team && !(i & 1) ? 2 * laps : 0;
        CHECK(turns_of[i] == pairs, "pair %u took %u turns, expected %u", i, turns_of[i], pairs);
        sum = fold(sum, tokens[i]);
    }
    operations += rounds * team;
    return sum;
}

// ---- all of the other tests, in a process for each processor

static u32 everywhere(u32 rounds, u32 (*run)(u32 rounds, u32 processors)) {
    struct result { volatile u32 sum, operations; } *results = map(0, PAGE, READ | WRITE, SHARED | ANONYMOUS, -1, 0);
    long children[MOST];
    for (u32 i = 0; i < team; i++) {
        children[i] = fork();
        if (children[i])
            continue;
        // Counts of its own.
        shared = map(0, sizeof *shared, READ | WRITE, SHARED | ANONYMOUS, -1, 0);
        seed += i * 1000003;
        random_state = mix(seed + 1) | 1;
        results[i].sum = run(rounds, team);
        results[i].operations = operations + shared->operations;
        leave(0);
    }
    u32 sum = 0;
    for (u32 i = 0; i < team; i++) {
        expect_exit(children[i], 0);
        sum = fold(sum, results[i].sum);
        operations += results[i].operations;
    }
    unmap(results, PAGE);
    return sum;
}

u32 processors_test(u32 processors, u32 rounds, u32 (*alone)(u32 rounds, u32 processors)) {
    CHECK(processors <= MOST, "%u processors at most", MOST);
    team = processors;
    u32 sum = everywhere(rounds, alone);
    for (u32 round = 0; round < rounds; round++) {
        changes_test(32);
        field_test(6);
        sum = fold(sum, messages_test(30));
    }
    return fold(sum, random_state);
}
