package udp_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/kernel/capsule"
	"ipoibd/link/linktest/nstest"
)

// The sockets of a Reserve that was handed over keep receiving: no datagram is lost or counted twice,
// also while the former transport is closed, and the source port stays.
func TestImport(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	reserve := new(udp.Reserve)
	w := capsule.NewWriter()
	if parts, _, _ := w.Contents(); reserve.Export(w, nil) != nil || len(parts) > 0 {
		t.Errorf("a Reserve without sockets exports %v", parts)
	}
	a, b := openHost(t, nsA, 0, udp.Config{Reserve: reserve}), openHost(t, nsB, 1, udp.Config{})
	send := func(text string) {
		sendOne(t, b, transport.Packet{Src: b.IPv4, Dst: a.IPv4, Data: []byte(text)})
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
		next := new(udp.Reserve)
		if err := next.Import(exported(t, reserve, old.Drops(), nil)); err != nil {
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
	members := membershipsOf(t, old)
	next := new(udp.Reserve)
	if err := next.Import(exported(t, reserve, old.Drops(), nil)); err != nil {
		t.Fatal(err)
	}
	reserve.GiveUp()
	old.GiveUpMemberships()
	if err := errors.Join(old.Leave(group), old.Close(), reserve.Close()); err != nil {
		t.Fatal(err)
	}
	send := func(text string) {
		sendOne(t, b, transport.Packet{Src: b.IPv4, Dst: group, Data: []byte(text)})
	}
	send("between")
	a = openHost(t, nsA, 0, udp.Config{Reserve: next})
	if err := a.Join(group); err != nil {
		t.Fatal(err)
	}
	members.Close()
	send("after")
	for _, want := range []string{"between", "after"} {
		if got := recvOne(t, a); string(got.Data) != want {
			t.Errorf("received %q, want %q", got.Data, want)
		}
	}
}

// Descriptors that are not the sockets that were described are refused, and closed.
func TestImportChecks(t *testing.T) {
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
	lanes := func(h map[string]any) []any { return h["lanes"].([]any) }
	lane := func(h map[string]any) map[string]any { return lanes(h)[0].(map[string]any) }
	for name, change := range map[string]func(sockets map[string]any, fds []int){
		"no lane":        func(h map[string]any, _ []int) { h["lanes"] = nil },
		"too many lanes": func(h map[string]any, _ []int) { h["lanes"] = slices.Repeat(lanes(h), 9) },
		"swapped":        func(_ map[string]any, fds []int) { slices.Reverse(fds) },
		"another netdev": func(h map[string]any, _ []int) { h["ifindex"] = h["ifindex"].(float64) + 1 },
		"another port":   func(h map[string]any, _ []int) { lane(h)["source"] = lane(h)["source"].(float64) - 1 },
		"another family": func(h map[string]any, _ []int) { lane(h)["ipv6"] = lane(h)["ipv6"] != true },
		"not a socket": func(_ map[string]any, fds []int) {
			_ = unix.Dup3(int(os.Stdin.Fd()), fds[0], unix.O_CLOEXEC)
		},
		"a TCP socket":   func(_ map[string]any, fds []int) { replace(t, fds[0], unix.SOCK_STREAM) },
		"an unbound one": func(_ map[string]any, fds []int) { replace(t, fds[1], unix.SOCK_DGRAM) },
	} {
		before := files()
		r := exported(t, reserve, 0, change)
		err := new(udp.Reserve).Import(r)
		r.Close()
		if err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
		if now := files(); now != before {
			t.Errorf("%s: %d descriptors are open, were %d", name, now, before)
		}
	}
}

// exported returns what a Reserve exports, after change has changed its value and its descriptors.
func exported(t *testing.T, reserve *udp.Reserve, drops uint32, change func(sockets map[string]any, fds []int)) *capsule.Reader {
	t.Helper()
	w := capsule.NewWriter()
	exporting := reserve.Export(w, []uint32{drops})
	parts, fds, err := w.Contents()
	if err = errors.Join(exporting, err); err != nil || len(parts) != 1 {
		t.Fatal(parts, err)
	}
	if change != nil {
		var value map[string]any
		if err := json.Unmarshal(parts[0].Value, &value); err != nil {
			t.Fatal(err)
		}
		change(value, fds)
		if parts[0].Value, err = json.Marshal(value); err != nil {
			t.Fatal(err)
		}
	}
	r, err := capsule.NewReader(parts, fds)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// membershipsOf returns the memberships of a transport, whose sockets the caller closes.
func membershipsOf(t *testing.T, from *udp.Transport) *capsule.Writer {
	t.Helper()
	w := capsule.NewWriter()
	from.ExportMemberships(w)
	if _, fds, err := w.Contents(); err != nil || len(fds) != 1 {
		t.Fatal(fds, err)
	}
	return w
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
	if nstest.EnterAlone(t) {
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
	members := membershipsOf(t, tr)
	tr.GiveUpMemberships()
	took := time.Since(start)
	members.Close()
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
