// Large areas, one word of each page: copies on write by the thousand, huge pages and their splits, whole page tables
// that move, and deep stacks.
#include "stress.h"

enum { MIB = 1 << 20, TABLE = 4 << 20 };

static u32 value_of(u32 tag, word page) { return mix(tag ^ (u32)page * 0x9e3779b1u); }

static volatile u32 *word_of(u8 *area, word page) { return (volatile u32 *)(area + page * PAGE) + page % PAGE_WORDS; }

// Writes to every page whose number divided by `stride` has the rest `rest`.
static void write_pages(u8 *area, word count, u32 stride, u32 rest, u32 tag) {
    for (word page = rest; page < count; page += stride)
        *word_of(area, page) = value_of(tag, page);
}

static void check_page(u8 *area, word page, u32 expected) {
    u32 found = *word_of(area, page);
    if (found == expected)
        return;
    yield();
    fail("area at %p, page %u: %x, expected %x; read again %x", (word)area, (u32)page, found, expected,
         *word_of(area, page));
}

// Checks what two calls of `write_pages` have left, the second with this stride; a rest of `none` means that it was not.
static void check_pages(u8 *area, word count, u32 first, u32 stride, u32 rest, u32 second) {
    u32 phase = 0;
    for (word page = 0; page < count; page++) {
        check_page(area, page, value_of(phase == rest ? second : first, page));
        phase = phase + 1 == stride ? 0 : phase + 1;
    }
    operations += (u32)count;
}
enum { ONLY_FIRST = 99 };

// An area at a multiple of its page tables' spans.
static u8 *map_aligned(word size) {
    u8 *start = map(0, size + TABLE, NONE, PRIVATE | ANONYMOUS, -1, 0);
    unmap(start, size + TABLE);
    u8 *area = (u8 *)(((word)start + TABLE - 1) & ~(word)(TABLE - 1));
    return map(area, size, READ | WRITE, PRIVATE | ANONYMOUS | FIXED, -1, 0);
}

// Parent and child write to other pages of the same memory; each sees its own alone.
static void copy_on_write(word size) {
    step = "copy on write";
    word count = size / PAGE;
    u8 *area = map(0, size, READ | WRITE, PRIVATE | ANONYMOUS, -1, 0);
    u32 tag = draw(), childs = draw(), parents = draw();
    write_pages(area, count, 1, 0, tag);
    long child = fork();
    if (child == 0) {
        depth++;
        write_pages(area, count, 3, 1, childs);
        check_pages(area, count, tag, 3, 1, childs);
        CHECK(advise(area, size / 2, DONTNEED) == 0, "madvise fails");
        for (word page = 0; page < count / 2; page += 7)
            check_page(area, page, 0);
        write_pages(area, count / 2, 1, 0, parents);
        check_pages(area, count / 2, parents, 1, ONLY_FIRST, 0);
        leave(0);
    }
    write_pages(area, count, 5, 2, parents);
    check_pages(area, count, tag, 5, 2, parents);
    expect_exit(child, 0);
    check_pages(area, count, tag, 5, 2, parents);
    CHECK(unmap(area, size) == 0, "munmap fails");
}

// A page inside huge ones loses its rights, another is taken away, and a child writes to the rest.
static void huge_pages(void) {
    step = "huge pages";
    word size = 2 * TABLE, count = size / PAGE;
    u8 *area = map_aligned(size);
    advise(area, size, HUGEPAGE); // a kernel without huge pages refuses
    u32 tag = draw(), childs = draw(), value;
    write_pages(area, count, 1, 0, tag);
    check_pages(area, count, tag, 1, ONLY_FIRST, 0);
    word fixed = 1 + below((u32)count / 2 - 2), hole = count / 2 + below((u32)count / 2);
    CHECK(protect(area + fixed * PAGE, PAGE, READ) == 0, "mprotect fails");
    CHECK(unmap(area + hole * PAGE, PAGE) == 0, "munmap fails");
    CHECK(!try_store(word_of(area, fixed), 0), "a store to a read-only page does not fault");
    CHECK(!try_load(word_of(area, hole), &value), "a load from a hole does not fault");
    map(area + hole * PAGE, PAGE, READ | WRITE, PRIVATE | ANONYMOUS | FIXED, -1, 0);
    check_page(area, hole, 0);
    *word_of(area, hole) = value_of(tag, hole);
    long child = fork();
    if (child == 0) {
        depth++;
        CHECK(protect(area, size, READ | WRITE) == 0, "mprotect fails");
        write_pages(area, count, 2, 0, childs);
        check_pages(area, count, tag, 2, 0, childs);
        leave(0);
    }
    expect_exit(child, 0);
    check_pages(area, count, tag, 1, ONLY_FIRST, 0);
    CHECK(unmap(area, size) == 0, "munmap fails");
}

// mremap of an aligned area moves page tables as they are.
static void moved_tables(void) {
    step = "moved page tables";
    word size = TABLE, count = size / PAGE;
    u8 *area = map_aligned(2 * size), *other = area + size;
    unmap(other, size);
    u32 tag = draw(), value;
    write_pages(area, count, 1, 0, tag);
    for (int turn = 0; turn < 4; turn++) {
        CHECK((word)move(area, size, other) == (word)other, "mremap fails");
        check_pages(other, count, tag, 1, ONLY_FIRST, 0);
        for (word page = 0; page < count; page += 97)
            CHECK(!try_load(word_of(area, page), &value), "page %u is still where it was, holding %x", (u32)page, value);
        u8 *old = area;
        area = other;
        other = old;
        write_pages(area, count, 3, 0, tag);
    }
    CHECK(unmap(area, size) == 0, "munmap fails");
}

static u32 descend(u32 levels, u32 tag) {
    volatile u32 frame[PAGE_WORDS];
    frame[levels % PAGE_WORDS] = tag ^ levels;
    frame[PAGE_WORDS - 1] = levels;
    u32 below_here = levels ? descend(levels - 1, tag) : 0;
    CHECK(frame[PAGE_WORDS - 1] == levels || levels % PAGE_WORDS == PAGE_WORDS - 1, "stack, level %u: %x", levels,
          frame[PAGE_WORDS - 1]);
    return below_here + (frame[levels % PAGE_WORDS] ^ tag);
}

static void deep_stack(void) {
    step = "deep stack";
    u32 levels = 100 + below(100), tag = draw();
    long child = fork();
    CHECK(descend(levels, tag) == levels * (levels + 1) / 2, "the stack's words have changed");
    if (child == 0)
        leave(0);
    expect_exit(child, 0);
    operations += levels;
}

u32 areas_test(u32 mebibytes) {
    copy_on_write((word)mebibytes * MIB);
    huge_pages();
    moved_tables();
    deep_stack();
    return random_state;
}
