//go:build vm && cgo && linux

package verbs_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/hcatest/station"
	"ipoibd/hca/verbs"
	"ipoibd/hca/verbs/verbstest"
)

// If a process may not lock enough memory, the error says how much it needs, and the
// process can continue.
func TestMemoryLockTooSmall(t *testing.T) {
	const limit, fits, tooMuch = 1 << 20, 64 << 10, 4 << 20
	if os.Getenv(aloneEnv) == "" {
		unprivileged(t, limit)
		return
	}
	s := &station.Station{TB: t, Dev: verbstest.Open(t, verbstest.EnvA)}
	t.Cleanup(func() { s.Must(s.Dev.Close(), "close device") })
	pd, err := s.Dev.AllocPD()
	s.Made(pd, err, "PD")
	mr, err := pd.AllocMR(fits, 0)
	s.Made(mr, err, "MR within the limit")
	_, err = pd.AllocMR(tooMuch, 0)
	if !errors.Is(err, hca.ErrNoMemory) || !strings.Contains(err.Error(), "4259840 bytes") || !strings.Contains(err.Error(), "1048576") {
		t.Errorf("error %v, want ErrNoMemory with the size and the limit", err)
	}
	mr, err = pd.AllocMR(fits, 0)
	s.Made(mr, err, "MR after the refusal")
}

// unprivileged runs the calling test again without capabilities and with a limit of
// locked memory.
func unprivileged(t *testing.T, limit uint64) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}, &old); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), aloneEnv+"=1")
	child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := child.CombinedOutput()
	if err := unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &old, nil); err != nil {
		t.Fatal(err)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v: %s", err, out)
	}
}

// A device whose netdev is removed reports that, and can be closed. The kernel
// finishes the removal of the netdev only after that.
func TestRemovedDeviceCloses(t *testing.T) {
	const netdev, device = "verbsgone", "rxegone"
	must := func(err error, what string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: netdev}, PeerName: netdev + "2"}
	must(netlink.LinkAdd(veth), "add veth")
	must(netlink.LinkSetUp(veth), "set up")
	must(netlink.RdmaLinkAdd(device, "rxe", netdev), "add rxe")
	dev, err := verbs.Open(device)
	must(err, "open")
	removed := make(chan error, 1)
	t.Run("use", func(t *testing.T) { // closes everything, so that the removal can finish
		s := station.New(t, dev, 0)
		go func() { removed <- netlink.LinkDel(veth) }()
		awaitGone(s)
	})
	must(<-removed, "delete veth")
	if _, err := verbs.Open(device); !errors.Is(err, hca.ErrNoDevice) {
		t.Errorf("open after the removal: %v", err)
	}
}

// A device that is renamed, as udev does soon after its arrival, continues to work,
// and can be opened again by its new name only.
func TestRenamedDevice(t *testing.T) {
	const netdev, before, after = "verbsname", "rxebefore", "rxeafter"
	must := func(err error, what string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: netdev}, PeerName: netdev + "2"}
	must(netlink.LinkAdd(veth), "add veth")
	t.Cleanup(func() { must(netlink.LinkDel(veth), "delete veth") }) // waits until the device is closed
	must(netlink.RdmaLinkAdd(before, "rxe", netdev), "add rxe")
	link, err := netlink.RdmaLinkByName(before)
	must(err, "find rxe")
	opened := func(name string) hca.Device {
		dev, err := verbs.Open(name)
		must(err, "open "+name)
		t.Cleanup(func() { must(dev.Close(), "close") })
		return dev
	}
	dev := opened(before)
	must(netlink.RdmaLinkSetName(link, after), "rename")
	if port, err := dev.QueryPort(1); err != nil || len(port.PKeys) == 0 {
		t.Errorf("query port after the renaming: %+v, %v", port, err)
	}
	if n := len(dev.Counters()); n < 2 {
		t.Errorf("%d counters after the renaming", n)
	}
	must(dev.Close(), "close")
	if _, err := opened(after).QueryPort(1); err != nil {
		t.Errorf("query port of %s: %v", after, err)
	}
	if dev, err := verbs.Open(before); !errors.Is(err, hca.ErrNoDevice) {
		t.Errorf("open by the old name: %v", errors.Join(err, dev.Close()))
	}
}

// awaitGone waits until the device reports that it is gone.
func awaitGone(s *station.Station) {
	s.Helper()
	for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
		if _, err := s.Dev.QueryPort(1); errors.Is(err, hca.ErrIO) {
			return
		}
	}
	s.Error("the device does not report that it is gone")
}
