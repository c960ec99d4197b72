// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The source of a region's memory: mappings of /dev/palimpsest, by the ABI in abi/include/palimpsest.h, or anonymous ones where there
 * is no such device. heap.c calls it, with the region's lock.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"
#include "palimpsest.h"

/* Makes a region of the hypervisor's by this file; an error of errno.h. */
static int create(int file, uint32_t *number)
{
	struct palimpsest_kit_info info = { 0 };
	struct palimpsest_kit_region made = { 0 };

	if (ioctl(file, PALIMPSEST_KIT_INFO, &info))
		return errno;
	if (info.version != PALIMPSEST_KIT_VERSION)
		return EOPNOTSUPP;
	if (ioctl(file, PALIMPSEST_KIT_CREATE, &made))
		return errno;
	*number = made.number;
	return 0;
}

void device_open(struct palimpsest_region *region)
{
	region->file = open(PALIMPSEST_KIT_PATH, O_RDWR | O_CLOEXEC);
	region->reason = region->file < 0 ? errno : create(region->file, &region->number);
	if (region->reason && region->file >= 0) {
		close(region->file);
		region->file = -1;
	}
}

void device_close(struct palimpsest_region *region)
{
	struct palimpsest_kit_region ended = { .number = region->number };

	if (region->file < 0)
		return;
	/* A child may have the file open, which would keep the region. */
	ioctl(region->file, PALIMPSEST_KIT_DELETE, &ended);
	close(region->file);
}

void *device_map(struct palimpsest_region *region, size_t bytes)
{
	int flags = region->file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_POPULATE;
	off_t offset = (off_t)region->number * PALIMPSEST_KIT_OFFSET_UNIT;
	size_t room = bytes + ARENA_BYTES, before;
	char *reserved, *memory;

	if (room < bytes) {
		errno = ENOMEM;
		return NULL;
	}
	/* A mapping of the device cannot be cut to size: the place for it is found with another. */
	reserved = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (reserved == MAP_FAILED)
		return NULL;
	before = -(uintptr_t)reserved % ARENA_BYTES;
	memory = mmap(reserved + before, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, region->file, offset);
	if (memory == MAP_FAILED) {
		int error = errno;

		munmap(reserved, room);
		errno = error;
		return NULL;
	}
	if (before)
		munmap(reserved, before);
	munmap(memory + bytes, ARENA_BYTES - before);
	region->frames += bytes / PAGE_BYTES;
	return memory;
}

void device_unmap(struct palimpsest_region *region, void *memory, size_t bytes)
{
	munmap(memory, bytes);
	region->frames -= bytes / PAGE_BYTES;
}
