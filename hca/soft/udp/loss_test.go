package udp_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/transport/transporttest"
	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// exchange makes a and b resolve each other as neighbours, in both families.
func exchange(t *testing.T, a, b transporttest.Host) {
	t.Helper()
	for _, p := range []transport.Packet{{Src: a.IPv4, Dst: b.IPv4}, {Src: a.IPv6, Dst: b.IPv6}} {
		p.Data = []byte("hello")
		sendOne(t, a, p)
		recvOne(t, b)
	}
}

// Packets that the queueing discipline refuses are counted as lost and not as sent, in
// both families, and each of them counts as a full wire.
func TestLossOnOutputIsCounted(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nsA, nsB := nstest.Pair(t, 1500)
	a, b := openHost(t, nsA, 0, udp.Config{}), openHost(t, nsB, 1, udp.Config{})
	exchange(t, a, b)
	nsA.Run("tc", "qdisc", "replace", "dev", nstest.Dev, "root", "pfifo", "limit", "0")
	for _, p := range []transport.Packet{{Src: a.IPv4, Dst: b.IPv4}, {Src: a.IPv6, Dst: b.IPv6}} {
		const n = 100
		p.Data = make([]byte, 1000)
		pkts := make([]transport.Packet, n)
		for i := range pkts {
			pkts[i] = p
		}
		sent, lost, blocked := counterOf(t, a, "tx_packets"), counterOf(t, a, "tx_drop_no_buffers"), a.Blocked()
		if done, err := a.Send(pkts); done != n || err != nil {
			t.Fatalf("Send = %d, %v", done, err)
		}
		sent, lost = counterOf(t, a, "tx_packets")-sent, counterOf(t, a, "tx_drop_no_buffers")-lost
		t.Logf("to %v: %d counted as sent, %d as lost", p.Dst, sent, lost)
		if sent != 0 || lost != n {
			t.Errorf("to %v: %d counted as sent, %d as lost, want 0 and %d", p.Dst, sent, lost, n)
		}
		if a.Blocked()-blocked != n {
			t.Errorf("to %v: the wire was full %d times, want %d", p.Dst, a.Blocked()-blocked, n)
		}
	}
}

// ICMP errors of one destination do not lose packets to another one, and do not make a
// wait for room spin.
func TestICMPErrorsDisturbNoOtherPacket(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	spaces := nstest.Switch(t, 3, 1500)
	a, b := openHost(t, spaces[0], 0, udp.Config{SendBuf: 200_000}), openHost(t, spaces[1], 1, udp.Config{})
	exchange(t, a, b)
	refuses := spaces[2] // nothing listens on its port 4791
	for _, limit := range []string{"net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0"} {
		refuses.Run("sysctl", "-q", "-w", limit)
	}
	to4, to6 := netip.MustParseAddr(nstest.IPv4(2)), netip.MustParseAddr(nstest.IPv6(2))
	good := uint64(0)
	for i := range 300 {
		data := fmt.Append(nil, i)
		pkts := []transport.Packet{
			{Src: a.IPv4, Dst: to4, Data: data},
			{Src: a.IPv6, Dst: to6, Data: data},
			{Src: a.IPv4, Dst: b.IPv4, Data: data},
			{Src: a.IPv6, Dst: b.IPv6, Data: data},
		}
		for _, p := range pkts {
			sendOne(t, a, p)
		}
		for range 2 {
			if got := recvOne(t, b); string(got.Data) != string(data) {
				t.Fatalf("received %q, want %q", got.Data, data)
			}
			good++
		}
	}
	errs := counterOf(t, a, "icmp_errors")
	t.Logf("%d ICMP errors, %d packets to another destination arrived", errs, good)
	if errs == 0 {
		t.Error("no ICMP error came, so the test shows nothing")
	}
	for _, drop := range []string{"tx_drop_refused", "tx_drop_no_route", "tx_drop_no_buffers", "tx_drop_rejected"} {
		if n := counterOf(t, a, drop); n != 0 {
			t.Errorf("%s = %d, want 0", drop, n)
		}
	}

	// The wire fills up while one more error of each family is pending.
	sendOne(t, a, transport.Packet{Src: a.IPv4, Dst: to4, Data: []byte{1}})
	sendOne(t, a, transport.Packet{Src: a.IPv6, Dst: to6, Data: []byte{1}})
	spaces[0].Run("tc", "qdisc", "replace", "dev", nstest.Dev, "root", "tbf", "rate", "8", "burst", "2000", "limit", "1000000")
	fill := transport.Packet{Src: a.IPv4, Dst: b.IPv4, Data: make([]byte, 1000)}
	for n := 1; n == 1; {
		var err error
		if n, err = a.Send([]transport.Packet{fill}); err != nil {
			t.Fatal(err)
		}
	}
	before := processTime(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := a.WaitWritable(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WaitWritable: %v, want the context's error", err)
	}
	used := processTime(t) - before
	t.Logf("a second's wait used %v of processor time", used)
	if limit := time.Second / 2; used > limit { // about 10 ms; a wait that spins uses the whole second
		t.Errorf("a second's wait used %v of processor time, want %v at most", used, limit)
	}
}

// processTime returns the processor time that this process has used.
func processTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Packets that the kernel keeps for neighbours that do not answer leave room for those to
// a neighbour that does.
func TestDeadNeighboursLeaveRoom(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := openPair(t, 1500)
	exchange(t, a, b)
	const dead, each = 300, 100 // more than the kernel keeps: about 230 KB of its memory per neighbour
	data := make([]byte, 1400)
	var pkts []transport.Packet
	for i := range dead {
		dst := netip.MustParseAddr(fmt.Sprintf("2001:db8::dead:%x", i))
		for range each {
			pkts = append(pkts, transport.Packet{Src: a.IPv6, Dst: dst, Data: data})
		}
	}
	if n, err := a.Send(pkts); n != len(pkts) || err != nil {
		t.Errorf("Send took %d of %d packets to dead neighbours, %v", n, len(pkts), err)
	}
	sendOne(t, a, transport.Packet{Src: a.IPv4, Dst: b.IPv4, Data: data})
	recvOne(t, b)
	if n := a.Blocked(); n != 0 {
		t.Errorf("the wire was full %d times", n)
	}
}
