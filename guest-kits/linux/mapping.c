// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Memory of programs that is in a region: mmap of /dev/palimpsest.
 *
 * How frames stay true. The memory of a region is not the caller's own, pinned, but pages that are allocated here and mapped. So
 * no address of a program is checked or followed; a page is in the region from before anyone can touch it until none can; the
 * kernel never moves, merges, swaps or copies it, because it is on no list of its reclaim; and fork does not copy the mapping, so
 * that no copy on write takes a process away from its frames. docs/sdk.md argues it.
 *
 * What must hold. A mapping is taken back when its last VMA is closed, in this order: out of the region, then to the page
 * allocator. A VMA keeps its file open, so owner and region outlive the mapping. A part of a mapping cannot be unmapped
 * (may_split), so a mapping is in its region as a whole or not at all.
 */
/* First: it says how messages begin. */
#include "kit.h"

#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/refcount.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/slab.h>
#include <linux/version.h>

#include "programs.h"

/* Frames are allocated in blocks of at most this order, a large page. */
#define BLOCK_ORDER 9
static_assert(BLOCK_ORDER <= PALIMPSEST_HYPERCALL_REGION_MAX_ORDER);
static_assert(PALIMPSEST_KIT_OFFSET_UNIT == PAGE_SIZE);

/* What one call of mmap has made. */
struct mapping {
	/* VMAs: more than one after a fork that was asked for (MADV_DOFORK), and while it moves. */
	refcount_t users;
	struct owner *owner;
	struct program_region *region;
	/* Whose RLIMIT_MEMLOCK it counts for. */
	struct user_struct *user;
	unsigned long frames;
	struct page *pages[];
};

/* The largest block that begins with a page of a mapping, before `end`. */
static unsigned int block_order(const struct mapping *mapping, unsigned long first, unsigned long end)
{
	unsigned long frame = page_to_pfn(mapping->pages[first]), run = 1;
	unsigned long most = min(end - first, 1ul << BLOCK_ORDER);

	while (run < most && page_to_pfn(mapping->pages[first + run]) == frame + run)
		run++;
	return min_t(unsigned int, ilog2(run), frame ? __ffs(frame) : BLOCK_ORDER);
}

/* Takes the first pages of a mapping out of its region. */
static void leave_region(struct mapping *mapping, unsigned long end)
{
	unsigned long at, order;

	for (at = 0; at < end; at += 1ul << order) {
		order = block_order(mapping, at, end);
		hypercall(PALIMPSEST_HYPERCALL_DEL_PAGE, page_to_pfn(mapping->pages[at]), order, mapping->region->number);
		cond_resched();
	}
}

/* Puts all pages of a mapping into its region, or none. */
static int enter_region(struct mapping *mapping)
{
	unsigned long at, order;
	int error;

	for (at = 0; at < mapping->frames; at += 1ul << order) {
		order = block_order(mapping, at, mapping->frames);
		error = error_of(hypercall(PALIMPSEST_HYPERCALL_ADD_PAGE, page_to_pfn(mapping->pages[at]), order,
					   mapping->region->number));
		if (error) {
			leave_region(mapping, at);
			return error;
		}
		cond_resched();
	}
	return 0;
}

static void free_pages_of(struct mapping *mapping)
{
	unsigned long at;

	for (at = 0; at < mapping->frames && mapping->pages[at]; at++)
		/* Others, such as a device that reads into it, may still have references. */
		put_page(mapping->pages[at]);
}

/* Zeroed pages, a block of 2^*order of them, or of fewer. */
static struct page *allocate_block(unsigned int *order)
{
	gfp_t flags = GFP_USER | __GFP_ACCOUNT | __GFP_ZERO | __GFP_NOWARN;
	struct page *block;

	for (; *order; --*order) {
		block = alloc_pages(flags | __GFP_NORETRY, *order);
		if (block) {
			split_page(block, *order);
			return block;
		}
	}
	return alloc_page(flags | __GFP_RETRY_MAYFAIL);
}

static int allocate(struct mapping *mapping)
{
	unsigned long have = 0, end;

	while (have < mapping->frames) {
		unsigned int order = min_t(unsigned int, ilog2(mapping->frames - have), BLOCK_ORDER);
		struct page *page = allocate_block(&order);

		if (!page)
			return -ENOMEM;
		for (end = have + (1ul << order); have < end; have++)
			mapping->pages[have] = page++;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}

/* Counts frames for the user, whose limit does not bind those who may lock any memory. */
static int charge_user(struct user_struct *user, unsigned long frames)
{
	unsigned long limit = capable(CAP_IPC_LOCK) ? LONG_MAX : rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	unsigned long now = atomic_long_read(&user->locked_vm), before;

	do {
		before = now;
		if (before > limit || frames > limit - before)
			return -EDQUOT;
		now = atomic_long_cmpxchg(&user->locked_vm, before, before + frames);
	} while (now != before);
	return 0;
}

/* Counts a mapping for its region, so that the region stays, and for all limits. The number is that of the region. */
static int charge(struct owner *owner, unsigned long number, unsigned long frames, struct program_region **region)
{
	int error = -ENOENT;

	mutex_lock(&programs_lock);
	*region = find_region(owner, number);
	if (*region) {
		error = -EDQUOT;
		if (frames <= frames_max() && frames_of_all <= frames_max() - frames)
			error = charge_user(current_user(), frames);
	}
	if (!error) {
		frames_of_all += frames;
		owner->frames += frames;
		(*region)->mappings++;
	}
	mutex_unlock(&programs_lock);
	return error;
}

static void uncharge(struct owner *owner, struct program_region *region, struct user_struct *user, unsigned long frames)
{
	mutex_lock(&programs_lock);
	frames_of_all -= frames;
	owner->frames -= frames;
	region->mappings--;
	mutex_unlock(&programs_lock);
	atomic_long_sub(frames, &user->locked_vm);
}

static void count_frames(struct program_region *region, long frames)
{
	mutex_lock(&programs_lock);
	region->frames += frames;
	mutex_unlock(&programs_lock);
}

static void mapping_open(struct vm_area_struct *vma)
{
	struct mapping *mapping = vma->vm_private_data;

	refcount_inc(&mapping->users);
}

static void mapping_close(struct vm_area_struct *vma)
{
	struct mapping *mapping = vma->vm_private_data;

	if (!refcount_dec_and_test(&mapping->users))
		return;
	leave_region(mapping, mapping->frames);
	count_frames(mapping->region, -mapping->frames);
	uncharge(mapping->owner, mapping->region, mapping->user, mapping->frames);
	free_pages_of(mapping);
	free_uid(mapping->user);
	kvfree(mapping);
}

static int mapping_may_split(struct vm_area_struct *vma, unsigned long address)
{
	return -EINVAL;
}

static vm_fault_t mapping_fault(struct vm_fault *fault)
{
	struct mapping *mapping = fault->vma->vm_private_data;
	unsigned long at = fault->pgoff - fault->vma->vm_pgoff;

	if (at >= mapping->frames)
		return VM_FAULT_SIGBUS;
	get_page(mapping->pages[at]);
	fault->page = mapping->pages[at];
	return 0;
}

static const struct vm_operations_struct mapping_operations = {
	.open = mapping_open,
	.close = mapping_close,
	.may_split = mapping_may_split,
	.fault = mapping_fault,
};

static void change_flags(struct vm_area_struct *vma, unsigned long set, unsigned long clear)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_mod(vma, set, clear);
#else
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
#endif
}

int programs_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct owner *owner = file->private_data;
	unsigned long frames = vma_pages(vma);
	struct program_region *region;
	struct mapping *mapping;
	int error;

	/* A private mapping is a copy as soon as it is written to. */
	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EACCES;
	error = charge(owner, vma->vm_pgoff, frames, &region);
	if (error)
		return error;
	mapping = kvzalloc(struct_size(mapping, pages, frames), GFP_KERNEL_ACCOUNT);
	error = mapping ? 0 : -ENOMEM;
	if (error)
		goto uncharge;
	refcount_set(&mapping->users, 1);
	mapping->owner = owner;
	mapping->region = region;
	mapping->frames = frames;
	error = allocate(mapping);
	if (!error)
		error = enter_region(mapping);
	if (error)
		goto free;
	mapping->user = get_uid(current_user());
	count_frames(region, frames);
	vma->vm_private_data = mapping;
	vma->vm_ops = &mapping_operations;
	change_flags(vma, VM_DONTCOPY | VM_DONTEXPAND, VM_MAYEXEC);
	return 0;
free:
	free_pages_of(mapping);
	kvfree(mapping);
uncharge:
	uncharge(owner, region, current_user(), frames);
	return error;
}

