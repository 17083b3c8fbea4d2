package e2e

import (
	"bytes"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

const (
	stopped    = 10 * time.Second
	blastPause = time.Millisecond
	blastBurst = 10 // datagrams in each pause: 10 MB/s, more than the socket's buffer takes while stopped
	blastSize  = 1000
)

// A daemon that is stopped (SIGSTOP) under traffic from the fabric and from its
// host continues with the same queue pair; the kernel drops what arrives in the
// meantime. Commands report that the daemon is stopped, with exit code 3.
func TestR08AbuseStopped(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s := newSiege(t, join)
	before := s.a.book()
	var blasts sync.WaitGroup
	stop := make(chan struct{})
	for _, blast := range [][2]*host{{s.a, s.b}, {s.b, s.a}} {
		blasts.Go(blast[0].blast(blast[1], stop))
	}
	s.a.signalOnly(syscall.SIGSTOP)
	began := time.Now()
	for _, args := range [][]string{{"status", "--check"}, {"recover", "--wait=1s"}} {
		cmd := s.a.daemon.command(args...)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 3 || !bytes.Contains(out, []byte("the daemon has not answered within ")) {
			t.Errorf("%q while the daemon is stopped: %v\n%s", args, err, out)
		}
	}
	time.Sleep(time.Until(began.Add(stopped)))
	t.Logf("stopped: resident memory %d KiB", s.a.memory("VmRSS"))
	s.a.signalOnly(syscall.SIGCONT)
	t.Logf("reached again %v after it was continued", s.b.waitReaches(s.a))
	t.Logf("reaches again %v later", s.a.waitReaches(s.b))
	close(stop)
	blasts.Wait()

	now := s.a.book().since(before)
	for _, drop := range []string{"hca_wire_socket_drops", "kernel_tx_dropped"} {
		t.Logf("dropped: %7d %s", now.of(drop), drop)
		if now.of(drop) == 0 {
			t.Errorf("%s did not rise: the traffic did not fill the buffers", drop)
		}
	}
	s.end(100) // a stopped daemon answers nothing
}

// signalOnly sends the daemon a signal and does not wait for its end.
func (h *host) signalOnly(sig syscall.Signal) {
	h.tb.Helper()
	if err := h.daemon.cmd.Process.Signal(sig); err != nil {
		h.tb.Fatalf("%v: %v", sig, err)
	}
}

// blast returns a function that sends datagrams to another host until stop,
// whether or not it can be reached.
func (h *host) blast(other *host, stop <-chan struct{}) func() {
	h.tb.Helper()
	var conn *net.UDPConn
	h.Do(func() {
		var err error
		if conn, err = net.ListenUDP("udp4", nil); err != nil {
			h.tb.Fatalf("open a socket: %v", err)
		}
	})
	dst := net.UDPAddr{IP: net.ParseIP(other.ip4()), Port: 9} // discard
	return func() {
		defer conn.Close()
		tick := time.NewTicker(blastPause)
		defer tick.Stop()
		for datagram := make([]byte, blastSize); ; {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			for range blastBurst {
				_, _ = conn.WriteToUDP(datagram, &dst) // fails while the neighbour does not answer
			}
		}
	}
}
