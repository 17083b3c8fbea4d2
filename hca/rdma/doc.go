// Package rdma lists the kernel's RDMA devices as plain data, reports when they appear and
// disappear, and resets them through the kernel. It needs neither libibverbs nor cgo;
// package hca/verbs uses the devices.
//
// # Sources
//
//	information                               | source
//	list of devices, with their indices       | rdma netlink: RDMA_NLDEV_CMD_GET
//	                                          | (include/uapi/rdma/rdma_netlink.h)
//	GUIDs, ports, GIDs                        | /sys/class/infiniband
//	                                          | (Documentation/ABI/stable/sysfs-class-infiniband)
//	verbs interface                           | /sys/class/infiniband_verbs
//	notification of changes                   | uevents of both classes, rdma netlink's
//	                                          | notifications (Linux 6.12 and later)
//	users of a device                         | rdma netlink: RDMA_NLDEV_CMD_RES_CTX_GET and
//	                                          | RDMA_NLDEV_CMD_RES_PD_GET; names: /proc/PID
//
// The list comes from netlink, because sysfs still shows a device whose removal waits for
// its users. Soft-RoCE, for example, cannot remove a device while it is in use: it waits
// until the last descriptor of the verbs interface is closed. The uevent of the verbs
// interface therefore announces the removal, and every process that has the interface open
// must then close it. A process that has opened the interface but no context of the device
// is not among the users; no program that uses libibverbs does that for long.
//
// # Network namespaces
//
// All information is about the network namespace of the calling thread. Uevents reach
// only the network namespaces that the initial user namespace owns (lib/kobject_uevent.c).
// In others, [Watch] fails with [ErrUserNamespace], and the caller has to poll the list.
//
// # Untrusted input
//
// Any process with CAP_NET_ADMIN can send netlink messages. Messages that do not come from
// the kernel (sender's port 0, and process ID 0 in the credentials) are ignored. Values from
// sysfs are limited in size and checked. If an attribute disappears while a device is read,
// the device is left out, unless the attribute is optional.
package rdma
