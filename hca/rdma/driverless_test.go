package rdma

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestDriverless(t *testing.T) {
	root := fakeSysfs(t) // the function in it has a driver
	classes := map[string]string{
		function: "0x020000", "0000:05:00.0": "0x020700", "0000:05:00.1": "0x0c0600", "0000:06:00.0": "0x030000", "0000:07:00.0": "",
	}
	for addr, class := range classes {
		dir := filepath.Join(root, pciDevices, addr)
		must(t, os.MkdirAll(dir, 0o755))
		must(t, os.WriteFile(filepath.Join(dir, "class"), []byte(class+"\n"), 0o644))
	}
	if got, want := driverless(os.DirFS(root)), []string{"0000:05:00.0", "0000:05:00.1"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := driverless(os.DirFS(t.TempDir())); got != nil {
		t.Errorf("without PCI: %v, want none", got)
	}
}
