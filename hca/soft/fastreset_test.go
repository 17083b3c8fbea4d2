package soft_test

import (
	"encoding/binary"
	"flag"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
)

var resets = flag.Int("resets", 50, "how often TestFastPathShutsAtEachReset resets the queue pair")

// Under a flood in both directions, the fast path carries nothing from the return of the verb that leaves RTS to the call of
// the one that enters it again; and no packet with a sequence number from before a reset follows one from after it.
func TestFastPathShutsAtEachReset(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newFastHosts(t, nstest.IPv4)
	a, b := hosts[0], hosts[1]
	if !a.reaches(1) || !b.reaches(0) {
		t.Fatal("the hosts do not reach each other")
	}
	witness := newPSNWitness(t, b, a)
	var flood sync.WaitGroup
	ended := make(chan struct{})
	flood.Go(func() { a.flood(b, ended) })
	flood.Go(func() { b.flood(a, ended) })
	waitMore := func(before uint64) bool {
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
			if sent, _ := carried(a.path); sent > before {
				return true
			}
		}
		return false
	}
	for i := range *resets {
		sent, _ := carried(a.path)
		if !waitMore(sent) {
			t.Fatalf("after %d resets, the fast path carries nothing: %v", i, a.path.Counters())
		}
		a.to(hca.QPErr)
		sent, received := carried(a.path)
		time.Sleep(time.Duration(i%5) * 100 * time.Microsecond)
		a.to(hca.QPReset, hca.QPInit, hca.QPRTR)
		if s, r := carried(a.path); s != sent || r != received {
			t.Fatalf("reset %d: %d frames sent and %d received while the queue pair was not in RTS", i, s-sent, r-received)
		}
		attr := hca.QPAttr{State: hca.QPRTS, SQPSN: witness.next()}
		a.Must(a.QP.Modify(attr, hca.AttrState|hca.AttrSQPSN), "to RTS")
	}
	close(ended)
	flood.Wait()
	total := witness.stop()
	t.Logf("%d resets, %d packets", *resets, total)
	if total < *resets {
		t.Errorf("the witness saw %d packets", total)
	}
}

// flood sends small datagrams to another host, from a socket for each of some flows.
func (h *fastHost) flood(to *fastHost, ended <-chan struct{}) {
	var conns []net.Conn
	h.ns.Do(func() {
		for range 16 {
			c, err := net.Dial("udp", fastAddr+string(rune('0'+to.mac[5]))+":9") // the other host refuses it
			if err == nil {
				conns = append(conns, c)
			}
		}
	})
	for i := 0; ; i++ {
		select {
		case <-ended:
			return
		default:
			_, _ = conns[i%len(conns)].Write(make([]byte, 20))
		}
		if i%20 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// psnWitness sees on the wire the sequence numbers of one host's packets to another.
type psnWitness struct {
	t     *testing.T
	fd    int
	done  chan struct{}
	mu    sync.Mutex
	epoch uint32 // of the sequence numbers given out last
	ended bool
	last  uint32 // epoch seen last
	seen  int
}

// An epoch has 2^epochBits sequence numbers.
const epochBits = 14

func newPSNWitness(t *testing.T, at, from *fastHost) *psnWitness {
	t.Helper()
	// Those of one protocol see packets only after the programs.
	w := &psnWitness{t: t, fd: packets(t, at.ns, unix.ETH_P_ALL), done: make(chan struct{})}
	must(t, unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20))
	must(t, unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}))
	go w.watch(at.QP.Num(), from.QP.Num())
	return w
}

// next returns the first sequence number of another epoch.
func (w *psnWitness) next() uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.epoch = (w.epoch + 1) % (1 << (24 - epochBits))
	return w.epoch << epochBits
}

func (w *psnWitness) watch(to, from hca.QPN) {
	defer close(w.done)
	buf := make([]byte, 2048)
	for {
		n, err := unix.Read(w.fd, buf)
		if err != nil || n == 0 {
			w.mu.Lock()
			ended := w.ended
			w.mu.Unlock()
			if ended {
				return
			}
			continue
		}
		p := buf[:n]
		var u roce.UDSend
		if n < 28 || p[0]>>4 != 4 || p[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(p[22:]) != roce.Port || u.Parse(p[28:]) != nil ||
			u.DestQPN != to || u.SrcQPN != from {
			continue
		}
		epoch := (binary.BigEndian.Uint32(p[28+8:]) & 0xffffff) >> epochBits
		if behind := (w.last - epoch) % (1 << (24 - epochBits)); behind != 0 && behind < 1<<(23-epochBits) {
			w.t.Errorf("a packet of epoch %d after one of epoch %d", epoch, w.last)
		}
		w.last = epoch
		w.seen++
	}
}

// stop returns how many packets there were.
func (w *psnWitness) stop() int {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	<-w.done
	return w.seen
}
