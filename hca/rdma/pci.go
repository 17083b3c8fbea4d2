package rdma

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"ipoibd/hca"
)

// Directories of sysfs (Documentation/ABI/testing/sysfs-bus-pci).
const (
	pciDevices = "bus/pci/devices"
	pciDrivers = "bus/pci/drivers"
	pciProbe   = "bus/pci/drivers_probe"
)

// Function is a PCI function in a mounted sysfs.
type Function struct {
	sys  *os.Root
	addr string
}

// OpenFunction returns the PCI function at an address, such as 0000:03:00.1.
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

// Close releases the function. Idempotent.
func (f *Function) Close() error { return f.sys.Close() }

// ErrUnbound means that a function has no driver, and so no device.
var ErrUnbound = errors.New("the function has no driver now")

// Rebind unbinds the function from its driver and binds it again, so that the driver
// initializes it. It blocks as long as the driver does; some drivers wait until every user
// has closed the device. If it fails half-way, the error is [ErrUnbound], and says how to
// continue manually.
func (f *Function) Rebind() error {
	return f.withoutDriver(func() error { return nil })
}

// Probe binds a function without a driver to the driver that matches it. A Rebind or
// Reset that was cut short leaves a function without a driver. Since its address may come from a file that others
// share, a function of another kind is left alone. Errors: [ErrUnbound], hca.ErrInvalid.
func (f *Function) Probe() error {
	if f.Bound() {
		return nil
	}
	if !mayBeHCA(f.sys.FS(), path.Join(pciDevices, f.addr)) {
		return fmt.Errorf("PCI function %s is no network controller: %w", f.addr, hca.ErrInvalid)
	}
	if err := f.write(pciProbe, f.addr); err != nil {
		return fmt.Errorf("%w; %w", err, ErrUnbound)
	}
	return nil
}

// Bound reports whether the function has a driver.
func (f *Function) Bound() bool {
	_, err := f.sys.Readlink(path.Join(pciDevices, f.addr, "driver"))
	return err == nil
}

// CanReset reports whether the kernel has a method to reset this function alone.
func (f *Function) CanReset() bool {
	_, err := f.sys.Stat(f.resetFile())
	return err == nil
}

func (f *Function) resetFile() string { return path.Join(pciDevices, f.addr, "reset") }

// Reset is Rebind with a reset of the function itself in between, with the best method that
// it has. Not every driver survives a reset of its function, so the function has no driver
// during the reset. Errors: hca.ErrInvalid if the function has no reset method.
func (f *Function) Reset() error {
	if !f.CanReset() {
		return fmt.Errorf("PCI function %s cannot be reset alone: %w", f.addr, hca.ErrInvalid)
	}
	return f.withoutDriver(func() error { return f.write(f.resetFile(), "1") })
}

// withoutDriver calls do while the function has no driver, and binds the driver again, even
// if do fails.
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
		err = fmt.Errorf("%w; %w; to bind it: echo %s > /sys/%s/bind", err, ErrUnbound, f.addr, driver)
		return errors.Join(done, err)
	}
	return done
}

// Netdevs returns the names of the function's netdevs, including those of a virtio device on
// it.
func (f *Function) Netdevs() (out []string) {
	for _, pattern := range []string{"net/*", "virtio*/net/*"} {
		found, _ := fs.Glob(f.sys.FS(), path.Join(pciDevices, f.addr, pattern))
		for _, name := range found {
			out = append(out, path.Base(name))
		}
	}
	return out
}

// write writes an attribute with one system call.
func (f *Function) write(name, text string) error {
	file, err := f.sys.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteString(text)
	return err
}
