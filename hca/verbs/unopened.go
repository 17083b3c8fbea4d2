package verbs

import (
	"errors"
	"fmt"
	"os"
	"path"

	"ipoibd/hca"
)

// devInfiniband has a device node for each verbs interface, which libibverbs opens.
const devInfiniband = "/dev/infiniband"

var errNoProvider = errors.New("libibverbs does not list it: " +
	"is its provider library installed (Debian's package ibverbs-providers)?")

// unopened adds to hca.ErrNoDevice why a device of the kernel cannot be opened, because
// libibverbs does not report that. dir contains the device nodes of verbs interfaces.
func unopened(err error, dir, verbs string) error {
	if verbs == "" || !errors.Is(err, hca.ErrNoDevice) {
		return err
	}
	node, why := os.OpenFile(path.Join(dir, verbs), os.O_RDWR, 0)
	if hca.Exhausted(why) { // libibverbs failed to find the device for the same reason
		return fmt.Errorf("open %s: %w: %w", verbs, hca.ErrNoMemory, why)
	}
	if why == nil {
		why = errors.Join(errNoProvider, node.Close())
	}
	return fmt.Errorf("%w; %w", err, why)
}
