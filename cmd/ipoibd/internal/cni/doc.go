// Package cni is a CNI plugin (version 1.1.0 of the specification, and 1.0.0 and 0.4.0): it gives a
// pod an interface of the daemon of its node, and runs as a process of its own, started by the
// container runtime.
//
// conf.go, attachment.go and result.go are pure.
//
// # Where the state is
//
// The plugin keeps none. An attachment is an interface of the daemon that was added at run time
// (docs/config.md): its name is derived from the network, the container and the name in the pod, and
// its owner contains all three, so GC finds the attachments of a network. The daemon creates the TAP in the
// pod's namespace, under its final name; it is never in the host's. It assigns addresses and routes,
// and remembers the interface across its own restarts. When the path of the namespace is gone, it
// deletes the interface, even if no DEL comes.
//
// # Order
//
// ADD reserves addresses, adds the interface, and waits until the kernel shows it in the pod, with
// carrier and all addresses, and the daemon's status shows that it is ready. If any of that fails, or takes
// longer than addLimit, ADD undoes it in reverse order. DEL removes the interface before it releases the
// addresses, so no other pod can get them too early. Each step of DEL succeeds if there is nothing to do.
// Thus a DEL cleans up after an ADD that was killed at any point. Without a daemon, DEL deletes the
// interface that the daemon has left in the pod, and the daemon's next start forgets an interface that it
// does not find.
package cni
