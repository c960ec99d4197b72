// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Puts the frames of slab caches into regions of the hypervisor's: what a part of the kernel uses together is then known to be so.
 * Which caches is said by the parameter `regions` when the module is loaded, and written to /sys/kernel/palimpsest/regions at
 * run time, by name or as one of the sets below; the kernel needs no rebuild.
 *
 * How frames are found. SLUB takes all its memory in allocate_slab(), whose return a kretprobe sees. It frees pages by the
 * common function, whose tracepoint kmem:mm_page_free sees all pages; a byte for each frame says which are of
 * interest. What a cache has already when it is named is found by a walk over all pages (slab_names.c knows their caches).
 *
 * What must hold. A frame is in the region of `home` and in no other: both change under the lock. A page that the walk sees as a
 * slab's has not passed mm_page_free, because it stops being a slab's before; so no frame stays in a region that has left its
 * cache. If a return of allocate_slab() is missed (the kernel keeps as many open calls as we say), `missed` counts it, and
 * writing the name again finds the frames.
 */
/* First: it says how messages begin. */
#include "kit.h"
#include "slab_names.h"

#include <linux/ctype.h>
#include <linux/highmem.h>
#include <linux/kprobes.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/sysfs.h>
#include <linux/tracepoint.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#if defined(CONFIG_SLUB) && defined(CONFIG_KRETPROBES)

/* Regions at a time; the hypervisor allows more. */
#define MOST 32
/* Calls of allocate_slab() that may be open at a time: they sleep while memory is short. */
#define OPEN_CALLS 256

static const char *const kernel_core[] = {
	"task_struct", "mm_struct", "vm_area_struct", "anon_vma", "anon_vma_chain", "signal_cache", "sighand_cache", "files_cache",
	"cred_jar", NULL,
};
static const char *const fs_core[] = {
	"ext4_inode_cache", "ext4_extent_status", "mbcache", "jbd2_journal_head", "dentry", "inode_cache", "buffer_head",
	"radix_tree_node", NULL,
};
static const char *const net_core[] = {
	"skbuff_head_cache", "skbuff_fclone_cache", "sock_inode_cache", "TCP", "TCPv6", "UDP", "UDPv6", "tw_sock_TCP",
	"request_sock_TCP", NULL,
};
static const struct {
	const char *name;
	const char *const *caches[2];
} sets[] = {
	{ "kernel-core", { kernel_core } },
	{ "fs-core", { fs_core } },
	{ "net-core", { net_core } },
	{ "fs-net-core", { fs_core, net_core } },
};

/* A region, of a cache or a set. */
struct region {
	char name[SLAB_NAME_LENGTH + 1];
	/* The hypervisor's; 0: this place is free. */
	unsigned long number;
	unsigned long frames;
	/* Blocks of frames that the hypervisor did not take. */
	unsigned long refused;
};

static struct region regions[MOST];
static char *at_load;
module_param_named(regions, at_load, charp, 0444);
MODULE_PARM_DESC(regions, "Slab caches, or sets of them, that begin as regions: NAME[,NAME...]");
static DEFINE_RAW_SPINLOCK(lock);
/* Held to add and to end regions. */
static DEFINE_MUTEX(changing);
/* For each frame the place of its region in `regions`, plus one; for a block, at its first frame. */
static u8 *home;
static unsigned long frames_end;
static struct tracepoint *page_free;

static bool is_listed(const char *const *caches, const char *cache)
{
	for (; caches && *caches; caches++)
		if (!strcmp(*caches, cache))
			return true;
	return false;
}

static bool holds(const struct region *region, const char *cache)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(sets); i++)
		if (!strcmp(region->name, sets[i].name))
			return is_listed(sets[i].caches[0], cache) || is_listed(sets[i].caches[1], cache);
	return !strcmp(region->name, cache);
}

/* The first region that holds a cache. */
static struct region *region_of(const char *cache)
{
	struct region *region;

	for (region = regions; region < regions + MOST; region++)
		if (region->number && holds(region, cache))
			return region;
	return NULL;
}

/* With the lock. */
static void put(struct page *page, struct region *region)
{
	unsigned long frame = page_to_pfn(page);
	unsigned int order = compound_order(page);

	if (frame >= frames_end || home[frame])
		return;
	if (hypercall(PALIMPSEST_HYPERCALL_ADD_PAGE, frame, order, region->number)) {
		region->refused++;
		return;
	}
	WRITE_ONCE(home[frame], region - regions + 1);
	region->frames += 1ul << order;
}

/* Any page goes back to the page allocator. */
static void see_free(void *data, struct page *page, unsigned int order)
{
	unsigned long frame = page_to_pfn(page), flags;

	if (frame >= frames_end || likely(!READ_ONCE(home[frame])))
		return;
	raw_spin_lock_irqsave(&lock, flags);
	if (home[frame]) {
		struct region *region = &regions[home[frame] - 1];

		hypercall(PALIMPSEST_HYPERCALL_DEL_PAGE, frame, order, region->number);
		region->frames -= 1ul << order;
		WRITE_ONCE(home[frame], 0);
	}
	raw_spin_unlock_irqrestore(&lock, flags);
}

/* allocate_slab() is called for a cache: nonzero if its return is of no interest. */
static int see_call(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	char *name = instance->data;

	return !slab_name((const void *)regs_get_kernel_argument(regs, 0), name) || !region_of(name);
}

/* It returns with the first page of a slab, or none. */
static int see_return(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	struct page *page = (void *)regs_return_value(regs);
	struct region *region;
	unsigned long flags;

	if (!page)
		return 0;
	raw_spin_lock_irqsave(&lock, flags);
	region = region_of((char *)instance->data);
	if (region)
		put(page, region);
	raw_spin_unlock_irqrestore(&lock, flags);
	return 0;
}

static struct kretprobe allocations = {
	.kp.symbol_name = "allocate_slab",
	.entry_handler = see_call,
	.handler = see_return,
	.data_size = SLAB_NAME_LENGTH + 1,
	.maxactive = OPEN_CALLS,
};

/* Finds what the caches of all regions have already. */
static void walk(void)
{
	char name[SLAB_NAME_LENGTH + 1];
	unsigned long frame, flags;

	for (frame = 0; frame < frames_end; frame++) {
		struct page *page = pfn_to_online_page(frame);

		if (frame % 4096 == 0)
			cond_resched();
		if (!page || PageTail(page) || !PageSlab(page))
			continue;
		raw_spin_lock_irqsave(&lock, flags);
		if (!PageTail(page) && PageSlab(page) && slab_name_of_page(page, name)) {
			struct region *region = region_of(name);

			if (region)
				put(page, region);
		}
		raw_spin_unlock_irqrestore(&lock, flags);
	}
}

static struct region *find(const char *name)
{
	struct region *region;

	for (region = regions; region < regions + MOST; region++)
		if (region->number && !strcmp(region->name, name))
			return region;
	return NULL;
}

/* Begins a region, or finds what it has missed. */
static int begin(const char *name)
{
	struct region *region = find(name);
	unsigned long flags;
	long answer;

	if (!region) {
		for (region = regions; region < regions + MOST && region->number; region++)
			;
		if (region == regions + MOST)
			return -ENOSPC;
		answer = hypercall(PALIMPSEST_HYPERCALL_ADD_GUEST_REGION, 0, 0, 0);
		if (answer < 0)
			return error_of(answer);
		raw_spin_lock_irqsave(&lock, flags);
		strscpy(region->name, name, sizeof(region->name));
		region->frames = region->refused = 0;
		region->number = answer;
		raw_spin_unlock_irqrestore(&lock, flags);
	}
	walk();
	return 0;
}

static void end(struct region *region)
{
	unsigned long frame, flags, number = region->number;

	/* Frames that are freed meanwhile find their region, and the hypervisor refuses what it does not have any more. */
	raw_spin_lock_irqsave(&lock, flags);
	region->number = 0;
	raw_spin_unlock_irqrestore(&lock, flags);
	for (frame = 0; frame < frames_end; frame++) {
		if (frame % 4096 == 0)
			cond_resched();
		if (READ_ONCE(home[frame]) != region - regions + 1)
			continue;
		raw_spin_lock_irqsave(&lock, flags);
		if (home[frame] == region - regions + 1)
			WRITE_ONCE(home[frame], 0);
		raw_spin_unlock_irqrestore(&lock, flags);
	}
	while (hypercall(PALIMPSEST_HYPERCALL_DEL_GUEST_REGION, number, 0, 0) == -PALIMPSEST_HYPERCALL_REGION_EBUSY)
		cond_resched();
}

/* /sys/kernel/palimpsest/regions: a line for each, with name, number, frames, and blocks that were refused. */
static ssize_t regions_show(struct kobject *object, struct kobj_attribute *attribute, char *text)
{
	struct region *region;
	int length = 0;

	mutex_lock(&changing);
	for (region = regions; region < regions + MOST; region++)
		if (region->number)
			length += sysfs_emit_at(text, length, "%s %lu %lu %lu\n", region->name, region->number,
						READ_ONCE(region->frames), READ_ONCE(region->refused));
	mutex_unlock(&changing);
	return length;
}

/* A word with + begins a region, one with - ends it. */
static ssize_t regions_store(struct kobject *object, struct kobj_attribute *attribute, const char *text, size_t count)
{
	char name[SLAB_NAME_LENGTH + 1];
	size_t length = count;
	struct region *region;
	int error = 0;

	while (length && isspace(text[length - 1]))
		length--;
	if (length < 2 || length > sizeof(name) || (text[0] != '+' && text[0] != '-'))
		return -EINVAL;
	memcpy(name, text + 1, length - 1);
	name[length - 1] = 0;
	mutex_lock(&changing);
	region = find(name);
	if (text[0] == '+')
		error = begin(name);
	else if (region)
		end(region);
	else
		error = -ENOENT;
	mutex_unlock(&changing);
	return error ? error : count;
}

static ssize_t missed_show(struct kobject *object, struct kobj_attribute *attribute, char *text)
{
	return sysfs_emit(text, "%d\n", allocations.nmissed);
}

static struct kobj_attribute regions_file = __ATTR_RW(regions);
static struct kobj_attribute missed_file = __ATTR_RO(missed);
static const struct attribute *files[] = { &regions_file.attr, &missed_file.attr, NULL };

/* Begins the regions of the parameter; the module does without one that it cannot have. */
static void begin_at_load(void)
{
	char *copy, *rest, *name;

	if (!at_load)
		return;
	copy = kstrdup(at_load, GFP_KERNEL);
	if (!copy) {
		pr_err("regions: no memory to read \"%s\": none of these is a region\n", at_load);
		return;
	}
	rest = copy;
	mutex_lock(&changing);
	while ((name = strsep(&rest, ",")) != NULL) {
		int error = *name && strlen(name) <= SLAB_NAME_LENGTH ? begin(name) : -EINVAL;

		if (error)
			pr_err("regions: \"%s\" cannot be a region: error %d\n", name, error);
	}
	mutex_unlock(&changing);
	kfree(copy);
}

static void find_page_free(struct tracepoint *tracepoint, void *unused)
{
	if (!strcmp(tracepoint->name, "mm_page_free"))
		page_free = tracepoint;
}

int regions_begin(struct kobject *directory)
{
	int error = slab_names_learn();

	if (error)
		return error;
	for_each_kernel_tracepoint(find_page_free, NULL);
	if (!page_free)
		return -EOPNOTSUPP;
	/* Slabs are in memory that the kernel maps. */
	frames_end = PHYS_PFN(__pa(high_memory - 1)) + 1;
	home = vzalloc(frames_end);
	if (!home)
		return -ENOMEM;
	error = tracepoint_probe_register(page_free, see_free, NULL);
	if (error)
		goto free;
	error = register_kretprobe(&allocations);
	if (error)
		goto unprobe;
	error = sysfs_create_files(directory, files);
	if (!error) {
		begin_at_load();
		return 0;
	}
	unregister_kretprobe(&allocations);
unprobe:
	tracepoint_probe_unregister(page_free, see_free, NULL);
	tracepoint_synchronize_unregister();
free:
	vfree(home);
	return error;
}

void regions_end(struct kobject *directory)
{
	struct region *region;

	sysfs_remove_files(directory, files);
	for (region = regions; region < regions + MOST; region++)
		if (region->number)
			end(region);
	/* These wait for processors that are in one of them. */
	unregister_kretprobe(&allocations);
	tracepoint_probe_unregister(page_free, see_free, NULL);
	tracepoint_synchronize_unregister();
	vfree(home);
}

#else

int regions_begin(struct kobject *directory)
{
	return -EOPNOTSUPP;
}

void regions_end(struct kobject *directory)
{
}

#endif
