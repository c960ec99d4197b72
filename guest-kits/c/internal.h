/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the allocator (heap.c), the source of its memory (device.c) and region.c have in common. */
#ifndef PALIMPSEST_REGION_INTERNAL_H
#define PALIMPSEST_REGION_INTERNAL_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE_BYTES 4096u
/* Memory comes in arenas of as many pages as a word has bits, aligned to their size. */
#define ARENA_PAGES 64u
#define ARENA_BYTES (ARENA_PAGES * PAGE_BYTES)
/* Sizes of small objects. */
#define CLASSES 21

struct span;
struct arena;

struct palimpsest_region {
	pthread_mutex_t lock;
	/* An open file of /dev/palimpsest; -1: memory is plain, for this reason. */
	int file;
	int reason;
	uint32_t number;
	/* Pages that are mapped. */
	size_t frames;
	/* Arenas with a free page, without one, and those of one large object. */
	struct arena *open, *full, *large;
	/* Arenas without objects, among the open ones. */
	unsigned int empty;
	/* For each class the spans with a free slot. */
	struct span *partial[CLASSES];
};

/* Opens the device and makes a region, or leaves it with plain memory and the reason. */
void device_open(struct palimpsest_region *region);
/* Ends it. Nothing of it is mapped. */
void device_close(struct palimpsest_region *region);
/* Zeroed memory of the region's, a number of pages, aligned to ARENA_BYTES; NULL with errno. */
void *device_map(struct palimpsest_region *region, size_t bytes);
/* Gives back what one call of device_map has got. */
void device_unmap(struct palimpsest_region *region, void *memory, size_t bytes);

/* The allocator. All with the lock; size and alignment are not 0, and the alignment is one that the header allows. */
void *heap_allocate(struct palimpsest_region *region, size_t size, size_t alignment);
void heap_release(struct palimpsest_region *region, void *object);
/* Bytes that an object may use. */
size_t heap_room(struct palimpsest_region *region, void *object);
void heap_trim(struct palimpsest_region *region);
/* Gives back all memory, whatever is in it. */
void heap_end(struct palimpsest_region *region);

#endif
