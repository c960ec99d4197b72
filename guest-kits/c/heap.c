// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The allocator of a region, which region.c calls with the region's lock. Its memory is arenas of 64 pages, of which the first has the records (`struct arena`). A span is a run
 * of pages of an arena: for up to 2 KiB one page with slots of a class, each used or free by a bit; above that the pages of one object.
 * Objects of more than half an arena have an arena of their own size. All of it is aligned to ARENA_BYTES, so that the address of an
 * object leads to its arena.
 *
 * What must hold. No record is inside of an object, so a program that writes to an object that has ended does not lead the
 * allocator astray. An arena is on exactly one list: `large`, or `open` if a page of it is free, or `full`. A span is on the list
 * of its class if and only if a slot of it is free. A span without objects gives its page back at once, an arena without objects
 * its memory, except for one in each region.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "palimpsest_region.h"

/* Sizes of slots, multiples of 16; each power of two is there, for alignments. */
static const uint16_t sizes[CLASSES] = {
	16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 672, 816, 1024, 1360, 2048,
};
#define SMALL_MAX 2048u
/* The class of a span of pages. */
#define PAGES CLASSES
/* Objects of more pages have an arena of their own. */
#define RUN_MAX (ARENA_PAGES / 2)
#define SLOTS_MAX (PAGE_BYTES / 16)
/* All pages but the first. */
#define ALL_FREE (~UINT64_C(1))
#define MAGIC UINT64_C(0x7061676573746f6e)

/* At the number of its first page. */
struct span {
	struct span *next, *previous;
	uint64_t used[SLOTS_MAX / 64];
	uint16_t count;
	uint8_t class;
	/* 0: no span begins here. */
	uint8_t pages;
};

/* What an arena begins with. */
struct arena {
	/* MAGIC and this address. */
	uint64_t magic;
	struct palimpsest_region *region;
	struct arena *next, *previous;
	size_t bytes;
	/* Where the large object is; 0: there are spans. */
	size_t large_at;
	/* A bit for each free page. */
	uint64_t free;
	struct span spans[ARENA_PAGES];
};

_Static_assert(sizeof(struct arena) <= PAGE_BYTES, "the records fit a page");
_Static_assert(PALIMPSEST_REGION_ALIGNMENT_MAX < ARENA_BYTES, "a large object begins in the first ARENA_BYTES");

static void push_arena(struct arena **list, struct arena *arena)
{
	arena->previous = NULL;
	arena->next = *list;
	if (*list)
		(*list)->previous = arena;
	*list = arena;
}

static void remove_arena(struct arena **list, struct arena *arena)
{
	if (arena->next)
		arena->next->previous = arena->previous;
	if (arena->previous)
		arena->previous->next = arena->next;
	else
		*list = arena->next;
}

static void push_span(struct span **list, struct span *span)
{
	span->previous = NULL;
	span->next = *list;
	if (*list)
		(*list)->previous = span;
	*list = span;
}

static void remove_span(struct span **list, struct span *span)
{
	if (span->next)
		span->next->previous = span->previous;
	if (span->previous)
		span->previous->next = span->next;
	else
		*list = span->next;
}

static struct arena *arena_of(const void *inside)
{
	return (struct arena *)((uintptr_t)inside & ~(uintptr_t)(ARENA_BYTES - 1));
}

static unsigned int page_of(const struct span *span)
{
	return span - arena_of(span)->spans;
}

static char *start_of(const struct span *span)
{
	return (char *)arena_of(span) + page_of(span) * PAGE_BYTES;
}

static struct arena *new_arena(struct palimpsest_region *region, size_t bytes)
{
	struct arena *arena = device_map(region, bytes);

	if (!arena)
		return NULL;
	arena->magic = MAGIC ^ (uintptr_t)arena;
	arena->region = region;
	arena->bytes = bytes;
	return arena;
}

static void end_arena(struct palimpsest_region *region, struct arena *arena)
{
	device_unmap(region, arena, arena->bytes);
}

/* The first page of a run of free ones, at a multiple of `step`; 0: there is none. */
static unsigned int find_run(uint64_t free, unsigned int pages, unsigned int step)
{
	uint64_t run = (UINT64_C(1) << pages) - 1;
	unsigned int at;

	for (at = step; at + pages <= ARENA_PAGES; at += step)
		if ((free >> at & run) == run)
			return at;
	return 0;
}

/* Takes a run of pages out of an open arena. */
static struct span *take_run(struct palimpsest_region *region, struct arena *arena, unsigned int at, unsigned int pages)
{
	struct span *span = &arena->spans[at];

	if (arena->free == ALL_FREE)
		region->empty--;
	arena->free &= ~(((UINT64_C(1) << pages) - 1) << at);
	if (!arena->free) {
		remove_arena(&region->open, arena);
		push_arena(&region->full, arena);
	}
	memset(span, 0, sizeof(*span));
	span->pages = pages;
	return span;
}

static struct span *new_span(struct palimpsest_region *region, unsigned int pages, unsigned int step)
{
	struct arena *arena;
	unsigned int at = 0;

	for (arena = region->open; arena; arena = arena->next) {
		at = find_run(arena->free, pages, step);
		if (at)
			return take_run(region, arena, at, pages);
	}
	arena = new_arena(region, ARENA_BYTES);
	if (!arena)
		return NULL;
	arena->free = ALL_FREE;
	region->empty++;
	push_arena(&region->open, arena);
	return take_run(region, arena, find_run(ALL_FREE, pages, step), pages);
}

static void end_span(struct palimpsest_region *region, struct span *span)
{
	struct arena *arena = arena_of(span);

	if (!arena->free) {
		remove_arena(&region->full, arena);
		push_arena(&region->open, arena);
	}
	arena->free |= ((UINT64_C(1) << span->pages) - 1) << page_of(span);
	span->pages = 0;
	if (arena->free != ALL_FREE)
		return;
	if (region->empty) {
		remove_arena(&region->open, arena);
		end_arena(region, arena);
	} else {
		region->empty++;
	}
}

static unsigned int slots(unsigned int class)
{
	return PAGE_BYTES / sizes[class];
}

static void *new_small(struct palimpsest_region *region, unsigned int class)
{
	struct span *span = region->partial[class];
	unsigned int slot, word = 0;

	if (!span) {
		span = new_span(region, 1, 1);
		if (!span)
			return NULL;
		span->class = class;
		push_span(&region->partial[class], span);
	}
	while (!~span->used[word])
		word++;
	slot = word * 64 + __builtin_ctzll(~span->used[word]);
	span->used[word] |= UINT64_C(1) << slot % 64;
	if (++span->count == slots(class))
		remove_span(&region->partial[class], span);
	return start_of(span) + slot * sizes[class];
}

/* The least class for objects of this size and alignment; each slot of it is aligned, because pages are. */
static unsigned int class_of(size_t size, size_t alignment)
{
	unsigned int class = 0;

	while (sizes[class] < size || sizes[class] % alignment)
		class++;
	return class;
}

static void *new_large(struct palimpsest_region *region, size_t size, size_t alignment)
{
	size_t at = alignment > PAGE_BYTES ? alignment : PAGE_BYTES;
	size_t bytes = (at + size + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);
	struct arena *arena;

	if (size > PTRDIFF_MAX - ARENA_BYTES) {
		errno = ENOMEM;
		return NULL;
	}
	arena = new_arena(region, bytes);
	if (!arena)
		return NULL;
	arena->large_at = at;
	push_arena(&region->large, arena);
	return (char *)arena + at;
}

void *heap_allocate(struct palimpsest_region *region, size_t size, size_t alignment)
{
	size_t pages = size / PAGE_BYTES + (size % PAGE_BYTES != 0);
	struct span *span;

	if (size <= SMALL_MAX && alignment <= SMALL_MAX)
		return new_small(region, class_of(size, alignment));
	if (pages > RUN_MAX)
		return new_large(region, size, alignment);
	span = new_span(region, pages, alignment > PAGE_BYTES ? alignment / PAGE_BYTES : 1);
	if (!span)
		return NULL;
	span->class = PAGES;
	return start_of(span);
}

static void refuse(const void *object)
{
	fprintf(stderr, "palimpsest_region: %p is no object of this region, or has ended already\n", object);
	abort();
}

/* Where an object is: its arena, and its span and slot if it is not large. */
struct place {
	struct arena *arena;
	struct span *span;
	unsigned int slot;
	/* Bytes that it may use. */
	size_t room;
};

static bool find_small(struct place *place, size_t at)
{
	struct span *span = place->span;

	place->room = sizes[span->class];
	place->slot = at / sizes[span->class];
	return at % sizes[span->class] == 0 && place->slot < slots(span->class) &&
	       span->used[place->slot / 64] >> place->slot % 64 & 1;
}

static struct place find(struct palimpsest_region *region, void *object)
{
	struct place place = { .arena = arena_of(object) };
	size_t at = (char *)object - (char *)place.arena;

	/* The address may be anything; what leads to no memory at all is a segmentation fault here. */
	if (!place.arena || place.arena->magic != (MAGIC ^ (uintptr_t)place.arena) || place.arena->region != region)
		refuse(object);
	if (place.arena->large_at) {
		place.room = place.arena->bytes - place.arena->large_at;
		if (at != place.arena->large_at)
			refuse(object);
		return place;
	}
	place.span = &place.arena->spans[at / PAGE_BYTES];
	if (!place.span->pages)
		refuse(object);
	if (place.span->class == PAGES) {
		place.room = place.span->pages * PAGE_BYTES;
		if (at % PAGE_BYTES)
			refuse(object);
	} else if (!find_small(&place, at % PAGE_BYTES)) {
		refuse(object);
	}
	return place;
}

size_t heap_room(struct palimpsest_region *region, void *object)
{
	return find(region, object).room;
}

void heap_release(struct palimpsest_region *region, void *object)
{
	struct place place = find(region, object);
	struct span *span = place.span;

	if (!span) {
		remove_arena(&region->large, place.arena);
		end_arena(region, place.arena);
		return;
	}
	if (span->class != PAGES) {
		if (span->count == slots(span->class))
			push_span(&region->partial[span->class], span);
		span->used[place.slot / 64] &= ~(UINT64_C(1) << place.slot % 64);
		if (--span->count)
			return;
		remove_span(&region->partial[span->class], span);
	}
	end_span(region, span);
}

void heap_trim(struct palimpsest_region *region)
{
	struct arena *arena, *next;

	for (arena = region->open; region->empty && arena; arena = next) {
		next = arena->next;
		if (arena->free == ALL_FREE) {
			remove_arena(&region->open, arena);
			end_arena(region, arena);
			region->empty--;
		}
	}
}

static void end_all(struct palimpsest_region *region, struct arena *arena)
{
	struct arena *next;

	for (; arena; arena = next) {
		next = arena->next;
		end_arena(region, arena);
	}
}

void heap_end(struct palimpsest_region *region)
{
	end_all(region, region->open);
	end_all(region, region->full);
	end_all(region, region->large);
}
