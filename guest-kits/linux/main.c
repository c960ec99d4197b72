// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Counts the page faults of each processor on a page that the hypervisor Palimpsest reads: with nested paging it sees none of
 * them, and its policies need them. The page and the hypercall are those of abi/include/palimpsest.h; `cargo pal run --kit`
 * builds and loads this module. What it does beside that is in regions.c, for the kernel's memory, and programs.c.
 *
 * What is counted. The tracepoints exceptions:page_fault_user and exceptions:page_fault_kernel are the first thing that
 * Linux's handler does, so that every page fault counts once, also one that ends in a signal, and the address is of no
 * importance. A probe of them costs a test of a static key and a direct call at the fault itself. The alternatives cost more or
 * see less: the handler (exc_page_fault) is closed to kprobes, a kprobe behind it (handle_mm_fault) costs a breakpoint or a call
 * of ftrace and misses faults on addresses that nothing is mapped at; the software event page-faults of perf costs its ring
 * and misses the same. Linux does not export these two tracepoints by name, but lets modules look through all of them.
 *
 * What must hold. A processor's page is written by that processor alone, with interrupts disabled, and outlives its
 * registration: hotplug callbacks run on the processor that comes or goes, the pages are freed last. The hypervisor never
 * writes a page, so that a kernel which dies without taking them back (kexec of a crash kernel) has lost nothing.
 */
/* First: it says how messages begin. */
#include "kit.h"

#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/gfp.h>
#include <linux/kobject.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/tracepoint.h>
#include <asm/processor.h>

static_assert(sizeof(struct palimpsest_counter_page) == PAGE_SIZE);

static DEFINE_PER_CPU(struct palimpsest_counter_page *, counters);
/* Processors whose page the hypervisor has. */
static struct cpumask registered;
static enum cpuhp_state hotplug;
static struct kobject *directory;
/* Slab caches can be put into regions. */
static bool has_regions;
/* There is /dev/palimpsest. */
static bool has_programs;

static bool palimpsest_is_here(void)
{
	u32 eax, signature[3];

	if (!boot_cpu_has(X86_FEATURE_HYPERVISOR))
		return false;
	cpuid(PALIMPSEST_HYPERCALL_CPUID_BASE, &eax, &signature[0], &signature[1], &signature[2]);
	return !memcmp(signature, "PalimpsestHV", sizeof(signature));
}

/* On the processor that has come. */
static int processor_online(unsigned int cpu)
{
	unsigned long page = __pa(per_cpu(counters, cpu)) | PALIMPSEST_HYPERCALL_COUNTER_PAGE_ENABLED;
	int error = error_of(hypercall(PALIMPSEST_HYPERCALL_COUNTER_PAGE, page,
				       PALIMPSEST_HYPERCALL_COUNTER_PAGE_VERSION, 0));

	if (error) {
		pr_err("the hypervisor refuses the counter page of CPU %u: error %d\n", cpu, error);
		return error;
	}
	cpumask_set_cpu(cpu, &registered);
	return 0;
}

/* On the processor that goes, or when the module does. */
static int processor_offline(unsigned int cpu)
{
	hypercall(PALIMPSEST_HYPERCALL_COUNTER_PAGE, 0, 0, 0);
	cpumask_clear_cpu(cpu, &registered);
	return 0;
}

/*
 * The probes. The handler of page faults has interrupts disabled here, so that nothing comes between reading and writing. A
 * hypervisor that reads half of the sum on a 32-bit kernel sees it go backwards, which it is used to.
 */
static void count_user(void *data, unsigned long address, struct pt_regs *regs, unsigned long error)
{
	struct palimpsest_counter_page *page = this_cpu_read(counters);

	WRITE_ONCE(page->page_faults_user, page->page_faults_user + 1);
}

static void count_kernel(void *data, unsigned long address, struct pt_regs *regs, unsigned long error)
{
	struct palimpsest_counter_page *page = this_cpu_read(counters);

	WRITE_ONCE(page->page_faults_kernel, page->page_faults_kernel + 1);
}

static struct {
	const char *name;
	void *probe;
	struct tracepoint *tracepoint;
	bool registered;
} probes[] = {
	{ .name = "page_fault_user", .probe = count_user },
	{ .name = "page_fault_kernel", .probe = count_kernel },
};

static void find_tracepoint(struct tracepoint *tracepoint, void *unused)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(probes); i++)
		if (!strcmp(tracepoint->name, probes[i].name))
			probes[i].tracepoint = tracepoint;
}

static void remove_probes(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(probes); i++)
		if (probes[i].registered)
			tracepoint_probe_unregister(probes[i].tracepoint, probes[i].probe, NULL);
	/* A processor may be in one of them. */
	tracepoint_synchronize_unregister();
}

static int add_probes(void)
{
	size_t i;
	int error;

	for_each_kernel_tracepoint(find_tracepoint, NULL);
	for (i = 0; i < ARRAY_SIZE(probes); i++) {
		if (!probes[i].tracepoint) {
			pr_err("this kernel has no tracepoint exceptions:%s (CONFIG_TRACEPOINTS)\n", probes[i].name);
			error = -ENODEV;
			goto fail;
		}
		error = tracepoint_probe_register(probes[i].tracepoint, probes[i].probe, NULL);
		if (error)
			goto fail;
		probes[i].registered = true;
	}
	return 0;
fail:
	remove_probes();
	return error;
}

static void free_pages_of_all(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		free_page((unsigned long)per_cpu(counters, cpu));
}

static int allocate_pages(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		/* Zeroed, and on i386 below 4 GiB, where the halves of registers reach. */
		per_cpu(counters, cpu) = (void *)get_zeroed_page(GFP_KERNEL);
		if (!per_cpu(counters, cpu)) {
			free_pages_of_all();
			return -ENOMEM;
		}
	}
	return 0;
}

/* /sys/kernel/palimpsest: what the module does. */
static u64 sum_of(size_t place)
{
	unsigned int cpu;
	u64 sum = 0;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(*(u64 *)((char *)per_cpu(counters, cpu) + place));
	return sum;
}

static ssize_t page_faults_user_show(struct kobject *object, struct kobj_attribute *attribute, char *text)
{
	return sysfs_emit(text, "%llu\n", sum_of(offsetof(struct palimpsest_counter_page, page_faults_user)));
}

static ssize_t page_faults_kernel_show(struct kobject *object, struct kobj_attribute *attribute, char *text)
{
	return sysfs_emit(text, "%llu\n", sum_of(offsetof(struct palimpsest_counter_page, page_faults_kernel)));
}

static ssize_t registered_show(struct kobject *object, struct kobj_attribute *attribute, char *text)
{
	return sysfs_emit(text, "%*pbl\n", cpumask_pr_args(&registered));
}

static ssize_t layout_show(struct kobject *object, struct kobj_attribute *attribute, char *text)
{
	return sysfs_emit(text, "%d\n", PALIMPSEST_HYPERCALL_COUNTER_PAGE_VERSION);
}

static struct kobj_attribute page_faults_user = __ATTR_RO(page_faults_user);
static struct kobj_attribute page_faults_kernel = __ATTR_RO(page_faults_kernel);
static struct kobj_attribute cpus_registered = __ATTR_RO(registered);
static struct kobj_attribute layout = __ATTR_RO(layout);

static const struct attribute *attributes[] = {
	&page_faults_user.attr, &page_faults_kernel.attr, &cpus_registered.attr, &layout.attr, NULL,
};

static int __init palimpsest_init(void)
{
	int error;

	if (!palimpsest_is_here()) {
		pr_err("this is no guest of Palimpsest\n");
		return -ENODEV;
	}
	error = allocate_pages();
	if (error)
		return error;
	error = add_probes();
	if (error)
		goto free;
	error = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "palimpsest:online", processor_online, processor_offline);
	if (error < 0)
		goto unprobe;
	hotplug = error;
	directory = kobject_create_and_add("palimpsest", kernel_kobj);
	error = directory ? sysfs_create_files(directory, attributes) : -ENOMEM;
	if (error)
		goto offline;
	error = regions_begin(directory);
	has_regions = !error;
	if (error)
		pr_notice("slab caches of this kernel cannot be put into regions: error %d\n", error);
	error = programs_begin(directory);
	has_programs = !error;
	if (error)
		pr_notice("there is no /dev/palimpsest for programs: error %d\n", error);
	return 0;
offline:
	kobject_put(directory);
	cpuhp_remove_state(hotplug);
unprobe:
	remove_probes();
free:
	free_pages_of_all();
	return error;
}

static void __exit palimpsest_exit(void)
{
	if (has_programs)
		programs_end(directory);
	if (has_regions)
		regions_end(directory);
	/* Readers first: this waits for those that are in a file. */
	sysfs_remove_files(directory, attributes);
	kobject_put(directory);
	cpuhp_remove_state(hotplug);
	remove_probes();
	free_pages_of_all();
}

module_init(palimpsest_init);
module_exit(palimpsest_exit);
MODULE_DESCRIPTION("Counts page faults for the hypervisor Palimpsest, and names regions of memory");
MODULE_LICENSE("Dual MIT/GPL");
