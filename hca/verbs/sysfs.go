package verbs

import (
	"cmp"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"ipoibd/hca"
)

// sysClass has a folder for each RDMA device (Documentation/ABI/stable/sysfs-class-infiniband),
// sysVerbs for each verbs interface, whose node in devInfiniband libibverbs opens.
const (
	sysClass      = "/sys/class/infiniband"
	sysVerbs      = "/sys/class/infiniband_verbs"
	devInfiniband = "/dev/infiniband"
)

var errNoProvider = errors.New("libibverbs does not list it: is its driver installed, of Debian's package ibverbs-providers?")

// hindrance is why libibverbs, which does not say so itself, cannot open a device
// that the kernel has; nil where it has none of that name.
func hindrance(sysVerbs, devInfiniband, name string) error {
	files, _ := filepath.Glob(path.Join(sysVerbs, "*/ibdev"))
	for _, file := range files {
		if text, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(text)) != name {
			continue
		}
		node, err := os.OpenFile(path.Join(devInfiniband, path.Base(path.Dir(file))), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		return cmp.Or(node.Close(), errNoProvider)
	}
	return nil
}

// pciAddr returns the PCI address of a device, empty when it is on another bus.
func pciAddr(name string) string {
	device := path.Join(sysClass, name, "device")
	bus, err := os.Readlink(path.Join(device, "subsystem"))
	if err != nil || path.Base(bus) != "pci" {
		return ""
	}
	addr, _ := os.Readlink(device)
	return path.Base(addr)
}

// portCounters reads the counters of a device's ports, the drops of the driver
// among them: those of InfiniBand, and the driver's own. It skips what is no
// number.
func portCounters(name string) (out []hca.Counter) {
	for _, pattern := range []string{"counters", "hw_counters"} {
		files, _ := filepath.Glob(path.Join(sysClass, name, "ports/*", pattern, "*"))
		for _, file := range files {
			if c, ok := readCounter(file); ok {
				out = append(out, c)
			}
		}
	}
	return out
}

// readCounter reads .../ports/1/counters/port_rcv_errors as port1_port_rcv_errors.
// "lifespan" is a setting that lies among the driver's counters.
func readCounter(file string) (hca.Counter, bool) {
	port, name := path.Base(path.Dir(path.Dir(file))), path.Base(file)
	text, err := os.ReadFile(file)
	if err != nil || name == "lifespan" {
		return hca.Counter{}, false
	}
	value, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return hca.Counter{Name: "port" + port + "_" + name, Value: value}, err == nil
}
