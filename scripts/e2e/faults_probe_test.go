package e2e

import (
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

const (
	// probeInterval is the time between two requests of a probe.
	probeInterval = time.Millisecond
	// probeBuffer is the size of its receive buffer in bytes: an answer takes 768, and the kernel's default holds only
	// those of 0.3 s, for which a busy machine may let the reader wait.
	probeBuffer = 8 << 20
)

// probe sends another host a numbered UDP message every millisecond until the test ends, and keeps the times of requests and
// answers: the external view of an outage. The kernel timestamps the answers; the goroutine that answers may wait for a
// processor.
//
// The kernel's own echo replies (ICMP) would not do: one socket sends those of all namespaces on a processor, and replies
// that wait for a neighbour in one namespace can fill it.
type probe struct {
	conn *net.UDPConn
	dst  *net.UDPAddr
	done chan struct{}

	silent atomic.Bool // it asks nothing for now

	mu      sync.Mutex
	echoes  []echo        // by number, in the order of asking
	refused map[int]error // why the kernel did not send a request
}

// echo is one request; answered is zero if there was no answer.
type echo struct{ asked, answered time.Time }

// probe starts a probe.
func (h *host) probe(other *host) *probe { return h.probeAddr(other.ip4(), other.Namespace) }

// probeAddr starts a probe of an IPv4 address, which these namespaces have or will have.
func (h *host) probeAddr(addr string, at ...*nstest.Namespace) *probe {
	h.tb.Helper()
	dst := &net.UDPAddr{IP: net.ParseIP(addr)}
	for _, ns := range at {
		conn := probeSocket(h.tb, ns, dst)
		dst = conn.LocalAddr().(*net.UDPAddr) // the next one has the same port
		var answers sync.WaitGroup
		answers.Go(func() { answer(conn) })
		h.tb.Cleanup(func() {
			conn.Close()
			answers.Wait()
		})
	}
	p := &probe{conn: probeSocket(h.tb, h.Namespace, &net.UDPAddr{}), dst: dst, done: make(chan struct{}), refused: map[int]error{}}
	p.run(h.tb)
	return p
}

// probeSocket returns a UDP socket with an address, which the namespace need not have yet.
func probeSocket(tb testing.TB, ns *nstest.Namespace, at *net.UDPAddr) *net.UDPConn {
	tb.Helper()
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) {
			set = errors.Join(
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, probeBuffer),
				unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1),
			)
		})
		return errors.Join(err, set)
	}}
	var conn net.PacketConn
	var err error
	ns.Do(func() { conn, err = config.ListenPacket(tb.Context(), "udp4", at.String()) })
	if err != nil {
		tb.Fatalf("make the socket of a probe: %v", err)
	}
	return conn.(*net.UDPConn)
}

// answer returns each request to its sender, until the socket is closed.
func answer(conn *net.UDPConn) {
	msg := make([]byte, probeLen)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(msg)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err == nil:
			_, _ = conn.WriteToUDPAddrPort(msg[:n], from) // one that is refused is lost
		}
	}
}

// run sends and receives, each in its own goroutine; both end with the test.
func (p *probe) run(tb testing.TB) {
	var both sync.WaitGroup
	both.Go(p.ask)
	both.Go(p.listen)
	tb.Cleanup(func() {
		close(p.done)
		p.conn.Close()
		both.Wait()
	})
}

func (p *probe) ask() {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-p.done:
			return
		case <-tick.C:
			if !p.silent.Load() {
				p.askOnce()
			}
		}
	}
}

// probeLen is the length of a request and of its answer, which consist of the number.
const probeLen = 8

// askOnce sends a request. If the kernel refuses it, it counts as lost.
func (p *probe) askOnce() {
	p.mu.Lock()
	number := len(p.echoes)
	p.echoes = append(p.echoes, echo{asked: time.Now()})
	p.mu.Unlock()
	if _, err := p.conn.WriteToUDP(binary.BigEndian.AppendUint64(nil, uint64(number)), p.dst); err != nil {
		p.mu.Lock()
		p.refused[number] = err
		p.mu.Unlock()
	}
}

func (p *probe) listen() {
	msg, oob := make([]byte, probeLen), make([]byte, unix.CmsgSpace(int(unsafe.Sizeof(unix.Timespec{}))))
	for {
		n, control, _, _, err := p.conn.ReadMsgUDP(msg, oob)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err == nil && n == probeLen:
			p.answered(binary.BigEndian.Uint64(msg), stamp(oob[:control]))
		}
	}
}

// stamp returns when the kernel received a message (SO_TIMESTAMPNS).
func stamp(oob []byte) time.Time {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 || len(msgs[0].Data) < int(unsafe.Sizeof(unix.Timespec{})) {
		return time.Now()
	}
	at := (*unix.Timespec)(unsafe.Pointer(&msgs[0].Data[0]))
	return time.Unix(at.Unix())
}

// answered notes the first answer to a request.
func (p *probe) answered(number uint64, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if number < uint64(len(p.echoes)) && p.echoes[number].answered.IsZero() {
		p.echoes[number].answered = at
	}
}

// since returns the echoes requested from a time on.
func (p *probe) since(from time.Time) []echo {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := sort.Search(len(p.echoes), func(i int) bool { return !p.echoes[i].asked.Before(from) })
	return slices.Clone(p.echoes[first:])
}

// lost ends the asking, and returns how many requests are not answered within a while.
func (p *probe) lost() (n int) {
	p.silent.Store(true)
	for end := time.Now().Add(repairLimit); ; time.Sleep(10 * time.Millisecond) {
		n = 0
		for _, e := range p.since(time.Time{}) {
			if e.answered.IsZero() {
				n++
			}
		}
		if n == 0 || time.Now().After(end) {
			return n
		}
	}
}

// silence returns the longest outage since a time.
func (p *probe) silence(from time.Time) time.Duration { return silence(p.since(from), time.Now()) }

// silence returns the longest time from the first request after an answer to the
// next answer, or to the end. So it includes lost and delayed answers, but not
// the times when the probe itself could not send.
func silence(echoes []echo, end time.Time) (longest time.Duration) {
	answers := []time.Time{end}
	for _, e := range echoes {
		if !e.answered.IsZero() {
			answers = append(answers, e.answered)
		}
	}
	slices.SortFunc(answers, time.Time.Compare)
	next := 0 // the first request that no answer has followed
	for _, at := range answers {
		if next < len(echoes) && echoes[next].asked.Before(at) {
			longest = max(longest, at.Sub(echoes[next].asked))
		}
		for next < len(echoes) && !echoes[next].asked.After(at) {
			next++
		}
	}
	return longest
}

// Times that determine when an outage has ended.
const (
	// onset is how long after its cause an outage may begin.
	onset = 100 * time.Millisecond
	// steady is how long a probe must be answered before service counts as
	// restored.
	steady = 50 * time.Millisecond
	// prompt is how long an answer may take, on a busy machine.
	prompt = 10 * time.Millisecond
)

// waitAnswered waits until every request was answered for a while, and at least
// for the time that an outage needs to begin.
func (p *probe) waitAnswered(tb testing.TB, limit time.Duration) {
	tb.Helper()
	time.Sleep(onset)
	eventually(tb, limit, "the probe is answered", func() bool {
		echoes := p.since(time.Now().Add(-steady))
		return len(echoes) > 0 && !slices.ContainsFunc(echoes, func(e echo) bool {
			return e.answered.IsZero() && time.Since(e.asked) > prompt
		})
	})
}

// The computation of silence, with one request per millisecond.
func TestSilence(t *testing.T) {
	start := time.Unix(1e9, 0)
	at := func(ms float64) time.Time { return start.Add(time.Duration(ms * float64(time.Millisecond))) }
	for _, c := range []struct {
		name   string
		echoes []echo
		want   time.Duration
	}{
		{"none", nil, 0},
		{"prompt", []echo{{at(0), at(0.5)}, {at(1), at(1.5)}}, 500 * time.Microsecond},
		{"two lost", []echo{{at(0), at(0.5)}, {at(1), time.Time{}}, {at(2), time.Time{}}, {at(3), at(3.5)}}, 2500 * time.Microsecond},
		{"held, then all at once", []echo{{at(0), at(0.5)}, {at(1), at(7)}, {at(2), at(7)}, {at(3), at(7)}}, 6 * time.Millisecond},
		{"not asked", []echo{{at(0), at(0.5)}, {at(50), at(50.5)}}, 500 * time.Microsecond},
		{"never again", []echo{{at(0), at(0.5)}, {at(1), time.Time{}}}, 99 * time.Millisecond},
	} {
		if got := silence(c.echoes, at(100)); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
