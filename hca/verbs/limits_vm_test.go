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
