//go:build vm && cgo && linux

package daemon

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/hca/verbs"
)

// resetEnv says, in a process of its own, how the device is reset.
const resetEnv = "TEST_IPOIBD_R17_RESET"

// What an HCA of the kernel takes to be opened again lies on no disk either:
// libibverbs has read its configuration and its drivers once, at the start.
func TestR17RealDeviceReset(t *testing.T) {
	if how := os.Getenv(resetEnv); how != "" {
		resetReal(t, config.Reset(how))
		return
	}
	for _, how := range []config.Reset{config.ResetNone, config.ResetLink} {
		t.Run("R17/"+string(how), func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestR17RealDeviceReset$", "-test.v")
			cmd.Env = append(os.Environ(), resetEnv+"="+string(how))
			out, err := cmd.CombinedOutput()
			t.Logf("%s", out)
			must(t, err)
		})
	}
}

func resetReal(t *testing.T, how config.Reset) {
	const name = "rxe0"
	underlay(t, "under0", 1)
	t.Cleanup(func() { must(t, netlink.LinkDel(find(t, "under0"))) }) // and the device on it
	must(t, netlink.RdmaLinkAdd(name, "rxe", "under0"))
	cfg := configure(t, "ib0")
	dev := &cfg.Devices[0]
	dev.HCA, dev.Reset, dev.Soft = name, how, config.Soft{}
	must(t, cfg.Validate())
	opts := options()
	opts.OpenRDMA, opts.Remove = verbs.Open, true
	resetWithoutDisk(t, cfg, opts)
	for _, library := range []string{"/libibverbs.so", "/librxe-"} {
		wholeInMemory(t, library)
	}
}

// wholeInMemory checks of a shared library that no page of it is left to be read:
// proc_pid_smaps(5).
func wholeInMemory(t *testing.T, library string) {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	must(t, err)
	var mapping, size string
	found := 0
	for line := range strings.Lines(string(smaps)) {
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch {
		case strings.Contains(field, "-"): // an address range
			mapping = line
		case !strings.Contains(mapping, library) || !strings.Contains(mapping, " r"):
		case field == "Size":
			size = value
		case field == "Rss":
			found++
			if value != size {
				t.Errorf("%s of %s in memory: %s", value, size, mapping)
			}
		}
	}
	if found == 0 {
		t.Errorf("%s is not mapped", library)
	}
}
