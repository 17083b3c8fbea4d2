package vm

import (
	"fmt"
	"maps"
	"syscall"
	"testing"
	"time"
)

const (
	// posted is how many receives a daemon has posted by default.
	posted = 2048
	// surplus are messages that come when all those are used.
	surplus = 500
)

// requireAccounted stops the daemon on the real device while the other one sends
// more than it has receives for. What is lost is in the counters: that of the
// device for messages that find no receive, which rxe drops silently, or that of
// the receiver's own socket. The daemon processes the rest once it continues, and
// does not mistake its own stall for a freeze of the device.
func requireAccounted(t *testing.T, real, soft *endpoint, s *stream) {
	t.Helper()
	s.pause()
	device, before := real.status()
	unposted, full := device.unposted(), socketFull(real)
	f := flow{soft, real, real.ip4(), ""}
	receiver := f.receive(0, posted+surplus)
	waitSays(t, receiver, "listening")
	sender := f.send(0, burst{posted + surplus, 1000, time.Millisecond})
	waitSays(t, sender, "ready")
	real.daemon.Signal(syscall.SIGSTOP)
	sender.Signal(syscall.SIGUSR1)
	awaitExit(t, sender)
	real.daemon.Signal(syscall.SIGCONT)
	eventually(t, "the daemon takes what came", func() bool {
		_, now := real.status()
		return now.count("rx_received") >= before.count("rx_received")+posted
	})
	time.Sleep(lastMessage)
	got := tally{Sent: posted + surplus}
	got.read(t, receiver)
	device, after := real.status()
	unposted, full = device.unposted()-unposted, socketFull(real)-full
	t.Logf("of %d messages %d came; %d found no receive posted, %d a full socket", got.Sent, got.Distinct, unposted, full)
	if lost := got.Sent - got.Distinct; lost == 0 || lost > unposted+full {
		t.Errorf("%d messages are lost, and %d counted", lost, unposted+full)
	}
	if !maps.Equal(after.Recovery.Rungs, before.Recovery.Rungs) {
		t.Errorf("rungs %v after a stall of the daemon, %v before", after.Recovery.Rungs, before.Recovery.Rungs)
	}
	s.resume()
	s.waitMoves()
}

// unposted are the messages that rxe took from the wire and had no receive for,
// which it counts only by counting those that it had one for
// (RXE_CNT_RDMA_RECV, drivers/infiniband/sw/rxe/rxe_resp.c).
func (d *deviceStatus) unposted() int {
	return d.Counters["port1_rcvd_pkts"] - d.Counters["port1_rdma_recvs"]
}

// socketFull is how many datagrams found their socket on a machine full.
func socketFull(m runner) (n int) {
	const sum = "/^Udp: [0-9]/ { n += $6 } /^Udp6RcvbufErrors/ { n += $2 } END { print n }"
	_, _ = fmt.Sscan(m.Run("awk", sum, "/proc/net/snmp", "/proc/net/snmp6"), &n)
	return n
}
