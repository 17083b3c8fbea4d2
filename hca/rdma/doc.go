// Package rdma tells which RDMA devices the kernel has, in plain data, and of
// their coming and going; it resets them by the kernel's own means. It needs no
// libibverbs and no cgo: using a device is the business of hca/verbs.
//
// # Sources
//
//	what                                      | where
//	which devices there are, and their index  | rdma netlink: RDMA_NLDEV_CMD_GET
//	                                          | (include/uapi/rdma/rdma_netlink.h)
//	GUIDs, ports, GIDs                        | /sys/class/infiniband
//	                                          | (Documentation/ABI/stable/sysfs-class-infiniband)
//	verbs interface                           | /sys/class/infiniband_verbs
//	that something changed                    | uevents of both classes, rdma netlink's
//	                                          | notifications (Linux 6.12 and later)
//	who uses a device                         | /proc/PID/fd, rdma netlink:
//	                                          | RDMA_NLDEV_CMD_RES_QP_GET
//
// The list is netlink's, because sysfs still shows a device whose removal waits
// for its users; netlink does not. That matters: a driver that cannot take its
// device from under a user (Soft-RoCE) removes it only when the last descriptor
// of its verbs interface is closed. So the removal is told of by the uevent that
// takes the interface away, and whoever holds one has to close it.
//
// # Network namespaces
//
// Everything is of the network namespace of the calling thread. Uevents reach only
// the network namespaces that the initial user namespace owns
// (lib/kobject_uevent.c); elsewhere [Watch] fails with [ErrUserNamespace], and the
// caller has to poll the list.
//
// # What cannot be trusted
//
// Anybody with CAP_NET_ADMIN can send netlink messages. Those that are not of
// the kernel (sender's port 0, and process ID 0 in the credentials) are refused.
// What sysfs says is bounded in size and checked in form; a device of which a
// part vanishes while it is read is left out if that part names it.
package rdma
