// Package inventory lists the HCAs that an interface can be on, the software HCA
// among them, and says in plain words why one cannot be used.
//
// What the kernel and the netdevs tell is looked at, and a device of which they
// have nothing to complain is opened for a moment, by which a missing library, a
// missing provider and missing permissions show. Nothing is changed, no port is
// bound, and a daemon that runs on the device does not notice.
package inventory
