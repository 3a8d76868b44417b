/* The CPU time that a container was given. */
#ifndef FEWHEAD_CPU_QUOTA_H
#define FEWHEAD_CPU_QUOTA_H

#include <stdint.h>

/*
 * Whole CPUs that the control groups of this process grant, rounded up, at least 1; 0 where there is no limit or none
 * can be read. `root` stands before /proc and /sys: "" for this machine, a folder for a test.
 *
 * A quota binds a group and all groups below it. So each group is read from the process's own up to the root, and the
 * smallest quota counts. Version 2 (cpu.max) and version 1 (cpu.cfs_quota_us, cpu.cfs_period_us) are both read, since a
 * machine may have both. Source: the Linux kernel's Documentation/admin-guide/cgroup-v2.rst and
 * scheduler/sched-bwc.rst.
 */
int32_t fh_quota_cpus(const char *root);

#endif
