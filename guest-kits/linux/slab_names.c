// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The names of slab caches, by a page of a slab or by the cache.
 *
 * Where the structure of a slab's page holds its cache, and that of a cache its name, is learned from a cache of our own: both are
 * private to the kernel and differ between its versions. Both may end while they are read, so that all reads are of the kind that
 * may fail.
 */
/* First: it says how messages begin. */
#include "kit.h"
#include "slab_names.h"

#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

/* Where the structure of a slab's page has its cache, and that of a cache its name. */
static size_t cache_at, name_at;
/* The structure of a cache may be this long. */
#define CACHE_BYTES 256

/* The string that the pointer at an address leads to; false: there is none, or it is longer than names are. */
static bool read_name(const void *at, char *name)
{
	const char *from;
	size_t i;

	if (copy_from_kernel_nofault(&from, at, sizeof(from)))
		return false;
	for (i = 0; i <= SLAB_NAME_LENGTH; i++) {
		if (copy_from_kernel_nofault(&name[i], from + i, 1))
			return false;
		if (!name[i])
			return true;
	}
	return false;
}

bool slab_name(const void *cache, char *name)
{
	return read_name((const char *)cache + name_at, name);
}

bool slab_name_of_page(struct page *page, char *name)
{
	return slab_name(READ_ONCE(*(const char **)((char *)page + cache_at)), name);
}

/* Of our own cache. */
#define SAMPLE KBUILD_MODNAME "_sample"

/* A cache with a constructor is merged with no other one. */
static void construct(void *object)
{
}

static bool learn_from(const char *cache, const void *object)
{
	const char *page = (char *)virt_to_head_page(object);
	char name[SLAB_NAME_LENGTH + 1];

	for (cache_at = 0; cache_at < sizeof(struct page); cache_at += sizeof(void *))
		if (*(const char **)(page + cache_at) == cache)
			break;
	for (name_at = 0; name_at < CACHE_BYTES; name_at += sizeof(void *))
		if (read_name(cache + name_at, name) && !strcmp(name, SAMPLE))
			break;
	return cache_at < sizeof(struct page) && name_at < CACHE_BYTES;
}

int slab_names_learn(void)
{
	struct kmem_cache *cache = kmem_cache_create(SAMPLE, 64, 0, 0, construct);
	void *object = cache ? kmem_cache_alloc(cache, GFP_KERNEL) : NULL;
	int error = -ENOMEM;

	if (object) {
		error = learn_from((char *)cache, object) ? 0 : -EOPNOTSUPP;
		kmem_cache_free(cache, object);
	}
	kmem_cache_destroy(cache);
	return error;
}
