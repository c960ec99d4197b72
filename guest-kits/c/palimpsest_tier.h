/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a program wants of the fast memory of a machine with the hypervisor Palimpsest: a part of the hot pages of its guest.
 * docs/sdk.md tells how to use it.
 */
#ifndef PALIMPSEST_TIER_H
#define PALIMPSEST_TIER_H

#ifdef __cplusplus
extern "C" {
#endif

/* All hot pages. */
#define PALIMPSEST_TIER_ALL 1000

/*
 * Asks for `per_mille` of the guest's hot pages in fast memory, until palimpsest_tier_close or the end of the program; of several
 * programs the one that wants most decides. A number for the functions below, or a negative one of errno.h: -ENOENT without the
 * guest kit, -EACCES not for this user, -ENODEV without fast memory, -EOPNOTSUPP if the machine divides it by another policy than
 * estate-qos, -EINVAL above PALIMPSEST_TIER_ALL.
 */
int palimpsest_tier_open(unsigned int per_mille);

/* Asks for another part; 0: for none in particular. 0, or an error as above, and then nothing has changed. */
int palimpsest_tier_set(int tier, unsigned int per_mille);

/* Asks for no more. What the machine gives by itself stays. */
void palimpsest_tier_close(int tier);

#ifdef __cplusplus
}
#endif

#endif
