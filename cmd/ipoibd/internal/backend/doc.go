// Package backend provides the HCAs: the software HCA and the HCAs of the kernel, behind one
// interface, [HCA].
//
// A [Slot] holds one HCA. It lists the HCA under its identity, opens it and resets it, which
// is all that package device needs. It also injects faults: plans of [ipoibd/hca/faults]
// outlive the instance that they were made for, and the HCA can be pulled out and replaced
// by another one.
//
// # Identity
//
// The software HCA is identified by its netdev: its GUID is derived from the MAC when the
// netdev is first seen, and does not change as long as the netdev exists. Once a real HCA has
// been opened, it is identified by its GUIDs and its PCI function, or by its netdev in the
// case of Soft-RoCE, not by its name. Another HCA with the same name is another device, which
// is neither opened nor reset.
//
// # Adding a backend
//
// A backend for another kind of HCA needs these files:
//
//	config/device.go        | the kind, and its row of the table kinds: names, settings
//	backend/backend.go      | its row of the table backends; its name in a status
//	backend/<kind>.go       | the implementation of HCA, and the entries of the inventory
//	docs/status.schema.json | that name
//	scripts/imports.md      | what package backend imports for it
//
// All other code asks the tables instead of comparing names. The inventory lists HCAs of the new
// kind only on a host that has some, after those of the other kinds. A setting that only the new
// kind has is a field of config.Device, with a row in config.DeviceFields.
//
// # Inventory
//
// [System.Take] lists the HCAs that an interface can use, with the reasons why one cannot be
// used. It reads what the kernel and the netdevs report. If they report no trouble, it opens
// the device for a moment, which reveals a missing library, a missing provider or missing
// permissions. It binds the UDP port only if that is free, and changes nothing, so it does
// not disturb a daemon that uses the device.
package backend
