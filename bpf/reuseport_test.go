package bpf_test

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/bpf"
	"ipoibd/link/linktest/nstest"
)

const rocePort = 4791

// group returns n sockets on the RoCEv2 port with a program, each of which has its index.
func group(tb testing.TB, n int, spec bpf.ReuseportSpec) (sockets []int, r *bpf.Reuseport) {
	tb.Helper()
	r, err := bpf.NewReuseport(spec)
	must(tb, err)
	tb.Cleanup(func() { must(tb, r.Close()) })
	for i := range n {
		fd := udpSocket(tb, rocePort, [3]int{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1})
		sockets = append(sockets, fd)
		index, err := r.AddSocket(fd)
		must(tb, err)
		if index != i {
			tb.Fatalf("index %d, want %d", index, i)
		}
	}
	must(tb, r.Attach(sockets[0]))
	return sockets, r
}

func sendTo(tb testing.TB, fd int, dst [4]byte, data []byte) {
	tb.Helper()
	must(tb, unix.Sendto(fd, data, 0, &unix.SockaddrInet4{Addr: dst, Port: rocePort}))
}

// received returns the queued datagrams of a socket. Over the loopback a datagram is queued
// when the send returns.
func received(tb testing.TB, fd int) (out [][]byte) {
	tb.Helper()
	for {
		buf := make([]byte, 2048)
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return out
		}
		must(tb, err)
		out = append(out, buf[:n])
	}
}

var loopback = [4]byte{127, 0, 0, 1}

// Each datagram reaches the socket of its destination QPN, whatever its source port, and
// those without a socket are dropped and counted by reason.
func TestReuseportSelectsByQPN(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	sockets, r := group(t, 3, bpf.ReuseportSpec{Sockets: 4, QPNs: 8})
	owner := map[uint32]int{0x000012: 0, 0x120000: 1, 0x001200: 2, 0xfffffe: 1, 1: 2}
	for qpn, index := range owner {
		must(t, r.SetQPN(qpn, index))
	}
	const senders = 8
	for range senders { // each has its own source port, so the kernel's own hash would spread them
		from := udpSocket(t, 0)
		for qpn := range owner {
			sendTo(t, from, loopback, bth(qpn, byte(owner[qpn])))
		}
		sendTo(t, from, loopback, bth(0x12))
		sendTo(t, from, loopback, bth(77))
		sendTo(t, from, loopback, bth(0xffffff, 0))
		for _, short := range []int{0, 1, 5, 7} {
			sendTo(t, from, loopback, bth(0x12)[:short])
		}
	}
	for index, fd := range sockets {
		want := map[int]int{0: 3, 1: 2, 2: 2}[index] * senders
		got := received(t, fd)
		if len(got) != want {
			t.Errorf("socket %d received %d datagrams, want %d", index, len(got), want)
		}
		for _, b := range got {
			if len(b) == 13 && int(b[12]) != index {
				t.Errorf("socket %d received a datagram for socket %d", index, b[12])
			}
		}
	}
	requirePicks(t, r, [bpf.NumPick]uint64{bpf.Selected: 6 * senders, bpf.ToFirst: senders, bpf.TooShort: 4 * senders, bpf.UnknownQPN: senders})

	// A socket that is closed leaves its QPNs without a socket, until they are set again.
	must(t, unix.Close(sockets[2]))
	from := udpSocket(t, 0)
	sendTo(t, from, loopback, bth(1))
	must(t, r.SetQPN(1, 0))
	sendTo(t, from, loopback, bth(1, 42))
	must(t, r.RemoveQPN(1))
	must(t, r.RemoveQPN(1))
	sendTo(t, from, loopback, bth(1))
	if got := received(t, sockets[0]); len(got) != 1 || !bytes.Equal(got[0], bth(1, 42)) {
		t.Errorf("socket 0 received % x", got)
	}
	requirePicks(t, r, [bpf.NumPick]uint64{
		bpf.Selected: 6*senders + 1, bpf.ToFirst: senders, bpf.TooShort: 4 * senders, bpf.UnknownQPN: senders + 1, bpf.NoSocket: 1,
	})
	qpns, err := r.QPNs()
	must(t, err)
	if len(qpns) != 4 || qpns[0x120000] != 1 || qpns[0x001200] != 2 {
		t.Errorf("QPNs %v", qpns)
	}
}

// The kernel gives multicast to every socket of a group that has joined it, and does not ask
// the program.
func TestReuseportAndMulticast(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	sockets, r := group(t, 2, bpf.ReuseportSpec{Sockets: 2, QPNs: 1})
	multicast := [4]byte{239, 0, 0, 1}
	for _, fd := range sockets {
		must(t, unix.SetsockoptIPMreqn(fd, unix.SOL_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: multicast, Ifindex: 1}))
	}
	from := udpSocket(t, 0)
	must(t, unix.SetsockoptIPMreqn(from, unix.SOL_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: 1}))
	sendTo(t, from, multicast, bth(0xffffff))
	for i, fd := range sockets {
		if got := received(t, fd); len(got) != 1 {
			t.Errorf("socket %d received %d datagrams, want 1", i, len(got))
		}
	}
	requirePicks(t, r, [bpf.NumPick]uint64{})
}

// A dropped datagram is answered by an ICMP error, as one to a port without a socket: the
// kernel takes the decision for the result of the look-up.
func TestReuseportDropIsReported(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	group(t, 1, bpf.ReuseportSpec{Sockets: 1, QPNs: 1})
	from := udpSocket(t, 0)
	must(t, unix.Connect(from, &unix.SockaddrInet4{Addr: loopback, Port: rocePort}))
	must(t, unix.Send(from, bth(5), 0))
	if _, err := unix.Write(from, bth(5)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the next send: %v, want ECONNREFUSED", err)
	}
}

// Another process can add its sockets and QPNs by the descriptors of the maps. Both sides
// see the limits.
func TestReuseportIsShared(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	sockets, r := group(t, 1, bpf.ReuseportSpec{Sockets: 2, QPNs: 2})
	dup := func(fd int) int {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		must(t, err)
		return n
	}
	files := r.Files()
	other, err := bpf.ShareReuseport(bpf.Files{QPNs: dup(files.QPNs), Sockets: dup(files.Sockets), Counts: dup(files.Counts)})
	must(t, err)
	mine := udpSocket(t, rocePort, [3]int{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1})
	index, err := other.AddSocket(mine)
	if err != nil || index != 1 || other.FD() != -1 {
		t.Fatalf("AddSocket = %d, %v; FD = %d", index, err, other.FD())
	}
	if _, err := r.AddSocket(udpSocket(t, rocePort, [3]int{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1})); !errors.Is(err, bpf.ErrFull) {
		t.Errorf("a third socket: %v", err)
	}
	must(t, r.SetQPN(1, 0))
	must(t, other.SetQPN(2, 1))
	if err := other.SetQPN(3, 1); !errors.Is(err, bpf.ErrFull) {
		t.Errorf("a third QPN: %v", err)
	}
	from := udpSocket(t, 0)
	sendTo(t, from, loopback, bth(1))
	sendTo(t, from, loopback, bth(2))
	sendTo(t, from, loopback, bth(2))
	if a, b := len(received(t, sockets[0])), len(received(t, mine)); a != 1 || b != 2 {
		t.Errorf("%d and %d datagrams, want 1 and 2", a, b)
	}
	requirePicks(t, other, [bpf.NumPick]uint64{bpf.Selected: 3})
	must(t, other.RemoveSocket(1))
	must(t, other.RemoveSocket(1))
	must(t, other.Close())
	must(t, other.Close())
	requirePicks(t, r, [bpf.NumPick]uint64{bpf.Selected: 3})
}

// A socket outside of a group is refused.
func TestReuseportRefusesOtherSockets(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	_, r := group(t, 1, bpf.ReuseportSpec{Sockets: 4, QPNs: 1})
	if _, err := r.AddSocket(udpSocket(t, 5000)); err == nil {
		t.Error("a socket without SO_REUSEPORT was added")
	}
}

func requirePicks(t *testing.T, r *bpf.Reuseport, want [bpf.NumPick]uint64) {
	t.Helper()
	got, err := r.Counts()
	must(t, err)
	if got.Picks != want {
		t.Errorf("decisions %v, want %v", got.Picks, want)
	}
}
