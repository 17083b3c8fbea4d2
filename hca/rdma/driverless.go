package rdma

import (
	"io/fs"
	"os"
	"path"
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
		class := optional(sys, dir, "class")
		_, err := fs.ReadLink(sys, path.Join(dir, "driver"))
		for _, c := range classesOfHCAs {
			if err != nil && strings.HasPrefix(class, c) {
				out = append(out, e.Name())
			}
		}
	}
	return out
}
