// SPDX-License-Identifier: MIT OR Apache-2.0
/* The functions of palimpsest_region.h: arguments, the lock, and what is made of an allocator (heap.c) and its source (device.c). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "palimpsest_region.h"

void *palimpsest_region_aligned_alloc(struct palimpsest_region *region, size_t alignment, size_t size)
{
	void *object;

	if (!alignment || alignment & (alignment - 1) || alignment > PALIMPSEST_REGION_ALIGNMENT_MAX) {
		errno = EINVAL;
		return NULL;
	}
	pthread_mutex_lock(&region->lock);
	object = heap_allocate(region, size ? size : 1, alignment);
	pthread_mutex_unlock(&region->lock);
	return object;
}

void *palimpsest_region_malloc(struct palimpsest_region *region, size_t size)
{
	return palimpsest_region_aligned_alloc(region, 16, size);
}

void *palimpsest_region_calloc(struct palimpsest_region *region, size_t count, size_t size)
{
	size_t bytes;
	void *object;

	if (__builtin_mul_overflow(count, size, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	object = palimpsest_region_malloc(region, bytes);
	return object ? memset(object, 0, bytes) : NULL;
}

void palimpsest_region_free(struct palimpsest_region *region, void *object)
{
	if (!object)
		return;
	pthread_mutex_lock(&region->lock);
	heap_release(region, object);
	pthread_mutex_unlock(&region->lock);
}

void *palimpsest_region_realloc(struct palimpsest_region *region, void *object, size_t size)
{
	void *moved;
	size_t room;

	if (!object)
		return palimpsest_region_malloc(region, size);
	pthread_mutex_lock(&region->lock);
	room = heap_room(region, object);
	pthread_mutex_unlock(&region->lock);
	/* It stays where more than half of its place is used. */
	if (size <= room && size > room / 2)
		return object;
	moved = palimpsest_region_malloc(region, size);
	if (!moved)
		return NULL;
	memcpy(moved, object, size < room ? size : room);
	palimpsest_region_free(region, object);
	return moved;
}

void palimpsest_region_trim(struct palimpsest_region *region)
{
	pthread_mutex_lock(&region->lock);
	heap_trim(region);
	pthread_mutex_unlock(&region->lock);
}

int palimpsest_region_create(struct palimpsest_region **made)
{
	struct palimpsest_region *region = calloc(1, sizeof(*region));

	*made = region;
	if (!region)
		return -ENOMEM;
	pthread_mutex_init(&region->lock, NULL);
	device_open(region);
	return region->reason ? PALIMPSEST_REGION_PLAIN : PALIMPSEST_REGION_MADE;
}

void palimpsest_region_destroy(struct palimpsest_region *region)
{
	if (!region)
		return;
	heap_end(region);
	device_close(region);
	pthread_mutex_destroy(&region->lock);
	free(region);
}

size_t palimpsest_region_frames(struct palimpsest_region *region)
{
	size_t frames;

	pthread_mutex_lock(&region->lock);
	frames = region->frames;
	pthread_mutex_unlock(&region->lock);
	return frames;
}

unsigned int palimpsest_region_number(const struct palimpsest_region *region)
{
	return region->number;
}

int palimpsest_region_reason(const struct palimpsest_region *region)
{
	return region->reason;
}
