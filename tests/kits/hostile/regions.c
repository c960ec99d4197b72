// Regions of memory: right calls, wrong ones and floods of both, and accesses to what they name, which the test maps to caches meanwhile.
#include "hostile.h"

// Palimpsest's hypercalls (abi/include/palimpsest.h), and the errors that they may have.
enum { ADD_REGION = 0x50414c02, DEL_REGION, ADD_PAGE, DEL_PAGE };
enum { ENOENT = 2, ENOMEM = 12, EFAULT = 14, EBUSY = 16, EEXIST = 17, EINVAL = 22, ENOSPC = 28 };
enum { MOST_REGIONS = 256, MAX_ORDER = 10, CHUNK_ORDER = 9, USUAL = 8 };

static i64 call(u64 number, u64 first, u64 second, u64 third) {
    i64 answer;
    __asm__ volatile("vmmcall" : "=a"(answer) : "a"(number), "b"(first), "c"(second), "d"(third) : "memory");
    return answer;
}

static void expect(int is_right, const char *what) {
    if (!is_right)
        say("hostile: WRONG answer to %s", what);
}

// What the other processors do meanwhile decides which of these it is.
static void any_of(i64 answer, i64 a, i64 b, i64 c, const char *what) {
    expect(answer == 0 || answer == -a || answer == -b || answer == -c || answer == -ENOMEM, what);
}

static i64 add_region(void) {
    i64 answer = call(ADD_REGION, 0, 0, 0);
    expect((answer >= 1 && answer <= MOST_REGIONS) || answer == -ENOSPC || answer == -ENOMEM, "a new region");
    return answer;
}

// A region for each 2 MiB from the beginning, in some calls: the kit's code, tables, stacks and descriptors are in one of them.
static void divide_memory(void) {
    for (u64 chunk = 0; chunk < USUAL && (chunk + 1) << 21 <= memory_bytes; chunk++) {
        i64 answer = call(ADD_PAGE, chunk << CHUNK_ORDER, CHUNK_ORDER, chunk + 1);
        any_of(answer, EEXIST, ENOENT, EFAULT, "a region's memory");
        if (answer == -ENOENT)
            add_region();
    }
}

static void wrong_calls(struct processor *me) {
    u64 frames = memory_bytes >> 12, frame = draw(me) % frames, rid = 1 + below(me, USUAL), word = draw_word(me);
    expect(call(ADD_PAGE, frame, 0, MOST_REGIONS + 1 + draw(me)) == -ENOENT, "frames for no region");
    expect(call(ADD_PAGE, frame, 0, 0) == -ENOENT, "frames for region 0");
    expect(call(ADD_PAGE, 0, MAX_ORDER + 1 + draw(me), rid) == -EINVAL, "too large an order");
    expect(call(DEL_PAGE, 0, ~0ull, rid) == -EINVAL, "an order of all ones");
    expect(call(ADD_PAGE, frame | 1, 1 + below(me, MAX_ORDER), rid) == -EINVAL, "frames that are not aligned");
    any_of(call(ADD_PAGE, frames + (draw(me) & 0xffffff), 0, rid), EFAULT, ENOENT, EFAULT, "frames that are not memory");
    any_of(call(ADD_PAGE, ~0ull << below(me, 64), below(me, 12), word), EFAULT, ENOENT, EINVAL, "frames at the end of all addresses");
    any_of(call(DEL_PAGE, frame, 0, rid), ENOENT, ENOENT, ENOENT, "a frame that may be in another region");
    expect(call(DEL_REGION, MOST_REGIONS + 1 + draw(me), 0, 0) == -ENOENT, "the end of no region");
}

// All that there may be, now and then; what is left of them is few, so that people can read lists of them.
static void all_regions(struct processor *me) {
    i64 made[MOST_REGIONS + 8];
    const u32 count = below(me, 8) ? below(me, 20) : sizeof made / sizeof *made;
    for (u32 i = 0; i < count; i++)
        made[i] = add_region();
    for (u32 i = 0; i < count; i++)
        any_of(call(DEL_REGION, (u64)made[i], 0, 0), ENOENT, EBUSY, ENOENT, "the end of a region");
    any_of(call(DEL_REGION, 1 + below(me, 300), 0, 0), ENOENT, EBUSY, ENOENT, "the end of any region");
}

// The same frames go into two regions, and leave and come as fast as a processor can ask for it.
static void flood(struct processor *me) {
    u64 chunk = draw(me) % (memory_bytes >> 21) << CHUNK_ORDER;
    for (u32 i = below(me, 64); i; i--) {
        u64 order = below(me, CHUNK_ORDER + 1), frame = chunk + (below(me, 512) & ~0ull << order), rid = 1 + below(me, USUAL);
        any_of(call(ADD_PAGE, frame, order, rid), EEXIST, ENOENT, EEXIST, "frames");
        any_of(call(ADD_PAGE, frame, order, 1 + below(me, USUAL)), EEXIST, ENOENT, EEXIST, "the same frames again");
        any_of(call(DEL_PAGE, frame, order, rid), ENOENT, ENOENT, ENOENT, "frames out");
    }
}

// Instructions that need several regions at once, and runs in one of them.
static void touch(struct processor *me) {
    u64 half = scratch_begin(), pages = half >> 12;
    for (u32 i = below(me, 40); i; i--) {
        u64 from = half + draw(me) % pages * PAGE, to = half + draw(me) % pages * PAGE, count = 1 + below(me, 600);
        switch (below(me, 4)) {
        case 0: __asm__ volatile("rep movsq" : "+S"(from), "+D"(to), "+c"(count) : : "memory"); break;
        case 1: __asm__ volatile("lock incl (%0)" : : "r"(from) : "memory", "cc"); break;
        case 2: __asm__ volatile("push (%0); pop (%1)" : : "r"(from), "r"(to) : "memory"); break;
        case 3:
            for (u64 at = from & ~0xffffull; at < (from | 0xffff); at += 512)
                *(volatile u64 *)at += 1;
            break;
        }
    }
}

void regions(struct processor *me) {
    // Only where there is such a hypervisor; others have no such calls, or take them for their own.
    u32 a = 0x40000000, b, c = 0, d;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    if (b != 0x696c6150 || d != 0x56487473)
        return;
    switch (below(me, 10)) {
    case 0: wrong_calls(me); break;
    case 1: flood(me); break;
    case 2: all_regions(me); break;
    case 3: case 4: case 5: divide_memory(); break;
    default: touch(me);
    }
}
