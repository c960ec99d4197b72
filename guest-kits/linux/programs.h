/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Regions of programs: what the device (programs.c) and the mappings of its memory (mapping.c) have in common. */
#ifndef PALIMPSEST_PROGRAMS_H
#define PALIMPSEST_PROGRAMS_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/types.h>

struct file;
struct vm_area_struct;

/* An open file, and its regions. */
struct owner {
	struct list_head list;
	struct list_head regions;
	unsigned int count;
	unsigned long frames;
	/* What it wants of the fast memory, per mille of the guest's hot pages; 0: nothing in particular. */
	u32 target;
	/* Who has opened it. */
	pid_t process;
};

struct program_region {
	struct list_head list;
	/* The hypervisor's. */
	unsigned long number;
	unsigned long frames;
	unsigned long mappings;
};

/* Keeps all owners, their regions, and the sum. It is taken inside of mmap_lock: with it nothing touches a program's memory. */
extern struct mutex programs_lock;
/* Frames in the regions of all programs. */
extern unsigned long frames_of_all;

/* How many of them there may be. */
unsigned long frames_max(void);
/* The region of a file with this number, or NULL. With the lock. */
struct program_region *find_region(struct owner *owner, unsigned long number);
/* Maps new memory that is in a region of this file. */
int programs_mmap(struct file *file, struct vm_area_struct *vma);

#endif
