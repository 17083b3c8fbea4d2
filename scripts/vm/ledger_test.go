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
	// surplus is the number of messages that arrive when all receives are used.
	surplus = 500
)

// requireAccounted stops the daemon on the real device while the other daemon sends
// more messages than it has posted receives. Every lost message is counted: by the
// device, because it found no receive (rxe drops it silently), or by the receiver's
// own socket. The daemon processes the rest once it continues, and does not mistake
// its own stall for a freeze of the device.
func requireAccounted(t *testing.T, real, soft *endpoint, s *stream) {
	t.Helper()
	s.pause()
	device, before := real.settled()
	unposted, full := device.unposted(), socketFull(real)
	f := flow{soft, real, real.ip4(), ""}
	receiver := f.receive(0, posted+surplus)
	waitPrints(t, receiver, "listening")
	sender := f.send(0, burst{posted + surplus, 1000, time.Millisecond})
	waitPrints(t, sender, "ready")
	real.daemon.Signal(syscall.SIGSTOP)
	sender.Signal(syscall.SIGUSR1)
	awaitExit(t, sender)
	real.daemon.Signal(syscall.SIGCONT)
	eventually(t, "the daemon processes the messages that arrived", func() bool {
		_, now := real.status()
		return now.count("rx_received") >= before.count("rx_received")+posted
	})
	time.Sleep(lastMessage)
	got := tally{Sent: posted + surplus}
	got.read(t, receiver)
	device, after := real.settled()
	unposted, full = device.unposted()-unposted, socketFull(real)-full
	t.Logf("%d of %d messages arrived; %d found no receive posted, %d a full socket", got.Distinct, got.Sent, unposted, full)
	if lost := got.Sent - got.Distinct; lost == 0 || lost > unposted+full {
		t.Errorf("%d messages were lost, want at least 1 and at most the %d that the counters show\n%s%s", lost, unposted+full, soft.books(), real.books())
	}
	if !maps.Equal(after.Recovery.Rungs, before.Recovery.Rungs) {
		t.Errorf("rungs %v after a stall of the daemon, %v before", after.Recovery.Rungs, before.Recovery.Rungs)
	}
	s.resume()
	s.waitMoves()
}

// settled returns the status once two readings agree about the messages that the device has received: it reads its
// counters one after the other, and messages that keep neighbours known may arrive between them.
func (e *endpoint) settled() (d deviceStatus, i ifaceStatus) {
	e.tb.Helper()
	d, _ = e.status()
	eventually(e.tb, "no message arrives between two readings", func() bool {
		before := d
		d, i = e.status()
		return d.Counters[received] == before.Counters[received] && d.Counters[taken] == before.Counters[taken]
	})
	return d, i
}

// The counters of rxe for messages that have arrived, and for those that found a receive.
const received, taken = "port1_rcvd_pkts", "port1_rdma_recvs"

// unposted returns how many messages rxe dropped for want of a posted receive. rxe
// only counts the messages that found a receive (RXE_CNT_RDMA_RECV,
// drivers/infiniband/sw/rxe/rxe_resp.c).
func (d *deviceStatus) unposted() int {
	return d.Counters[received] - d.Counters[taken]
}

// socketFull returns how many datagrams a machine dropped because their socket was
// full.
func socketFull(m runner) (n int) {
	const sum = "/^Udp: [0-9]/ { n += $6 } /^Udp6RcvbufErrors/ { n += $2 } END { print n }"
	_, _ = fmt.Sscan(m.Run("awk", sum, "/proc/net/snmp", "/proc/net/snmp6"), &n)
	return n
}
