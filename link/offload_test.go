package link_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// queueLen returns the length of the queue of ib0.
func queueLen(t *testing.T) int {
	t.Helper()
	l, err := netlink.LinkByName("ib0")
	must(t, err)
	return l.Attrs().TxQLen
}

// Close and Open turn the offloads off, which belong to the device: also those of a process
// that was killed.
func TestOffloadsEndWithTheirHolder(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, _ := openTAP(t, spec("ib0"))
	requireFeatures(t, "at first", "off")
	if got, err := tap.SetOffloads(link.AllOffloads); err != nil || got&link.OffloadTSO != link.OffloadTSO {
		t.Fatalf("SetOffloads = %v, %v", got, err)
	}
	requireFeatures(t, "when set", "on")
	must(t, tap.Close())
	requireFeatures(t, "after Close", "off")

	fd, err := openTun()
	must(t, err)
	must(t, attach(fd, "ib0"))
	must(t, unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, int(link.AllOffloads)))
	must(t, unix.Close(fd))
	requireFeatures(t, "after a process that did not turn them off", "on")
	_, adopted := openTAP(t, spec("ib0"))
	if !adopted {
		t.Error("not adopted")
	}
	requireFeatures(t, "after adoption", "off")
}

// requireFeatures checks the offloads of ib0 with ethtool.
func requireFeatures(t *testing.T, when, want string) {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), "ethtool", "-k", "ib0").CombinedOutput()
	must(t, err)
	out := string(text)
	for _, feature := range []string{"tx-checksum-ip-generic", "tx-tcp-segmentation", "tx-tcp6-segmentation"} {
		if !strings.Contains(out, feature+": "+want) {
			t.Errorf("%s: want %s: %s\n%s", when, feature, want, out)
		}
	}
	if !strings.Contains(out, "tx-tcp-ecn-segmentation: off") {
		t.Errorf("%s: segmentation with ECN is on\n%s", when, out)
	}
}

// With large frames the queue is shorter, unless the host has set its length.
func TestQueueIsShorterWithLargeFrames(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s := spec("ib0")
	s.TxQueueLen, s.LargeTxQueueLen = 700, 300
	tap, _ := openTAP(t, s)
	set := func(tap *link.TAP, o link.Offloads, want int) {
		t.Helper()
		if _, err := tap.SetOffloads(o); err != nil || queueLen(t) != want {
			t.Errorf("with offloads %v: %v, %d frames; want %d", o, err, queueLen(t), want)
		}
	}
	set(tap, link.OffloadCsum, 700)
	set(tap, link.AllOffloads, 300)
	set(tap, link.AllOffloads, 300)
	set(tap, 0, 700)
	set(tap, link.OffloadCsum|link.OffloadTSO4, 300)
	must(t, tap.Close())
	tap, adopted := openTAP(t, s)
	if !adopted || queueLen(t) != 700 {
		t.Errorf("adopted %v, %d frames; want 700 after the adoption", adopted, queueLen(t))
	}
	l, err := netlink.LinkByName("ib0")
	must(t, err)
	must(t, netlink.LinkSetTxQLen(l, 555))
	set(tap, link.AllOffloads, 555)
	set(tap, 0, 555)
}

func TestDefaultQueueLengths(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s := spec("ib0")
	s.TxQueueLen = 0
	tap, _ := openTAP(t, s)
	if n := queueLen(t); n != link.DefaultTxQueueLen {
		t.Errorf("%d frames, want %d", n, link.DefaultTxQueueLen)
	}
	if _, err := tap.SetOffloads(link.AllOffloads); err != nil || queueLen(t) != link.DefaultLargeTxQueueLen {
		t.Errorf("%v, %d frames, want %d", err, queueLen(t), link.DefaultLargeTxQueueLen)
	}
}

// The kernel lets no host raise the limit of large frames above that of MaxFrame.
func TestHostCannotRaiseTheLimitOfFrames(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	openTAP(t, spec("ib0"))
	for _, limit := range []string{"gso_max_size", "gso_ipv4_max_size"} {
		if out, err := runIP(t, "link", "set", "ib0", limit, "65537"); err == nil {
			t.Errorf("%s 65537 was accepted: %s", limit, out)
		}
	}
}

func TestOffloadsString(t *testing.T) {
	for o, want := range map[link.Offloads]string{
		0: "none", link.OffloadCsum: "csum", link.AllOffloads: "csum tso4 tso6 uso4 uso6", unix.TUN_F_TSO_ECN: "ecn",
	} {
		if got := o.String(); got != want {
			t.Errorf("%#x: %q, want %q", uint32(o), got, want)
		}
	}
}
