package rdma

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// classesOfHCAs are prefixes of the PCI classes that HCAs have (include/linux/pci_ids.h):
// network controllers, which include InfiniBand, and the former class of InfiniBand.
var classesOfHCAs = []string{"0x02", "0x0c06"}

// Driverless returns the addresses of the PCI functions of these classes that have no
// driver. An interrupted reset leaves such a function, but an administrator may also have
// unbound it on purpose.
func Driverless() []string { return driverless(os.DirFS("/sys")) }

func driverless(sys fs.FS) (out []string) {
	entries, _ := fs.ReadDir(sys, pciDevices)
	for _, e := range entries {
		dir := path.Join(pciDevices, e.Name())
		if _, err := fs.ReadLink(sys, path.Join(dir, "driver")); err != nil && mayBeHCA(sys, dir) {
			out = append(out, e.Name())
		}
	}
	return out
}

// mayBeHCA reports whether the function with a directory has one of the classes.
func mayBeHCA(sys fs.FS, dir string) bool {
	class := optional(sys, dir, "class")
	return slices.ContainsFunc(classesOfHCAs, func(c string) bool { return strings.HasPrefix(class, c) })
}
