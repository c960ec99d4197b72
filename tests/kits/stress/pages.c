// A model of every page: random operations on a few regions, each checked against what the model expects, in a tree of
// processes that inherit memory and model.
#include "stress.h"

enum { REGIONS = 6, REGION_PAGES = 40, PAGES = REGIONS * REGION_PAGES };
enum { FILE_PAGES = 6, CHILDREN = 2, NO_PATCH = 0xffff };
// Regions lie across the boundaries of page tables of 2 and 4 MiB.
enum { STRIDE = 8 << 20, FIRST = (4 << 20) - REGION_PAGES / 2 * PAGE };

// What a page holds.
enum { BACKING, PATTERN, CODE };

struct page {
    u32 tag;      // of the pattern
    u32 patch;    // one word that differs,
    u16 patch_at; // here
    u8 holds;
    u8 backing;   // what it holds when it was never written: 0 zeros, otherwise this page of the file, from 1
    u8 rights;
    u8 mapped;
};

static struct page pages[PAGES];
static u32 file_words[FILE_PAGES * PAGE_WORDS];
static u8 *base;
static long own_file;
static u32 expected_repairs;
static volatile u32 repair_counts[PAGES];

static u8 *address(u32 number) {
    return base + FIRST + number / REGION_PAGES * (word)STRIDE + number % REGION_PAGES * PAGE;
}

static u32 pattern(u32 tag, u32 at) { return tag + at * 0x9e3779b1u; }

// mov eax, tag; ret
static u32 code_word(u32 tag, u32 at) { return at == 0 ? tag << 8 | 0xb8 : tag >> 24 | 0xc300; }

static u32 expected(const struct page *page, u32 at) {
    if (at == page->patch_at)
        return page->patch;
    if (page->holds == BACKING)
        return page->backing ? file_words[(page->backing - 1) * PAGE_WORDS + at] : 0;
    if (page->holds == CODE && at < 2)
        return code_word(page->tag, at);
    return pattern(page->tag, at);
}

static void mismatch(u32 number, u32 at, u32 found) {
    const struct page *page = &pages[number];
    yield();
    fail("page %u at %p, word %u: %x, expected %x; read again %x; rights %u, holds %u, tag %x", number,
         (word)address(number), at, found, expected(page, at), ((volatile u32 *)address(number))[at], page->rights,
         page->holds, page->tag);
}

// Reads the whole page; returns a checksum.
static u32 read_page(u32 number) {
    const struct page *page = &pages[number];
    const volatile u32 *words = (const volatile u32 *)address(number);
    u32 sum = page->tag;
    for (u32 at = 0; at < PAGE_WORDS; at++) {
        u32 found = words[at];
        if (found != expected(page, at))
            mismatch(number, at, found);
        sum = fold(sum, found);
    }
    // The file differs with the compiler, and the sum shall not.
    return page->holds == BACKING && page->backing ? page->backing : sum;
}

enum { ERROR_WRITE = 2, ERROR_USER = 4, ERROR_RESERVED = 8, ERROR_FETCH = 16 };

static void expect_fault(u32 number, int done, word at, u32 before, u32 kind, const char *what) {
    const struct page *page = &pages[number];
    CHECK(!done, "%s of page %u at %p, rights %u, mapped %u: no fault", what, number, at, page->rights, page->mapped);
    CHECK(probe_fault.count == before + 1, "%u faults instead of one", probe_fault.count - before);
    CHECK(probe_fault.address == at, "fault at %p, expected at %p", probe_fault.address, at);
    CHECK(probe_fault.code == (page->mapped ? 2 : 1), "%s of page %u: code %u, mapped %u", what, number,
          probe_fault.code, page->mapped);
    u32 error = probe_fault.error & (ERROR_WRITE | ERROR_USER | ERROR_RESERVED | ERROR_FETCH);
    if (!no_execute)
        error &= ~(u32)ERROR_FETCH; // with SMEP alone it is set all the same
    CHECK(error == (kind | ERROR_USER), "%s of page %u: error code %x", what, number, probe_fault.error);
}

static void load(u32 number) {
    u32 at = below(PAGE_WORDS), value = 0, before = probe_fault.count;
    u32 *from = (u32 *)address(number) + at;
    int done = try_load(from, &value);
    if (!(pages[number].rights & READ) || !pages[number].mapped)
        expect_fault(number, done, (word)from, before, 0, "load");
    else if (!done || value != expected(&pages[number], at))
        mismatch(number, at, value);
}

static void store(u32 number) {
    struct page *page = &pages[number];
    u32 at = 2 + below(PAGE_WORDS - 2), value = draw(), before = probe_fault.count;
    u32 *to = (u32 *)address(number) + at;
    if (!(page->rights & WRITE) || !page->mapped) {
        expect_fault(number, try_store(to, value), (word)to, before, ERROR_WRITE, "store");
        return;
    }
    if (page->patch_at != NO_PATCH) {
        u32 old = page->patch_at;
        page->patch_at = NO_PATCH;
        ((volatile u32 *)address(number))[old] = expected(page, old);
    }
    CHECK(try_store(to, value), "store to page %u at %p, rights %u: fault %x", number, (word)to, page->rights,
          probe_fault.error);
    page->patch_at = (u16)at;
    page->patch = value;
}

static void fill(u32 number) {
    struct page *page = &pages[number];
    if (!(page->rights & WRITE) || !page->mapped) {
        store(number);
        return;
    }
    page->tag = draw();
    page->patch_at = NO_PATCH;
    page->holds = below(4) ? PATTERN : CODE;
    volatile u32 *words = (volatile u32 *)address(number);
    for (u32 at = 0; at < PAGE_WORDS; at++)
        words[at] = expected(page, at);
}

static void call(u32 number) {
    const struct page *page = &pages[number];
    u32 value = 0, before = probe_fault.count;
    int allowed = page->mapped && (page->rights & EXEC || (!no_execute && page->rights & READ));
    if (allowed && page->holds != CODE)
        return;
    int done = try_probe_call(address(number), &value);
    if (!allowed)
        expect_fault(number, done, (word)address(number), before, no_execute ? ERROR_FETCH : 0, "call");
    else
        CHECK(done && value == page->tag, "call of page %u: %x, expected %x, fault %x", number, value, page->tag,
              probe_fault.error);
}

// Takes rights from a page and writes to it: the handler gives them back, and the instruction is repeated.
static void repair(u32 number) {
    struct page *page = &pages[number];
    if (!page->mapped)
        return;
    u32 rights = below(2) ? READ : NONE, before = repair_counts[number];
    CHECK(protect(address(number), PAGE, (int)rights) == 0, "mprotect of page %u fails", number);
    // Handler and model have one counter for each page, the regions being apart.
    repairs = repair_counts + number;
    repairs_begin = (word)address(number);
    repairs_end = repairs_begin + PAGE;
    u32 at = page->patch_at == NO_PATCH ? 2 + below(PAGE_WORDS - 2) : page->patch_at;
    page->patch = draw();
    page->patch_at = (u16)at;
    ((volatile u32 *)address(number))[at] = page->patch;
    repairs_begin = repairs_end = 0;
    page->rights = READ | WRITE;
    expected_repairs++;
    CHECK(repair_counts[number] == before + 1, "page %u: %u faults instead of one", number,
          repair_counts[number] - before);
}

// A number of pages from `number` that stays in the region.
static u32 range(u32 number) {
    u32 most = REGION_PAGES - number % REGION_PAGES;
    return 1 + below(most < 12 ? most : 12);
}

static u32 some_rights(void) {
    static const u8 choice[] = {READ | WRITE, READ | WRITE, READ | WRITE, READ, READ | EXEC, READ | WRITE | EXEC, NONE};
    return choice[below(sizeof choice)];
}

static void change_rights(u32 number) {
    u32 count = 0, most = range(number), rights = some_rights();
    while (count < most && pages[number + count].mapped)
        count++;
    long result = protect(address(number), (count ? count : 1) * PAGE, (int)rights);
    CHECK(result == (count ? 0 : -ENOMEM), "mprotect of %u pages at %p: result %x", count, (word)address(number),
          (u32)result);
    for (u32 i = 0; i < count; i++)
        pages[number + i].rights = (u8)rights;
}

static void take_away(u32 number) {
    u32 count = range(number);
    CHECK(unmap(address(number), count * PAGE) == 0, "munmap of %u pages fails", count);
    for (u32 i = 0; i < count; i++)
        pages[number + i].mapped = 0;
}

static void map_again(u32 number, u32 count, u32 rights, u32 from_file) {
    u32 first = from_file ? below(FILE_PAGES) : 0;
    if (from_file && count > FILE_PAGES - first)
        count = FILE_PAGES - first;
    int flags = PRIVATE | FIXED | (from_file ? 0 : ANONYMOUS);
    map(address(number), count * PAGE, (int)rights, flags, from_file ? (int)own_file : -1, first * PAGE);
    for (u32 i = 0; i < count; i++)
        pages[number + i] = (struct page){
            .patch_at = NO_PATCH,
            .holds = BACKING,
            .backing = (u8)(from_file ? first + i + 1 : 0),
            .rights = (u8)rights,
            .mapped = 1,
        };
}

static void forget(u32 number) {
    u32 count = range(number), holes = 0;
    for (u32 i = 0; i < count; i++) {
        struct page *page = &pages[number + i];
        holes += !page->mapped;
        page->holds = BACKING;
        page->patch_at = NO_PATCH;
    }
    long result = advise(address(number), count * PAGE, DONTNEED);
    CHECK(result == (holes ? -ENOMEM : 0), "madvise of %u pages at %p: result %x", count, (word)address(number),
          (u32)result);
}

// Several pages can be moved at once only if they are one mapping, as when they were mapped just now.
static void move_pages(u32 from) {
    u32 to = below(PAGES), count = 1;
    if (below(2)) {
        u32 most = REGION_PAGES - (to % REGION_PAGES > from % REGION_PAGES ? to : from) % REGION_PAGES;
        count = 1 + below(most < 9 ? most : 9);
        map_again(from, count, READ | WRITE, 0);
        for (u32 i = 0; i < count; i += 2)
            fill(from + i);
    }
    if (!pages[from].mapped || (to < from + count && from < to + count))
        return;
    long result = move(address(from), count * PAGE, address(to));
    CHECK((word)result == (word)address(to), "mremap of %u pages from %p to %p: result %x", count,
          (word)address(from), (word)address(to), (u32)result);
    for (u32 i = 0; i < count; i++) {
        pages[to + i] = pages[from + i];
        pages[from + i].mapped = 0;
    }
}

static u32 run(u32 budget);

// Starts a child that goes on with half of what is left.
static long start_child(u32 budget, u32 *place) {
    u32 next = draw() | 1;
    *place = add_shared(&shared->used, 1);
    CHECK(*place < sizeof shared->sums / sizeof shared->sums[0], "too many processes");
    long child = fork();
    if (child)
        return child;
    depth++;
    operations = 0;
    random_state = next;
    u32 sum = run(budget);
    shared->sums[*place] = sum;
    add_shared(&shared->total, sum);
    add_shared(&shared->operations, operations);
    leave(0);
}

static void operate(u32 number) {
    switch (below(40)) {
    case 0 ... 6: fill(number); break;
    case 7 ... 11: load(number); break;
    case 12 ... 17: store(number); break;
    case 18 ... 20: call(number); break;
    case 21 ... 24: change_rights(number); break;
    case 25 ... 26: take_away(number); break;
    case 27 ... 28: map_again(number, range(number), some_rights(), 0); break;
    case 29 ... 30: map_again(number, range(number), some_rights(), 1); break;
    case 31 ... 32: forget(number); break;
    case 33 ... 35: move_pages(number); break;
    case 36 ... 38: repair(number); break;
    default:
        if (pages[number].mapped && pages[number].rights & READ)
            read_page(number);
    }
}

// Performs operations, some of them children's; returns a checksum of all memory at the end.
static u32 run(u32 budget) {
    struct { long process; u32 place; } children[CHILDREN];
    u32 running = 0, sum = random_state;
    while (budget--) {
        if (budget >= 24 && below(32) == 0) {
            if (running == CHILDREN) {
                expect_exit(children[0].process, 0);
                sum = fold(sum, shared->sums[children[0].place]);
                children[0] = children[--running];
            }
            u32 share = budget / 3;
            children[running].process = start_child(share, &children[running].place);
            budget -= share;
            running++;
        }
        operate(below(PAGES));
        operations++;
    }
    for (u32 number = 0; number < PAGES; number++) {
        if (pages[number].mapped && pages[number].rights & READ)
            sum = fold(sum, read_page(number));
        else
            load(number);
    }
    while (running) {
        running--;
        expect_exit(children[running].process, 0);
        sum = fold(sum, shared->sums[children[running].place]);
    }
    return sum;
}

u32 pages_test(u32 budget) {
    step = "pages";
    own_file = open_file("/proc/self/exe");
    memset(file_words, 0, sizeof file_words);
    CHECK(read_at(own_file, file_words, sizeof file_words, 0) > (FILE_PAGES - 1) * PAGE, "the program's file is short");
    // A place for all regions, free again but for them.
    base = map(0, (word)STRIDE * (REGIONS + 1), NONE, PRIVATE | ANONYMOUS, -1, 0);
    unmap(base, (word)STRIDE * (REGIONS + 1));
    for (u32 number = 0; number < PAGES; number += REGION_PAGES)
        map_again(number, REGION_PAGES, READ | WRITE, 0);
    shared->used = shared->total = 0;
    u32 sum = run(budget), total = 0;
    for (u32 place = 0; place < shared->used; place++)
        total += shared->sums[place];
    CHECK(total == shared->total, "the children's sums add up to %x, expected %x", total, shared->total);
    for (u32 number = 0; number < PAGES; number += REGION_PAGES)
        unmap(address(number), REGION_PAGES * PAGE);
    u32 repaired = 0;
    for (u32 number = 0; number < PAGES; number++)
        repaired += repair_counts[number];
    CHECK(repaired == expected_repairs, "%u repairs, expected %u", repaired, expected_repairs);
    close_file(own_file);
    return sum;
}
