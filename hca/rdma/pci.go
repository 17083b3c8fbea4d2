package rdma

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"ipoibd/hca"
)

// Folders of sysfs (Documentation/ABI/testing/sysfs-bus-pci).
const (
	pciDevices = "bus/pci/devices"
	pciDrivers = "bus/pci/drivers"
	pciProbe   = "bus/pci/drivers_probe"
)

// Function is a PCI function, below a mounted sysfs.
type Function struct {
	sys  *os.Root
	addr string
}

// OpenFunction returns the PCI function of an address, such as 0000:03:00.1.
// Errors: hca.ErrInvalid, hca.ErrNoDevice.
func OpenFunction(addr string) (*Function, error) { return openFunction("/sys", addr) }

func openFunction(sysfs, addr string) (*Function, error) {
	if !pciPattern.MatchString(addr) {
		return nil, fmt.Errorf("PCI function %q: %w", addr, hca.ErrInvalid)
	}
	sys, err := os.OpenRoot(sysfs)
	if err != nil {
		return nil, err
	}
	if _, err := sys.Stat(path.Join(pciDevices, addr)); err != nil {
		return nil, errors.Join(fmt.Errorf("PCI function %s: %w", addr, hca.ErrNoDevice), sys.Close())
	}
	return &Function{sys, addr}, nil
}

// Close releases the function. Harmless when repeated.
func (f *Function) Close() error { return f.sys.Close() }

// Rebind takes the function from its driver and gives it back, by which the
// driver sets it up anew. It blocks as long as a driver does: for some until
// everybody has closed what they have open of it. When it fails half way, the
// error says how to go on by hand.
func (f *Function) Rebind() error {
	return f.withoutDriver(func() error { return nil })
}

// Probe gives a function that has no driver to the one that is for it, which a Rebind
// or Reset that was cut short leaves to do.
func (f *Function) Probe() error {
	if _, err := f.sys.Readlink(path.Join(pciDevices, f.addr, "driver")); err == nil {
		return nil
	}
	return f.write(pciProbe, f.addr)
}

// CanReset reports whether the function itself can be reset: alone, and by a means
// that the kernel found.
func (f *Function) CanReset() bool {
	_, err := f.sys.Stat(f.resetFile())
	return err == nil
}

func (f *Function) resetFile() string { return path.Join(pciDevices, f.addr, "reset") }

// Reset is Rebind with a reset of the function itself in between, by the best
// means that it has: not every driver lives through a reset of what it drives.
// Errors: hca.ErrInvalid where it has no means.
func (f *Function) Reset() error {
	if !f.CanReset() {
		return fmt.Errorf("PCI function %s cannot be reset alone: %w", f.addr, hca.ErrInvalid)
	}
	return f.withoutDriver(func() error { return f.write(f.resetFile(), "1") })
}

// withoutDriver does what is to be done while the function has no driver. It has
// it back afterwards, whatever that ended with.
func (f *Function) withoutDriver(do func() error) error {
	link, err := f.sys.Readlink(path.Join(pciDevices, f.addr, "driver"))
	if err != nil {
		return fmt.Errorf("PCI function %s has no driver: %w", f.addr, hca.ErrInvalid)
	}
	driver := path.Join(pciDrivers, path.Base(link))
	if err := f.write(path.Join(driver, "unbind"), f.addr); err != nil {
		return err
	}
	done := do()
	if err := f.write(path.Join(driver, "bind"), f.addr); err != nil {
		return errors.Join(done, fmt.Errorf("%w; it has no driver now: echo %s > /sys/%s/bind", err, f.addr, driver))
	}
	return done
}

// Netdevs are the names of the netdevs that the function has, its drivers' own
// ones and those of a virtio device on it.
func (f *Function) Netdevs() (out []string) {
	for _, pattern := range []string{"net/*", "virtio*/net/*"} {
		found, _ := fs.Glob(f.sys.FS(), path.Join(pciDevices, f.addr, pattern))
		for _, name := range found {
			out = append(out, path.Base(name))
		}
	}
	return out
}

// write writes an attribute, in one piece.
func (f *Function) write(name, text string) error {
	file, err := f.sys.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteString(text)
	return err
}
