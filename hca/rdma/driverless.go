package rdma

import (
	"io/fs"
	"os"
	"path"
	"strings"
)

// classesOfHCAs are how the class of a PCI function begins that may be an HCA's
// (include/linux/pci_ids.h): network controllers, InfiniBand's among them, and
// InfiniBand's class of before.
var classesOfHCAs = []string{"0x02", "0x0c06"}

// Driverless returns the addresses of the PCI functions of that kind that have no
// driver: a reset that was cut short leaves one, but so does who wants it.
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
