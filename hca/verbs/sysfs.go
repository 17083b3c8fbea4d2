package verbs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"ipoibd/hca"
)

// Directories with an entry for each RDMA device, and for each verbs interface
// (Documentation/ABI/stable/sysfs-class-infiniband).
const (
	sysClass = "/sys/class/infiniband"
	sysVerbs = "/sys/class/infiniband_verbs"
)

// openSysfs opens the directory of a device. It remains the directory of that device if the
// device is renamed, which udev may do soon after the device appears, and if another device
// gets its name.
func openSysfs(name string) (*os.Root, error) {
	root, err := os.OpenRoot(path.Join(sysClass, name))
	if err != nil {
		return nil, sysfsError(verbOpen, name, err)
	}
	return root, nil
}

// sysfsError returns the error for a file, with the sentinel of its errno if there is one.
func sysfsError(verb, on string, err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return failed(verb, on, errno)
	}
	return refused(verb, on, fmt.Errorf("%w: %w", hca.ErrInvalid, err))
}

// verbsOf returns the verbs interface, such as uverbs0, of the device that has a name now,
// or "" if there is none. libibverbs cannot be asked by name: it continues to use the name
// with which it listed a device first (same_sysfs_dev in libibverbs/init.c).
func verbsOf(classDir, name string) (string, error) {
	interfaces, err := os.ReadDir(classDir)
	if hca.Exhausted(err) {
		return "", sysfsError(verbOpen, name, err)
	}
	for _, i := range interfaces {
		text, err := os.ReadFile(path.Join(classDir, i.Name(), "ibdev"))
		if hca.Exhausted(err) {
			return "", sysfsError(verbOpen, name, err)
		}
		if err == nil && strings.TrimSpace(string(text)) == name {
			return i.Name(), nil
		}
	}
	return "", nil
}

// readPKeys reads the P_Key table of a port, such as "0xffff" in ports/1/pkeys/0.
// If the table cannot be read, the device was removed, or this process lacks the
// resources to read it (ErrNoMemory).
func readPKeys(device fs.FS, port uint8, n int) ([]hca.PKey, error) {
	keys := make([]hca.PKey, n)
	for i := range keys {
		text, err := fs.ReadFile(device, fmt.Sprintf("ports/%d/pkeys/%d", port, i))
		if hca.Exhausted(err) {
			return nil, fmt.Errorf("%w: %w", hca.ErrNoMemory, err)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", hca.ErrIO, err)
		}
		key, err := strconv.ParseUint(strings.TrimSpace(string(text)), 0, 16)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", hca.ErrInvalid, err)
		}
		keys[i] = hca.PKey(key)
	}
	return keys, nil
}

// portCounters reads the counters of a device's ports: InfiniBand's, and the driver's
// own, including its drops. It skips files that do not contain a number.
func portCounters(device fs.FS) (out []hca.Counter) {
	for _, pattern := range []string{"counters", "hw_counters"} {
		files, _ := fs.Glob(device, path.Join("ports/*", pattern, "*"))
		for _, file := range files {
			if c, ok := readCounter(device, file); ok {
				out = append(out, c)
			}
		}
	}
	return out
}

// readCounter reads ports/1/counters/port_rcv_errors as port1_port_rcv_errors.
// "lifespan" is a setting in the directory of the driver's counters.
func readCounter(device fs.FS, file string) (hca.Counter, bool) {
	port, name := path.Base(path.Dir(path.Dir(file))), path.Base(file)
	text, err := fs.ReadFile(device, file)
	if err != nil || name == "lifespan" {
		return hca.Counter{}, false
	}
	value, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return hca.Counter{Name: "port" + port + "_" + name, Value: value}, err == nil
}
