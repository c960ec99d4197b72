/* What kernels and programs in C must agree on with Palimpsest.
 * Generated from the crate `abi`; do not edit. `PALIMPSEST_UPDATE=1 cargo test -p abi` writes it.
 */
#ifndef PALIMPSEST_H
#define PALIMPSEST_H

#ifndef __ASSEMBLER__
#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdint.h>
#endif
#endif

/* Hypercalls */
/* The CPUID leaf with the hypervisor's signature, "PalimpsestHV" in EBX, ECX and EDX. */
#define PALIMPSEST_HYPERCALL_CPUID_BASE 0x40000000
/* The first number of Palimpsest's own, "PAL" and a zero byte; KVM counts from 1. */
#define PALIMPSEST_HYPERCALL_FIRST 0x50414c00
/* Registers the counter page of this VCPU. RBX: its guest-physical address, aligned to 4096, with bit 0 set; 0 takes the
 * registration back. RCX: the version of the page's layout. A later call replaces the page of an earlier one. A reset takes
 * it back, INIT does not, as with MSR_KVM_STEAL_TIME. The hypervisor only reads the page, and only for samples. */
#define PALIMPSEST_HYPERCALL_COUNTER_PAGE 0x50414c01
/* Bit 0 of RBX: the page is registered. */
#define PALIMPSEST_HYPERCALL_COUNTER_PAGE_ENABLED 1
/* Version of the layout of `struct palimpsest_counter_page`. Fields are added in its reserved part without a new one. */
#define PALIMPSEST_HYPERCALL_COUNTER_PAGE_VERSION 1
/* Bytes of a counter page. */
#define PALIMPSEST_HYPERCALL_COUNTER_PAGE_BYTES 0x1000
/* A new region without frames (docs/guest-kit.md); its number, from 1 on, is the answer. A reset of the guest ends all of
 * its regions. */
#define PALIMPSEST_HYPERCALL_ADD_GUEST_REGION 0x50414c02
/* Ends a region. RBX: its number. Its frames are in none of the guest's then. REGION_EBUSY: some of them are left,
 * because one call takes out 2^REGION_MAX_ORDER at most; call again. */
#define PALIMPSEST_HYPERCALL_DEL_GUEST_REGION 0x50414c03
/* Puts frames into a region. RBX: the number of the first (its guest-physical address divided by 4096), a multiple of how
 * many there are; RCX: how many, as an order (2^RCX), up to REGION_MAX_ORDER; RDX: the region. All or none. */
#define PALIMPSEST_HYPERCALL_ADD_PAGE 0x50414c04
/* Takes frames out of a region; arguments as for ADD_PAGE. All or none. */
#define PALIMPSEST_HYPERCALL_DEL_PAGE 0x50414c05
/* Says what part of its hot pages the guest wants in fast memory. RBX: per mille of them, up to TIER_TARGET_MAX; 0: it wants
 * none in particular. A later call replaces it, whichever VCPU makes it; a reset takes it back. The machine goes by it as far
 * as no other VM gets less. */
#define PALIMPSEST_HYPERCALL_TIER_TARGET 0x50414c06
/* The largest target: all of its hot pages. */
#define PALIMPSEST_HYPERCALL_TIER_TARGET_MAX 1000
/* The largest order of ADD_PAGE and DEL_PAGE: the largest block of Linux' page allocator, 4 MiB. */
#define PALIMPSEST_HYPERCALL_REGION_MAX_ORDER 10
/* Regions that a guest may have at a time. */
#define PALIMPSEST_HYPERCALL_REGIONS_MAX 256
/* The error for a caller that is not the kernel (CPL is not 0), negated in RAX. */
#define PALIMPSEST_HYPERCALL_KVM_EPERM 1
/* The error for a region that does not exist, or that does not hold all of the frames, negated in RAX. */
#define PALIMPSEST_HYPERCALL_REGION_ENOENT 2
/* The error for a hypervisor without memory for the records of regions, negated in RAX. */
#define PALIMPSEST_HYPERCALL_REGION_ENOMEM 12
/* The error for an address that is not RAM of the guest, negated in RAX. */
#define PALIMPSEST_HYPERCALL_KVM_EFAULT 14
/* The error for a region that has more frames than one call takes out, negated in RAX. */
#define PALIMPSEST_HYPERCALL_REGION_EBUSY 16
/* The error for a frame that is in a region of the guest's already, negated in RAX. */
#define PALIMPSEST_HYPERCALL_REGION_EEXIST 17
/* The error for a VM that uses no fast memory: the machine has none, or the VM is to have none. Negated in RAX. */
#define PALIMPSEST_HYPERCALL_TIER_ENODEV 19
/* The error for an address that is not aligned or has reserved bits set, an order that is out of range, or a target above
 * TIER_TARGET_MAX, negated in RAX. */
#define PALIMPSEST_HYPERCALL_KVM_EINVAL 22
/* The error for a guest that has as many regions as it may have, negated in RAX. */
#define PALIMPSEST_HYPERCALL_REGION_ENOSPC 28
/* The error for a version of the layout that this hypervisor does not know, and for a target on a machine that divides its
 * fast memory by another policy than estate-qos, negated in RAX. */
#define PALIMPSEST_HYPERCALL_KVM_EOPNOTSUPP 95
/* The error for a hypercall that does not exist, negated in RAX: KVM's own number (Linux, `kvm_para.h`), not the ENOSYS of
 * system calls. */
#define PALIMPSEST_HYPERCALL_KVM_ENOSYS 1000

#ifndef __ASSEMBLER__
/* The page on which a VCPU's kernel counts: 64-bit numbers that only grow. */
struct palimpsest_counter_page {
    uint64_t page_faults_user;
    uint64_t page_faults_kernel;
    uint64_t reserved[510];
};
#endif

/* The guest kit's device, /dev/palimpsest */
/* Version of this interface. Structures grow by new ioctls, never by fields. */
#define PALIMPSEST_KIT_VERSION 1
/* The type of the ioctls, which none in Linux has. */
#define PALIMPSEST_KIT_IOCTL_TYPE 186
/* Version, limits, and what this file uses of them. Argument: struct palimpsest_kit_info. */
#define PALIMPSEST_KIT_INFO 0x8020ba00
/* Makes a region without frames. Argument: struct palimpsest_kit_region; reads `flags`, which is 0, and writes the rest. */
#define PALIMPSEST_KIT_CREATE 0xc018ba01
/* Ends a region of this file by its `number`. Argument: struct palimpsest_kit_region. */
#define PALIMPSEST_KIT_DELETE 0x4018ba02
/* Writes `frames` and `mappings` of a region of this file by its `number`. Argument: struct palimpsest_kit_region. */
#define PALIMPSEST_KIT_QUERY 0xc018ba03
/* Says what part of the guest's hot pages this file wants in fast memory, until it is closed. Argument: struct
 * palimpsest_kit_target. */
#define PALIMPSEST_KIT_TARGET 0x4008ba04
/* The offset of a region for mmap is its number times this. */
#define PALIMPSEST_KIT_OFFSET_UNIT 0x1000
/* Regions of a file at most. */
#define PALIMPSEST_KIT_REGIONS_PER_FILE 16
/* Regions of all programs at most: half of what a guest may have. */
#define PALIMPSEST_KIT_REGIONS_MAX 128
/* The error for a region that does not exist, or that another file has made. */
#define PALIMPSEST_KIT_ENOENT 2
/* The error for a machine without memory for the mapping, or a hypervisor without memory for its records. */
#define PALIMPSEST_KIT_ENOMEM 12
/* The error for a mapping that would be executable, or a descriptor that may not read or write as the mapping would. */
#define PALIMPSEST_KIT_EACCES 13
/* The error for an argument that cannot be read or written. */
#define PALIMPSEST_KIT_EFAULT 14
/* The error for the end of a region that has mappings. */
#define PALIMPSEST_KIT_EBUSY 16
/* The error for a guest that uses no fast memory. */
#define PALIMPSEST_KIT_ENODEV 19
/* The error for flags that mean nothing, a target that is too large, a private mapping, and a change of a part of a mapping. */
#define PALIMPSEST_KIT_EINVAL 22
/* The error for an unknown ioctl. */
#define PALIMPSEST_KIT_ENOTTY 25
/* The error for a guest that has as many regions as it may have. */
#define PALIMPSEST_KIT_ENOSPC 28
/* The error for a target on a machine that divides its fast memory by another policy than estate-qos. */
#define PALIMPSEST_KIT_EOPNOTSUPP 95
/* The error for what is over a limit: regions of the file or of all programs, RLIMIT_MEMLOCK of the user, or frames of all
 * programs, which may have a quarter of the guest's memory. */
#define PALIMPSEST_KIT_EDQUOT 122
#define PALIMPSEST_KIT_PATH "/dev/palimpsest"

#ifndef __ASSEMBLER__
/* A region of a program's. */
struct palimpsest_kit_region {
    uint32_t number;
    uint32_t flags;
    uint64_t frames;
    uint64_t mappings;
};
/* What a file may use, and what it uses. */
struct palimpsest_kit_info {
    uint32_t version;
    uint32_t regions;
    uint64_t frames;
    uint64_t frames_all;
    uint64_t frames_max;
};
/* What a program wants of the fast memory. */
struct palimpsest_kit_target {
    uint32_t per_mille;
    uint32_t flags;
};
#endif

/* The test device */
/* A latch of four bytes; what is written is read back. */
#define PALIMPSEST_TEST_LATCH 224
/* A dword written drops the hypervisor's translations of the page at that guest-physical address; its contents stay. */
#define PALIMPSEST_TEST_FLUSH 228
/* The latch again. */
#define PALIMPSEST_TEST_LATCH_BYTES 232
/* A write ends the run with that value. */
#define PALIMPSEST_TEST_EXIT 244
/* A byte written to IRQ + n drives interrupt line n: 1 raises it, 0 lowers it. */
#define PALIMPSEST_TEST_IRQ 0x2000
/* Interrupt lines. */
#define PALIMPSEST_TEST_IRQS 24
/* A dword written takes the page at that guest-physical address away for good. */
#define PALIMPSEST_TEST_UNMAP 0x2018
/* Device memory: each access exits, and reads return what was written. */
#define PALIMPSEST_TEST_MEMORY 0xff000000
/* Bytes of the device memory. */
#define PALIMPSEST_TEST_MEMORY_BYTES 0x10000

/* Limits of palimpsest.toml */
/* Version of the schema of the configuration. */
#define PALIMPSEST_CONFIG_VERSION 1
/* VMs of one configuration at most. */
#define PALIMPSEST_CONFIG_MAX_VMS 64
/* VCPUs of a VM at most. */
#define PALIMPSEST_CONFIG_MAX_VCPUS 64
/* PCPUs that `affinity` can name, from 0 on. */
#define PALIMPSEST_CONFIG_MAX_PCPUS 64
/* RAM of a VM at least, in MiB. */
#define PALIMPSEST_CONFIG_MIN_MEMORY_MIB 20
/* RAM of a VM at most, in MiB: 64 TiB, which leaves most of a 48-bit physical address space to devices. */
#define PALIMPSEST_CONFIG_MAX_MEMORY_MIB 0x4000000
/* The weight of a VM that names none. */
#define PALIMPSEST_CONFIG_DEFAULT_WEIGHT 256
/* The least weight. */
#define PALIMPSEST_CONFIG_MIN_WEIGHT 1
/* The greatest weight. */
#define PALIMPSEST_CONFIG_MAX_WEIGHT 0xffff
/* The least `shadow_pages`. */
#define PALIMPSEST_CONFIG_MIN_SHADOW_PAGES 16
/* The greatest `shadow_pages`. */
#define PALIMPSEST_CONFIG_MAX_SHADOW_PAGES 0x100000
/* Resident memory of an overcommitted VM at least, in MiB. */
#define PALIMPSEST_CONFIG_MIN_RESIDENT_MIB 4
/* RAM of an overcommitted VM at most, in MiB. */
#define PALIMPSEST_CONFIG_MAX_OVERCOMMIT_MIB 0x100000
/* Disks of a VM at most. */
#define PALIMPSEST_CONFIG_MAX_DISKS 8
/* Network cards of a VM at most. */
#define PALIMPSEST_CONFIG_MAX_NETWORKS 4
/* Bytes of a name at most. */
#define PALIMPSEST_CONFIG_MAX_NAME 32

/* Telemetry */
/* Version of the records' schema. */
#define PALIMPSEST_TELEMETRY_VERSION 2

/* Lab machines */
/* "PALLABS" and a zero byte, as a little-endian number. */
#define PALIMPSEST_LAB_MAGIC 0x5342414c4c4150ull
/* Of this layout. It changes when a field changes its meaning or place. */
#define PALIMPSEST_LAB_VERSION 2
/* Bytes of the header, and of each record: one page, so that a page of the modelled machine belongs to one processor. */
#define PALIMPSEST_LAB_PAGE 0x1000
/* Processors that one machine has at most. */
#define PALIMPSEST_LAB_PCPUS 64
/* Displacement of the no-op that begins the region in RAX: see [`MARKS`]. */
#define PALIMPSEST_LAB_MARK_BEGIN 0x1ab00b61
/* Displacement of the no-op that ends it. */
#define PALIMPSEST_LAB_MARK_END 0x1ab00e4d
/* Displacement of the no-op after which everything is modelled, where only instructions were counted before. */
#define PALIMPSEST_LAB_MARK_MODEL 0x1ab00a11
/* Regions have the numbers below this. */
#define PALIMPSEST_LAB_REGIONS 64

#ifndef __ASSEMBLER__
/* The lab machine's counters in shared memory: this, then one record for each PCPU. */
struct palimpsest_lab_header {
    uint64_t magic;
    uint32_t version, pcpus;
    uint64_t record_offset, record_bytes, khz, counts_only;
};

struct palimpsest_lab_counters {
    uint64_t instructions;
    uint64_t cycles;
    uint64_t stall_cycles;
    uint64_t accesses;
    uint64_t line_crossings;
    uint64_t page_crossings;
    uint64_t dtlb_l1_misses;
    uint64_t dtlb_misses;
    uint64_t itlb_l1_misses;
    uint64_t itlb_misses;
    uint64_t walk_refs;
    uint64_t walk_refs_uncached;
    uint64_t walk_cycles;
    uint64_t walk_faults;
    uint64_t accessed_writes;
    uint64_t dirty_writes;
    uint64_t walks_4k_4k;
    uint64_t walks_4k_2m;
    uint64_t walks_4k_1g;
    uint64_t walks_2m_4k;
    uint64_t walks_2m_2m;
    uint64_t walks_2m_1g;
    uint64_t walks_1g_4k;
    uint64_t walks_1g_2m;
    uint64_t walks_1g_1g;
    uint64_t l1d_misses;
    uint64_t l1i_misses;
    uint64_t l2_misses;
    uint64_t llc_misses;
    uint64_t memory_local;
    uint64_t memory_remote;
    uint64_t memory_slow;
    uint64_t prefetches;
    uint64_t device_accesses;
    uint64_t vmruns;
    uint64_t vmexits;
    uint64_t cr3_writes;
    uint64_t invlpgs;
    uint64_t flushes;
    uint64_t ipis;
    uint64_t checks_equal;
    uint64_t checks_differ;
    uint64_t checks_unanswered;
    uint64_t unmodelled;
    uint64_t checks_raced;
    uint64_t llc_hits;
};

/* Walks of agile paging, by where they leave the shadow tables. */
struct palimpsest_lab_agile {
    uint64_t walks[6];
    uint64_t refs[6];
    uint64_t refs_uncached[6];
    uint64_t stand_ins, checks_stale;
};

/* A record: host, guest_nested, guest_shadow. */
struct palimpsest_lab_record {
    struct palimpsest_lab_counters sides[3];
    uint64_t doorbell;
    struct palimpsest_lab_counters stand_ins;
    struct palimpsest_lab_agile agile;
};
#endif

#endif
