package udp_test

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// The sockets of a Reserve that was handed over keep receiving: no datagram is lost or counted twice,
// also while the former transport is closed, and the source port stays.
func TestInherit(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	reserve := new(udp.Reserve)
	if _, _, err := reserve.HandOver(nil); !errors.Is(err, udp.ErrNotBound) {
		t.Errorf("a Reserve without sockets: %v", err)
	}
	a, b := openHost(t, nsA, 0, udp.Config{Reserve: reserve}), openHost(t, nsB, 1, udp.Config{})
	send := func(text string) {
		sendOne(t, b, transport.Packet{Src: b.IPv4, Dst: a.IPv4, Vec: [][]byte{[]byte(text)}})
	}
	send("first")
	recvOne(t, a)
	source := a.SrcPort()
	for round := range 3 {
		old := a.Transport.(*udp.Transport)
		send("before")
		if got := counterOf(t, a, "socket_drops"); got != 0 {
			t.Errorf("socket_drops = %d, want 0", got)
		}
		handed, fds, err := reserve.HandOver([]uint32{old.Drops()})
		if err != nil {
			t.Fatal(err)
		}
		if len(handed.Lanes) != 1 || len(fds) != 2 || handed.Lanes[0].Source != source {
			t.Fatalf("%+v with %v", handed, fds)
		}
		next := new(udp.Reserve)
		if err := next.Inherit(handed, fds); err != nil {
			t.Fatal(err)
		}
		send("between")
		reserve.GiveUp()
		if err := errors.Join(old.Close(), reserve.Close()); err != nil {
			t.Fatal(err)
		}
		send("after")
		reserve = next
		a = openHost(t, nsA, 0, udp.Config{Reserve: reserve})
		send("last")
		for _, want := range []string{"before", "between", "after", "last"} {
			if got := recvOne(t, a); string(got.Data) != want {
				t.Errorf("round %d: received %q, want %q", round, got.Data, want)
			}
		}
		if a.SrcPort() != source {
			t.Errorf("source port %d, was %d", a.SrcPort(), source)
		}
	}
	// A transport that is opened again later begins as after any reset.
	send("left in the queue")
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	a = openHost(t, nsA, 0, udp.Config{Reserve: reserve})
	send("new")
	if got := recvOne(t, a); string(got.Data) != "new" {
		t.Errorf("received %q after a reset", got.Data)
	}
	if err := errors.Join(a.Close(), reserve.Close()); err != nil {
		t.Fatal(err)
	}
	if !canBind(t, nsA, "", [4]byte{}, udp.Port) {
		t.Error("the port is still taken after Close")
	}
}

// The groups stay joined from before the former transport leaves them until the next one has joined.
func TestMembershipsAreHandedOver(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	group := netip.MustParseAddr("239.1.2.3")
	reserve := new(udp.Reserve)
	a, b := openHost(t, nsA, 0, udp.Config{Reserve: reserve}), openHost(t, nsB, 1, udp.Config{})
	if err := a.Join(group); err != nil {
		t.Fatal(err)
	}
	old := a.Transport.(*udp.Transport)
	handed, fds, err := reserve.HandOver([]uint32{old.Drops()})
	if err != nil {
		t.Fatal(err)
	}
	members, err := old.Memberships()
	if err != nil || len(members) != 1 {
		t.Fatalf("%v, %v", members, err)
	}
	next := new(udp.Reserve)
	if err := next.Inherit(handed, fds); err != nil {
		t.Fatal(err)
	}
	reserve.GiveUp()
	old.GiveUpMemberships()
	if err := errors.Join(old.Leave(group), old.Close(), reserve.Close()); err != nil {
		t.Fatal(err)
	}
	send := func(text string) {
		sendOne(t, b, transport.Packet{Src: b.IPv4, Dst: group, Vec: [][]byte{[]byte(text)}})
	}
	send("between")
	a = openHost(t, nsA, 0, udp.Config{Reserve: next})
	if err := a.Join(group); err != nil {
		t.Fatal(err)
	}
	for _, fd := range members {
		_ = unix.Close(fd)
	}
	send("after")
	for _, want := range []string{"between", "after"} {
		if got := recvOne(t, a); string(got.Data) != want {
			t.Errorf("received %q, want %q", got.Data, want)
		}
	}
}

// Descriptors that are not the sockets that were described are refused, and closed.
func TestInheritChecks(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, _ := nstest.Pair(t, 1500)
	reserve := new(udp.Reserve)
	openHost(t, ns, 0, udp.Config{Reserve: reserve})
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	for name, change := range map[string]func(*udp.Handed, []int) []int{
		"no lane":        func(h *udp.Handed, fds []int) []int { h.Lanes = nil; return fds },
		"too many lanes": func(h *udp.Handed, fds []int) []int { h.Lanes = slices.Repeat(h.Lanes, 9); return fds },
		"swapped":        func(_ *udp.Handed, fds []int) []int { slices.Reverse(fds); return fds },
		"another netdev": func(h *udp.Handed, fds []int) []int { h.Index++; return fds },
		"another port":   func(h *udp.Handed, fds []int) []int { h.Lanes[0].Source++; return fds },
		"another family": func(h *udp.Handed, fds []int) []int { h.Lanes[0].IPv6 = !h.Lanes[0].IPv6; return fds },
		"no descriptor":  func(_ *udp.Handed, fds []int) []int { _ = unix.Close(fds[1]); return fds[:1] },
		"not a socket": func(_ *udp.Handed, fds []int) []int {
			_ = unix.Dup3(int(os.Stdin.Fd()), fds[0], unix.O_CLOEXEC)
			return fds
		},
		"a TCP socket":   func(_ *udp.Handed, fds []int) []int { replace(t, fds[0], unix.SOCK_STREAM); return fds },
		"an unbound one": func(_ *udp.Handed, fds []int) []int { replace(t, fds[1], unix.SOCK_DGRAM); return fds },
	} {
		before := files()
		handed, fds, err := reserve.HandOver([]uint32{0})
		if err != nil {
			t.Fatal(err)
		}
		handed.Lanes = slices.Clone(handed.Lanes)
		fds = change(&handed, fds)
		if err := new(udp.Reserve).Inherit(handed, fds); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
		if now := files(); now != before {
			t.Errorf("%s: %d descriptors are open, were %d", name, now, before)
		}
	}
}

// replace puts another socket in the place of a descriptor.
func replace(t *testing.T, fd, kind int) {
	t.Helper()
	other, err := unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other)
	if err := unix.Dup3(other, fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
}

// A group that is being left, which waits for the kernel's lock of all interfaces, does not delay a hand-over.
func TestMembershipsAreHandedOverWhileOneEnds(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, _ := nstest.Pair(t, 1500)
	group := netip.MustParseAddr("239.1.2.3")
	tr := openHost(t, ns, 0, udp.Config{}).Transport.(*udp.Transport)
	if err := tr.Join(group); err != nil {
		t.Fatal(err)
	}
	release := ns.HoldRTNL(nstest.Dev)
	left := make(chan error, 1)
	go func() { left <- tr.Leave(group) }()
	time.Sleep(100 * time.Millisecond)
	start := time.Now()
	members, err := tr.Memberships()
	if err != nil || len(members) != 1 {
		t.Fatalf("%v, %v", members, err)
	}
	tr.GiveUpMemberships()
	took := time.Since(start)
	for _, fd := range members {
		_ = unix.Close(fd)
	}
	select {
	case err := <-left:
		t.Errorf("the group was left without the lock, so the test proves nothing: %v", err)
	default:
	}
	release()
	if err := <-left; err != nil {
		t.Error(err)
	}
	t.Logf("handed over within %v", took)
	if took > time.Second {
		t.Errorf("the hand-over took %v", took)
	}
}
