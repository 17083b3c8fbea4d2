package verbs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"ipoibd/hca"
)

// sysVerbs has a folder for each verbs interface, whose node in devInfiniband
// libibverbs opens.
const (
	sysVerbs      = "/sys/class/infiniband_verbs"
	devInfiniband = "/dev/infiniband"
)

var errNoProvider = errors.New("libibverbs does not list it: is its driver installed, of Debian's package ibverbs-providers?")

// verbsOf returns the verbs interface, such as uverbs0, of the device that has a
// name now; empty for none.
func verbsOf(classDir, name string) string {
	files, _ := filepath.Glob(path.Join(classDir, "*", "ibdev"))
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == name {
			return path.Base(path.Dir(file))
		}
	}
	return ""
}

// unopened adds to hca.ErrNoDevice, of a device that the kernel has, why it cannot
// be opened, as libibverbs does not say: dir has the nodes of verbs interfaces.
func unopened(err error, dir, verbs string) error {
	if verbs == "" || !errors.Is(err, hca.ErrNoDevice) {
		return err
	}
	node, why := os.OpenFile(path.Join(dir, verbs), os.O_RDWR, 0)
	if why == nil {
		why = errors.Join(errNoProvider, node.Close())
	}
	return fmt.Errorf("%w; %w", err, why)
}
