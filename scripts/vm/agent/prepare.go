package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/scripts/vm/protocol"
)

// mounts are the file systems other than /dev. The root is in memory, so /tmp and
// /run are plain directories.
var mounts = []struct{ kind, path string }{
	{"proc", "/proc"},
	{"sysfs", "/sys"},
	{"debugfs", "/sys/kernel/debug"},
}

// sysctls make IPv6 addresses usable at once and keep the wire quiet.
var sysctls = map[string]string{
	"net/ipv6/conf/default/accept_dad":           "0",
	"net/ipv6/conf/all/accept_dad":               "0",
	"net/ipv6/conf/default/router_solicitations": "0",
	"kernel/panic_on_oops":                       "1",
	"kernel/hung_task_timeout_secs":              "0", // a loaded host is slow, not hung
}

func prepare() error {
	for _, m := range mounts {
		if err := unix.Mount(m.kind, m.path, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.path, err)
		}
	}
	for name, value := range sysctls {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0); err != nil {
			return err
		}
	}
	if err := loadModules("/modules"); err != nil {
		return err
	}
	return loopbackUp()
}

// loadModules loads every module in a directory, in the order of their names.
func loadModules(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := loadModule(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("load %s: %w", e.Name(), err)
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("finit_module", unix.FinitModule(int(f.Fd()), "", 0))
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

const (
	portLimit = 30 * time.Second // console module loaded -> port exists
	portPoll  = time.Millisecond
)

// openPort opens our virtio serial port, whose device appears shortly after its
// module was loaded.
func openPort() (*os.File, error) {
	for end := time.Now().Add(portLimit); time.Now().Before(end); time.Sleep(portPoll) {
		names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return nil, err
		}
		for _, path := range names {
			if name, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(name)) == protocol.Port {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(path)), os.O_RDWR, 0)
			}
		}
	}
	return nil, fmt.Errorf("no virtio serial port %s within %v", protocol.Port, portLimit)
}
