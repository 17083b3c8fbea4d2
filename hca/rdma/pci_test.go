package rdma

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ipoibd/hca"
)

const function = "0000:04:00.1"

// fakeSysfs creates the folders of a function with a driver and netdevs.
func fakeSysfs(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"/net/ens4", "/virtio1/net/eth1"} {
		must(t, os.MkdirAll(filepath.Join(root, pciDevices, function+dir), 0o755))
	}
	driver := filepath.Join(root, pciDrivers, "mlx5_core")
	must(t, os.MkdirAll(driver, 0o755))
	must(t, os.Symlink("../../drivers/mlx5_core", filepath.Join(root, pciDevices, function, "driver")))
	for _, name := range []string{driver + "/unbind", driver + "/bind", filepath.Join(root, pciDevices, function, "reset")} {
		must(t, os.WriteFile(name, nil, 0o644))
	}
	return root
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, root string) *Function {
	t.Helper()
	f, err := openFunction(root, function)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	return f
}

func TestFunctionIsReboundAndReset(t *testing.T) {
	root := fakeSysfs(t)
	f := open(t, root)
	must(t, f.Reset())
	for name, want := range map[string]string{
		pciDrivers + "/mlx5_core/unbind":       function,
		pciDrivers + "/mlx5_core/bind":         function,
		pciDevices + "/" + function + "/reset": "1",
	} {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	if !f.Bound() {
		t.Error("the function has no driver")
	}
	must(t, os.Remove(filepath.Join(root, pciDevices, function, "driver")))
	if f.Bound() {
		t.Error("the function has a driver that was removed")
	}
	if got, want := f.Netdevs(), []string{"ens4", "eth1"}; !slices.Equal(got, want) {
		t.Errorf("netdevs %v, want %v", got, want)
	}
}

// If the reset of a function fails, its driver is bound again.
func TestFunctionThatFailsHasItsDriver(t *testing.T) {
	root := fakeSysfs(t)
	f := open(t, root)
	reset := filepath.Join(root, pciDevices, function, "reset")
	must(t, os.Remove(reset))
	must(t, os.Mkdir(reset, 0o755))
	if err := f.Reset(); err == nil {
		t.Error("no error")
	}
	if got, err := os.ReadFile(filepath.Join(root, pciDrivers, "mlx5_core/bind")); err != nil || string(got) != function {
		t.Errorf("bind: %q, %v, want %q", got, err, function)
	}
}

func TestFunctionRefusals(t *testing.T) {
	root := fakeSysfs(t)
	f := open(t, root)
	if !f.CanReset() {
		t.Error("CanReset of a function with a reset method is false")
	}
	must(t, os.Remove(filepath.Join(root, pciDevices, function, "reset")))
	if f.CanReset() {
		t.Error("the function can be reset without a reset method")
	}
	if err := f.Reset(); !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("without a reset method: %v", err)
	}
	must(t, os.Remove(filepath.Join(root, pciDrivers, "mlx5_core/bind")))
	if err := f.Rebind(); !errors.Is(err, ErrUnbound) || !strings.HasSuffix(err.Error(), "to bind it: echo 0000:04:00.1 > /sys/bus/pci/drivers/mlx5_core/bind") {
		t.Errorf("error after a failed bind: %v", err)
	}
	must(t, os.Remove(filepath.Join(root, pciDevices, function, "driver")))
	if err := f.Rebind(); !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("no driver: %v, want %v", err, hca.ErrInvalid)
	}
	for _, c := range []struct {
		addr string
		want error
	}{{"0000:04:00.2", hca.ErrNoDevice}, {"../../x", hca.ErrInvalid}, {"", hca.ErrInvalid}, {function + "/..", hca.ErrInvalid}} {
		if _, err := openFunction(root, c.addr); !errors.Is(err, c.want) {
			t.Errorf("%q: %v, want %v", c.addr, err, c.want)
		}
	}
}

// A function that a reset left without a driver is probed; one that has a driver, and one that is no network
// controller, are left alone.
func TestR21FunctionIsProbed(t *testing.T) {
	root := fakeSysfs(t)
	f := open(t, root)
	must(t, f.Probe())
	must(t, os.WriteFile(filepath.Join(root, pciProbe), nil, 0o644))
	must(t, os.Remove(filepath.Join(root, pciDevices, function, "driver")))
	class := filepath.Join(root, pciDevices, function, "class")
	must(t, os.WriteFile(class, []byte("0x010802\n"), 0o644)) // of NVMe
	if err := f.Probe(); !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("of a disk: %v, want %v", err, hca.ErrInvalid)
	}
	must(t, os.WriteFile(class, []byte("0x020000\n"), 0o644))
	must(t, f.Probe())
	if got, err := os.ReadFile(filepath.Join(root, pciProbe)); err != nil || string(got) != function {
		t.Errorf("drivers_probe: %q, %v, want %q", got, err, function)
	}
	must(t, os.Remove(filepath.Join(root, pciProbe)))
	if err := f.Probe(); !errors.Is(err, ErrUnbound) {
		t.Errorf("a probe that fails: %v, want %v", err, ErrUnbound)
	}
}
