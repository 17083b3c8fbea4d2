package verbs

import (
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"ipoibd/hca"
)

// sysClass has a folder for each RDMA device (Documentation/ABI/stable/sysfs-class-infiniband).
const sysClass = "/sys/class/infiniband"

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
