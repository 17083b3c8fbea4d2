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

// A process that may lock too little hears how much it needs, and is none the
// worse for it.
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
		t.Errorf("%v", err)
	}
	mr, err = pd.AllocMR(fits, 0)
	s.Made(mr, err, "MR after the refusal")
}

// unprivileged runs the calling test again without any capability, with a limit
// of locked memory.
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

// A device whose netdev is taken away says so, and closes; only then is the
// netdev gone for the kernel.
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
	t.Run("use", func(t *testing.T) { // closes everything, which lets the removal end
		s := station.New(t, dev, 0)
		go func() { removed <- netlink.LinkDel(veth) }()
		awaitGone(s)
	})
	must(<-removed, "delete veth")
	if _, err := verbs.Open(device); !errors.Is(err, hca.ErrNoDevice) {
		t.Errorf("open once it is gone: %v", err)
	}
}

// A device that gets another name, as udev gives it one a moment after it came,
// goes on to answer, and is opened again by its new name alone.
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
		t.Errorf("query port once it is renamed: %+v, %v", port, err)
	}
	if n := len(dev.Counters()); n < 2 {
		t.Errorf("%d counters once it is renamed", n)
	}
	must(dev.Close(), "close")
	if _, err := opened(after).QueryPort(1); err != nil {
		t.Errorf("query port of %s: %v", after, err)
	}
	if dev, err := verbs.Open(before); !errors.Is(err, hca.ErrNoDevice) {
		t.Errorf("open by the old name: %v", errors.Join(err, dev.Close()))
	}
}

// awaitGone waits until the device says that it is gone.
func awaitGone(s *station.Station) {
	s.Helper()
	for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
		if _, err := s.Dev.QueryPort(1); errors.Is(err, hca.ErrIO) {
			return
		}
	}
	s.Error("the device does not say that it is gone")
}
