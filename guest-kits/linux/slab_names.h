/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The names of slab caches (slab_names.c). */
#ifndef PALIMPSEST_SLAB_NAMES_H
#define PALIMPSEST_SLAB_NAMES_H

#include <linux/types.h>

struct page;

/* Names as in /proc/slabinfo; caches that the kernel has merged into others are not there. */
#define SLAB_NAME_LENGTH 31

/* Finds out where this kernel keeps them. 0, -ENOMEM, or -EOPNOTSUPP: in none of the places where it looks. Before the others. */
int slab_names_learn(void);

/* The name of a cache, in SLAB_NAME_LENGTH + 1 bytes; false: the cache has gone, or its name is longer. */
bool slab_name(const void *cache, char *name);

/* The same for the cache of a slab's page, which may be about to end. */
bool slab_name_of_page(struct page *page, char *name);

#endif
