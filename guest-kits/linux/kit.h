/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* What the parts of the module have in common: how they call the hypervisor. */
#ifndef PALIMPSEST_KIT_H
#define PALIMPSEST_KIT_H

#define pr_fmt(text) KBUILD_MODNAME ": " text

#include <linux/errno.h>
#include <linux/kobject.h>
#include <asm/cpufeature.h>

#include "palimpsest.h"

/* A hypercall with three arguments, in KVM's convention; the answer, negative for an error. */
static inline long hypercall(unsigned long number, unsigned long first, unsigned long second, unsigned long third)
{
	long answer;

	/* The two vendors have an instruction each, and the other one's is undefined. */
	if (boot_cpu_has(X86_FEATURE_VMMCALL))
		asm volatile("vmmcall" : "=a"(answer) : "a"(number), "b"(first), "c"(second), "d"(third) : "memory");
	else
		asm volatile("vmcall" : "=a"(answer) : "a"(number), "b"(first), "c"(second), "d"(third) : "memory");
	return answer;
}

/* The hypervisor's errors as Linux's. */
static inline int error_of(long answer)
{
	switch (-answer) {
	case PALIMPSEST_HYPERCALL_KVM_ENOSYS:
		return -ENOSYS;
	case PALIMPSEST_HYPERCALL_KVM_EFAULT:
		return -EFAULT;
	case PALIMPSEST_HYPERCALL_KVM_EOPNOTSUPP:
		return -EOPNOTSUPP;
	case PALIMPSEST_HYPERCALL_REGION_ENOENT:
		return -ENOENT;
	case PALIMPSEST_HYPERCALL_REGION_ENOMEM:
		return -ENOMEM;
	case PALIMPSEST_HYPERCALL_REGION_EBUSY:
		return -EBUSY;
	case PALIMPSEST_HYPERCALL_REGION_EEXIST:
		return -EEXIST;
	case PALIMPSEST_HYPERCALL_TIER_ENODEV:
		return -ENODEV;
	case PALIMPSEST_HYPERCALL_REGION_ENOSPC:
		return -ENOSPC;
	default:
		return answer < 0 ? -EINVAL : 0;
	}
}

/*
 * Regions of slab caches (regions.c): begins them below the directory in sysfs, and ends them all. An error at the beginning
 * leaves nothing behind, and the module does without.
 */
int regions_begin(struct kobject *directory);
void regions_end(struct kobject *directory);

/* Regions of programs (programs.c), in the same way. They end with the files of the device, which keep the module. */
int programs_begin(struct kobject *directory);
void programs_end(struct kobject *directory);

#endif
