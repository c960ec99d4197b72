// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Regions of programs: the device /dev/palimpsest. A program makes a region by an ioctl, and maps memory that is in it (mapping.c).
 * By another one it says what it wants of the machine's fast memory. The ABI is in abi/include/palimpsest.h.
 *
 * What must hold. A VMA has a reference to its file, so a file is released after all of its mappings, and nothing of this module is
 * left in a process once no file of the device is open: the module cannot be removed before.
 */
/* First: it says how messages begin. */
#include "kit.h"

#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/uaccess.h>

#include "programs.h"

/* All programs may have this share of memory. */
#define MEMORY_SHARE 4

DEFINE_MUTEX(programs_lock);
unsigned long frames_of_all;
static LIST_HEAD(owners);
static unsigned int regions_of_all;
/* What scripts want of the fast memory, beside the files. */
static u32 script_target;

unsigned long frames_max(void)
{
	return totalram_pages() / MEMORY_SHARE;
}

struct program_region *find_region(struct owner *owner, unsigned long number)
{
	struct program_region *region;

	list_for_each_entry(region, &owner->regions, list)
		if (region->number == number)
			return region;
	return NULL;
}

/* The hypervisor takes out what is left in a region, some at a time. */
static void end_region(unsigned long number)
{
	while (hypercall(PALIMPSEST_HYPERCALL_DEL_GUEST_REGION, number, 0, 0) == -PALIMPSEST_HYPERCALL_REGION_EBUSY)
		cond_resched();
}

static int charge_region(struct owner *owner)
{
	int error = 0;

	mutex_lock(&programs_lock);
	if (owner->count >= PALIMPSEST_KIT_REGIONS_PER_FILE || regions_of_all >= PALIMPSEST_KIT_REGIONS_MAX) {
		error = -EDQUOT;
	} else {
		owner->count++;
		regions_of_all++;
	}
	mutex_unlock(&programs_lock);
	return error;
}

static void uncharge_region(struct owner *owner)
{
	mutex_lock(&programs_lock);
	owner->count--;
	regions_of_all--;
	mutex_unlock(&programs_lock);
}

static int create(struct owner *owner, struct palimpsest_kit_region *argument)
{
	struct program_region *region;
	int error;
	long answer;

	if (argument->flags)
		return -EINVAL;
	error = charge_region(owner);
	if (error)
		return error;
	region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);
	answer = region ? hypercall(PALIMPSEST_HYPERCALL_ADD_GUEST_REGION, 0, 0, 0) : -PALIMPSEST_HYPERCALL_REGION_ENOMEM;
	if (answer < 0) {
		uncharge_region(owner);
		kfree(region);
		return error_of(answer);
	}
	region->number = answer;
	mutex_lock(&programs_lock);
	list_add_tail(&region->list, &owner->regions);
	mutex_unlock(&programs_lock);
	*argument = (struct palimpsest_kit_region){ .number = answer };
	return 0;
}

static int delete(struct owner *owner, const struct palimpsest_kit_region *argument)
{
	struct program_region *region;
	int error = 0;

	mutex_lock(&programs_lock);
	region = find_region(owner, argument->number);
	if (!region)
		error = -ENOENT;
	else if (region->mappings)
		error = -EBUSY;
	else
		list_del(&region->list);
	mutex_unlock(&programs_lock);
	if (error)
		return error;
	end_region(region->number);
	uncharge_region(owner);
	kfree(region);
	return 0;
}

static int query(struct owner *owner, struct palimpsest_kit_region *argument)
{
	struct program_region *region;

	mutex_lock(&programs_lock);
	region = find_region(owner, argument->number);
	if (region) {
		argument->flags = 0;
		argument->frames = region->frames;
		argument->mappings = region->mappings;
	}
	mutex_unlock(&programs_lock);
	return region ? 0 : -ENOENT;
}

/* Asks the hypervisor for the most that any file wants. With the lock. */
static int tell_target(void)
{
	u32 most = script_target;
	struct owner *owner;

	list_for_each_entry(owner, &owners, list)
		most = max(most, owner->target);
	return error_of(hypercall(PALIMPSEST_HYPERCALL_TIER_TARGET, most, 0, 0));
}

static int set_target(u32 *place, u32 per_mille)
{
	u32 before;
	int error;

	if (per_mille > PALIMPSEST_HYPERCALL_TIER_TARGET_MAX)
		return -EINVAL;
	mutex_lock(&programs_lock);
	before = *place;
	*place = per_mille;
	error = tell_target();
	if (error)
		*place = before;
	mutex_unlock(&programs_lock);
	return error;
}

static int target(struct owner *owner, void __user *where)
{
	struct palimpsest_kit_target argument;

	if (copy_from_user(&argument, where, sizeof(argument)))
		return -EFAULT;
	return argument.flags ? -EINVAL : set_target(&owner->target, argument.per_mille);
}

static long info(struct owner *owner, void __user *where)
{
	struct palimpsest_kit_info info = { .version = PALIMPSEST_KIT_VERSION };

	mutex_lock(&programs_lock);
	info.regions = owner->count;
	info.frames = owner->frames;
	info.frames_all = frames_of_all;
	mutex_unlock(&programs_lock);
	info.frames_max = frames_max();
	return copy_to_user(where, &info, sizeof(info)) ? -EFAULT : 0;
}

static long device_ioctl(struct file *file, unsigned int command, unsigned long address)
{
	struct owner *owner = file->private_data;
	void __user *where = (void __user *)address;
	struct palimpsest_kit_region argument;
	int error;

	if (command == PALIMPSEST_KIT_INFO)
		return info(owner, where);
	if (command == PALIMPSEST_KIT_TARGET)
		return target(owner, where);
	if (command != PALIMPSEST_KIT_CREATE && command != PALIMPSEST_KIT_DELETE && command != PALIMPSEST_KIT_QUERY)
		return -ENOTTY;
	if (copy_from_user(&argument, where, sizeof(argument)))
		return -EFAULT;
	if (command == PALIMPSEST_KIT_DELETE)
		return delete(owner, &argument);
	error = command == PALIMPSEST_KIT_CREATE ? create(owner, &argument) : query(owner, &argument);
	/* A region whose number cannot be told stays until the file is closed. */
	if (!error && copy_to_user(where, &argument, sizeof(argument)))
		error = -EFAULT;
	return error;
}

static int device_open(struct inode *inode, struct file *file)
{
	struct owner *owner = kzalloc(sizeof(*owner), GFP_KERNEL_ACCOUNT);

	if (!owner)
		return -ENOMEM;
	INIT_LIST_HEAD(&owner->regions);
	owner->process = task_tgid_nr(current);
	file->private_data = owner;
	mutex_lock(&programs_lock);
	list_add_tail(&owner->list, &owners);
	mutex_unlock(&programs_lock);
	return 0;
}

/* The last descriptor is closed, and the last mapping has gone. */
static int device_release(struct inode *inode, struct file *file)
{
	struct owner *owner = file->private_data;
	struct program_region *region, *next;

	mutex_lock(&programs_lock);
	list_del(&owner->list);
	if (owner->target)
		tell_target();
	mutex_unlock(&programs_lock);
	list_for_each_entry_safe(region, next, &owner->regions, list) {
		end_region(region->number);
		uncharge_region(owner);
		kfree(region);
	}
	kfree(owner);
	return 0;
}

static const struct file_operations device_operations = {
	.owner = THIS_MODULE,
	.open = device_open,
	.release = device_release,
	.mmap = programs_mmap,
	.unlocked_ioctl = device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "palimpsest",
	/* The administrator lets others in. */
	.mode = 0600,
	.fops = &device_operations,
};

/* /sys/kernel/palimpsest/programs: a line for each region, with number, process, frames and mappings. */
static ssize_t programs_show(struct kobject *object, struct kobj_attribute *attribute, char *text)
{
	struct program_region *region;
	struct owner *owner;
	int length = 0;

	mutex_lock(&programs_lock);
	list_for_each_entry(owner, &owners, list)
		list_for_each_entry(region, &owner->regions, list)
			length += sysfs_emit_at(text, length, "%lu %d %lu %lu\n", region->number, owner->process,
						region->frames, region->mappings);
	mutex_unlock(&programs_lock);
	return length;
}

static struct kobj_attribute programs_file = __ATTR_RO(programs);

/* /sys/kernel/palimpsest/fast_target: what scripts want of the fast memory. */
static ssize_t fast_target_show(struct kobject *object, struct kobj_attribute *attribute, char *text)
{
	return sysfs_emit(text, "%u\n", READ_ONCE(script_target));
}

static ssize_t fast_target_store(struct kobject *object, struct kobj_attribute *attribute, const char *text, size_t size)
{
	u32 per_mille;
	int error = kstrtou32(text, 0, &per_mille);

	if (!error)
		error = set_target(&script_target, per_mille);
	return error ? error : size;
}

static struct kobj_attribute fast_target = __ATTR_RW(fast_target);

static const struct attribute *files[] = { &programs_file.attr, &fast_target.attr, NULL };

int programs_begin(struct kobject *directory)
{
	int error = misc_register(&device);

	if (error)
		return error;
	error = sysfs_create_files(directory, files);
	if (error)
		misc_deregister(&device);
	return error;
}

void programs_end(struct kobject *directory)
{
	/* Readers and writers first. No file of the device is open. */
	sysfs_remove_files(directory, files);
	misc_deregister(&device);
	if (script_target)
		hypercall(PALIMPSEST_HYPERCALL_TIER_TARGET, 0, 0, 0);
}
