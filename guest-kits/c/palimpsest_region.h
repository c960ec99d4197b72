/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory in a region of the hypervisor Palimpsest: objects that are used together are in frames of which the hypervisor knows that.
 * docs/sdk.md tells how to use it. All functions may be called by several threads at once, except palimpsest_region_destroy.
 *
 * A child that fork makes has none of this memory, and is killed by SIGSEGV if it touches it; exec is all it should do with it.
 */
#ifndef PALIMPSEST_REGION_H
#define PALIMPSEST_REGION_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct palimpsest_region;

/* Answers of palimpsest_region_create. */
enum {
	/* The region is one of the hypervisor's. */
	PALIMPSEST_REGION_MADE = 0,
	/* There is none to be had: its objects are in plain memory. palimpsest_region_reason tells why. */
	PALIMPSEST_REGION_PLAIN = 1,
};

/* The largest alignment of an object. */
#define PALIMPSEST_REGION_ALIGNMENT_MAX 65536

/* Makes a region without objects: one of the two answers above, or -ENOMEM, and then no region. */
int palimpsest_region_create(struct palimpsest_region **region);

/* Ends a region, and all objects in it. */
void palimpsest_region_destroy(struct palimpsest_region *region);

/*
 * An object of `size` bytes, aligned to 16; NULL with errno if there is no memory (ENOMEM), or if the region is at a limit of the
 * guest kit's (EDQUOT; abi/include/palimpsest.h has them). A region of the hypervisor's never has objects elsewhere.
 */
void *palimpsest_region_malloc(struct palimpsest_region *region, size_t size);

/* The same, zeroed, for `count` elements of `size` bytes. */
void *palimpsest_region_calloc(struct palimpsest_region *region, size_t count, size_t size);

/* The same, aligned to a power of two up to PALIMPSEST_REGION_ALIGNMENT_MAX; EINVAL for others. */
void *palimpsest_region_aligned_alloc(struct palimpsest_region *region, size_t alignment, size_t size);

/*
 * Changes the size of an object; it may move, and is aligned to 16 then. NULL with errno if that fails: the object is as it was.
 * NULL in its place makes a new one.
 */
void *palimpsest_region_realloc(struct palimpsest_region *region, void *object, size_t size);

/* Ends an object, or nothing if NULL. What is no object of this region, or has ended already, ends the program (abort). */
void palimpsest_region_free(struct palimpsest_region *region, void *object);

/* Gives back memory without objects. One empty arena (256 KiB) is kept otherwise. */
void palimpsest_region_trim(struct palimpsest_region *region);

/* Frames that the region has now, of 4096 bytes. */
size_t palimpsest_region_frames(struct palimpsest_region *region);

/* Its number in the hypervisor's monitor and in /sys/kernel/palimpsest/programs; 0: plain memory. */
unsigned int palimpsest_region_number(const struct palimpsest_region *region);

/* Why its memory is plain, as a number of errno.h (ENOENT: no guest kit; EACCES: not for this user); 0: it is not. */
int palimpsest_region_reason(const struct palimpsest_region *region);

#ifdef __cplusplus
}
#endif

#endif
