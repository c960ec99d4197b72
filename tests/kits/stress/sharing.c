// Processes in one address space, and memory that is a file.
#include "stress.h"

enum { RUNNERS = 3, SLICE = 12, STACK = 4 * PAGE };

static u8 *arena;
static volatile u32 slice_repairs[RUNNERS * SLICE];
static u32 slice_expected[RUNNERS * SLICE];
static u32 turns;
static volatile u32 lock, turns_taken;

// Works on its own slice only, with random numbers of its own: everything else is shared.
static int runner(word number) {
    u32 state = mix(seed ^ ((u32)number + 1) * 0x10001);
    for (u32 turn = 0; turn < turns; turn++) {
        state = mix(state + turn + 1);
        u32 page = (u32)number * SLICE + state % SLICE, value = state;
        volatile u32 *words = (volatile u32 *)(arena + page * PAGE);
        for (u32 at = 0; at < PAGE_WORDS; at += 16)
            words[at] = value + at;
        if (protect((const void *)words, PAGE, state & 0x100 ? READ : NONE) != 0)
            return 2;
        if (state & 0x200)
            yield();
        words[1] = value;
        slice_expected[page]++;
        u8 *own = map(0, 3 * PAGE, READ | WRITE, PRIVATE | ANONYMOUS, -1, 0);
        own[PAGE] = (u8)value;
        while (__sync_lock_test_and_set(&lock, 1))
            yield();
        turns_taken++;
        __sync_lock_release(&lock);
        for (u32 at = 0; at < PAGE_WORDS; at += 16)
            CHECK(words[at] == value + at, "slice %u, page %u, word %u: %x, expected %x", (u32)number, page, at,
                  words[at], value + at);
        CHECK(words[1] == value && own[PAGE] == (u8)value, "slice %u, page %u: a word is lost", (u32)number, page);
        unmap(own, 3 * PAGE);
    }
    return 0;
}

static void one_address_space(u32 rounds) {
    step = "one address space";
    word size = RUNNERS * SLICE * PAGE;
    arena = map(0, size, READ | WRITE, PRIVATE | ANONYMOUS, -1, 0);
    u8 *stacks = map(0, RUNNERS * STACK, READ | WRITE, PRIVATE | ANONYMOUS, -1, 0);
    repairs = slice_repairs;
    repairs_begin = (word)arena;
    repairs_end = repairs_begin + size;
    memset((void *)slice_repairs, 0, sizeof slice_repairs);
    memset(slice_expected, 0, sizeof slice_expected);
    turns = rounds;
    turns_taken = 0;
    long runners[RUNNERS];
    for (u32 i = 0; i < RUNNERS; i++) {
        runners[i] = clone_vm(stacks + (i + 1) * STACK, runner, i);
        CHECK(runners[i] > 0, "clone: error %u", (u32)-runners[i]);
    }
    for (u32 i = 0; i < RUNNERS; i++)
        expect_exit(runners[i], 0);
    repairs_begin = repairs_end = 0;
    CHECK(turns_taken == RUNNERS * rounds, "%u turns of %u", turns_taken, RUNNERS * rounds);
    for (u32 i = 0; i < RUNNERS * SLICE; i++)
        CHECK(slice_repairs[i] == slice_expected[i], "page %u: %u faults, expected %u", i, slice_repairs[i],
              slice_expected[i]);
    unmap(arena, size);
    unmap(stacks, RUNNERS * STACK);
    operations += RUNNERS * rounds;
}

static u32 file_word(u32 tag, u32 page) { return mix(tag + page); }

// Children write to a file's memory; read, shared and private mappings show the same.
static void shared_file(void) {
    enum { FILE_PAGES = 48 };
    step = "shared file";
    word size = FILE_PAGES * PAGE;
    long file = create_file(size);
    u8 *shared_view = map(0, size, READ | WRITE, SHARED, (int)file, 0);
    u8 *private_view = map(0, size, READ | WRITE, PRIVATE, (int)file, 0);
    u32 tag = draw(), own = draw();
    // What is written to a private mapping is a copy.
    for (u32 page = 0; page < FILE_PAGES; page += 4)
        ((volatile u32 *)(private_view + page * PAGE))[1] = own + page;
    long children[RUNNERS];
    for (u32 i = 0; i < RUNNERS; i++) {
        children[i] = fork();
        if (children[i])
            continue;
        depth++;
        u8 *view = i == 0 ? map(0, size, READ | WRITE, SHARED, (int)file, 0) : shared_view;
        for (u32 page = i; page < FILE_PAGES; page += RUNNERS)
            ((volatile u32 *)(view + page * PAGE))[1] = file_word(tag, page);
        leave(0);
    }
    for (u32 i = 0; i < RUNNERS; i++)
        expect_exit(children[i], 0);
    for (u32 page = 0; page < FILE_PAGES; page++) {
        u32 expected = file_word(tag, page), read = 0;
        CHECK(read_at(file, &read, 4, page * PAGE + 4) == 4 && read == expected, "page %u of the file: %x, expected %x",
              page, read, expected);
        u32 seen = ((volatile u32 *)(shared_view + page * PAGE))[1];
        CHECK(seen == expected, "page %u of the shared mapping: %x, expected %x", page, seen, expected);
        seen = ((volatile u32 *)(private_view + page * PAGE))[1];
        expected = page % 4 ? expected : own + page;
        CHECK(seen == expected, "page %u of the private mapping: %x, expected %x", page, seen, expected);
    }
    unmap(shared_view, size);
    unmap(private_view, size);
    close_file(file);
    operations += FILE_PAGES;
}

u32 sharing_test(u32 rounds) {
    one_address_space(rounds);
    shared_file();
    return random_state;
}
