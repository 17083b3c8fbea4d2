// Package backend has the HCAs: the software HCA and those of the kernel, behind one
// interface, [HCA].
//
// A [Slot] is what one HCA is plugged into. It lists the HCA under its identity, opens it
// and resets it, which is all that package device needs; and it carries out faults: plans
// of [ipoibd/hca/faults] outlive the instance that they were made for, an HCA can be
// pulled out and another one put in.
//
//	file           | what
//	backend.go     | the interface, New
//	slot.go        | which HCA is there, and what faults have made of that
//	instance.go    | probe, open, reset, run, close
//	plans.go       | faults planned for this instance and the next one
//	soft*.go       | the software HCA on a netdev, and its identity
//	peers.go       | the addresses of its configured peers, by DNS
//	real*.go       | an HCA of the kernel, and the means to reset it
//	cutshort.go    | what to do about a reset that was cut short
//	inventory.go   | the list of HCAs that `ipoibd devices` prints
//
// # Identity
//
// The software HCA is its netdev: the GUID is made from the MAC when the netdev is first
// seen and stays while the netdev lives. A real HCA is known by its GUIDs and its PCI
// function, or by its netdev for Soft-RoCE, whatever it is called, once it has been open.
// Another one that has its name is another device; it is neither opened nor reset.
//
// # Inventory
//
// [System.Take] lists the HCAs that an interface can be on and says why one cannot be used.
// It reads what the kernel and the netdevs report, and opens for a moment each device about
// which they report nothing bad: that shows a missing library, a missing provider and
// missing permissions. It changes nothing and binds no port, and a daemon that runs on the
// device does not notice.
package backend
