package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/ud/ipoib"
)

const (
	// numberedPort is the UDP port of numbered datagrams.
	numberedPort = 7007
	// numberedMin holds the number and the checksum.
	numberedMin = 16
	// numberedBurst is sent at once every numberedPause, unless numberedWindow datagrams are on
	// their way: so many fit into each queue, however long a busy machine lets a daemon wait. The
	// shortest is that of a queue pair's receives. If none arrives for numberedPatience, those are
	// lost; if they still came, twice as many would be on their way from then on.
	numberedBurst    = 32
	numberedPause    = 4 * time.Millisecond
	numberedWindow   = 3 * receives / 4
	numberedPatience = 5 * time.Second
	// numberedLull is how long a receiver waits for more: ten times what a busy machine
	// needs.
	numberedLull = 2 * time.Second
	// numberedBuffer is the receiver's, in bytes.
	numberedBuffer = 64 << 20
)

var numberedTable = crc64.MakeTable(crc64.ECMA)

// numbered returns a datagram with a number, random bytes, and a checksum of both.
func numbered(rnd *rand.ChaCha8, number uint64, size int) []byte {
	b := make([]byte, size)
	_, _ = rnd.Read(b) // never fails
	binary.BigEndian.PutUint64(b, number)
	binary.BigEndian.PutUint64(b[size-8:], crc64.Checksum(b[:size-8], numberedTable))
	return b
}

// numberOf returns the number of a datagram, or an error if it is not as it was sent.
func numberOf(b []byte) (uint64, error) {
	if n := len(b); n < numberedMin || crc64.Checksum(b[:n-8], numberedTable) != binary.BigEndian.Uint64(b[n-8:]) {
		return 0, fmt.Errorf("a datagram of %d bytes is damaged: % x", n, b[:min(n, 64)])
	}
	return binary.BigEndian.Uint64(b), nil
}

// numberedSizes returns the sizes of n datagrams: runs of one size, from which trains are made,
// single ones of all sizes, and some that must be fragmented.
func numberedSizes(n, mtu int) (sizes []int) {
	rnd := rand.New(rand.NewPCG(relaySeed, uint64(mtu)))
	for len(sizes) < n {
		switch rnd.IntN(4) {
		case 0:
			sizes = append(sizes, slices.Repeat([]int{numberedMin + rnd.IntN(mtu-100)}, 1+rnd.IntN(40))...)
		case 1:
			sizes = append(sizes, mtu+rnd.IntN(3*mtu))
		default:
			sizes = append(sizes, numberedMin+rnd.IntN(mtu-100))
		}
	}
	return sizes[:n]
}

// flow is one direction of numbered datagrams.
type flow struct {
	from, to *host
	addr     string      // of the receiver
	enough   func() bool // until this is true, it starts over with the sizes when all were sent; nil: it does not
	got      map[uint64]int
	sent     int
	arrived  atomic.Int64 // different ones
	ended    atomic.Bool  // all were sent
}

// run sends datagrams and counts those that arrive, by number.
func (f *flow) run(sizes []int) error {
	var in *net.UDPConn
	var err error
	f.to.Do(func() { in, err = listenNumbered(f.addr, numberedPort) })
	if err != nil {
		return err
	}
	defer in.Close()
	sent := make(chan error, 1)
	go func() {
		defer f.ended.Store(true)
		sent <- f.send(sizes)
	}()
	return errors.Join(f.count(in), <-sent)
}

// listenNumbered listens at an address and a port, with room for bursts.
func listenNumbered(at string, port uint16) (*net.UDPConn, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(at), port)))
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, numberedBuffer)
	})
	return conn, errors.Join(err, refused)
}

func (f *flow) send(sizes []int) error {
	var out net.Conn
	var err error
	f.from.Do(func() { out, err = net.Dial("udp", net.JoinHostPort(f.addr, strconv.Itoa(numberedPort))) })
	if err != nil {
		return err
	}
	defer out.Close()
	rnd := rand.NewChaCha8([32]byte{relaySeed})
	lost := 0
	for ; f.sent < len(sizes) || f.enough != nil && !f.enough(); f.sent++ {
		if f.sent%numberedBurst == 0 {
			lost = f.await(f.sent, lost)
		}
		size := sizes[f.sent%len(sizes)]
		if _, err := out.Write(numbered(rnd, uint64(f.sent), size)); err != nil && !errors.Is(err, syscall.ENOBUFS) {
			return fmt.Errorf("send %d bytes: %w", size, err)
		}
	}
	return nil
}

// await waits until the next burst may be sent. sent were sent, and lost of them are taken for lost; it returns how
// many are now.
func (f *flow) await(sent, lost int) int {
	last, since := f.arrived.Load(), time.Now()
	for {
		time.Sleep(numberedPause)
		now := f.arrived.Load()
		switch {
		case sent-int(now)-lost <= numberedWindow-numberedBurst:
			return lost
		case now != last:
			last, since = now, time.Now()
		case time.Since(since) > numberedPatience:
			return sent - int(now)
		}
	}
}

// count counts datagrams until all were sent and none arrives for a while.
func (f *flow) count(in *net.UDPConn) error {
	f.got = map[uint64]int{}
	for b := make([]byte, 1<<16); ; {
		ended := f.ended.Load()
		_ = in.SetReadDeadline(time.Now().Add(numberedLull))
		n, err := in.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if ended {
				return nil
			}
			continue
		}
		if err != nil {
			return err
		}
		number, err := numberOf(b[:n])
		if err != nil {
			return err
		}
		if f.got[number]++; f.got[number] == 1 {
			f.arrived.Add(1)
		}
	}
}

// observer follows numbered datagrams through the relay.
type observer struct {
	passed  map[uint64]int     // how often a datagram was written, by number
	pieces  map[uint32]*pieces // of the last datagram with an identification
	earlier []*pieces
}

// pieces are the fragments of one datagram, by offset: whether each was written.
type pieces struct {
	number  uint64
	written map[uint16]bool
}

// see notes an inner packet.
func (o *observer) see(packet []byte, written bool) {
	var udp []byte
	var id uint32
	var fragment uint16 // as in IPv4: offset / 8, and 0x2000 for more fragments
	switch packet[0] >> 4 {
	case 4:
		if packet[9] != unix.IPPROTO_UDP {
			return
		}
		udp = packet[ip4Len:]
		id, fragment = uint32(binary.BigEndian.Uint16(packet[4:])), binary.BigEndian.Uint16(packet[6:])&0x3fff
	case 6:
		udp = packet[ip6Len:]
		switch packet[6] {
		case unix.IPPROTO_UDP:
		case unix.IPPROTO_FRAGMENT:
			field := binary.BigEndian.Uint16(udp[2:])
			id, fragment = binary.BigEndian.Uint32(udp[4:]), field>>3|field&1<<13
			udp = udp[8:]
		default:
			return
		}
	default:
		return // ARP
	}
	first := fragment&0x1fff == 0
	if first && binary.BigEndian.Uint16(udp[2:]) != numberedPort {
		return
	}
	if fragment == 0 {
		if written {
			o.passed[binary.BigEndian.Uint64(udp[udpLen:])]++
		}
		return
	}
	p := o.pieces[id]
	if p != nil && first && !written && p.number != binary.BigEndian.Uint64(udp[udpLen:]) {
		o.earlier = append(o.earlier, p)
		p = nil // another datagram with the same identification
	}
	if p == nil {
		p = &pieces{written: map[uint16]bool{}}
		o.pieces[id] = p
	}
	if first {
		p.number = binary.BigEndian.Uint64(udp[udpLen:])
	}
	p.written[fragment&0x1fff] = p.written[fragment&0x1fff] || written
}

// expected returns how often each datagram must arrive. A fragmented one arrives once, however
// often its fragments are repeated.
func (o *observer) expected() map[uint64]int {
	want := maps.Clone(o.passed)
	for _, p := range slices.AppendSeq(slices.Clone(o.earlier), maps.Values(o.pieces)) {
		if !slices.Contains(slices.Collect(maps.Values(p.written)), false) {
			want[p.number] = 1
		}
	}
	return want
}

// sendNumbered sends datagrams both ways over one family, and checks that exactly those arrive
// that passed the relay undamaged, as often as they did.
func (p *relayed) sendNumbered(t *testing.T, addr func(*host) string, sizes []int) {
	t.Helper()
	var seen [2]observer
	for i := range seen {
		seen[i] = observer{passed: map[uint64]int{}, pieces: map[uint32]*pieces{}}
	}
	p.setWatch(func(from int, d datagram, written bool) {
		if m := d.message(); len(m) > ipoib.HeaderLen && !d.path.Dst.IsMulticast() {
			seen[from].see(m[ipoib.HeaderLen:], written)
		}
	})
	var flows [2]flow
	var both sync.WaitGroup
	for i := range flows {
		flows[i].from, flows[i].to, flows[i].addr = p.hosts[i], p.hosts[1-i], addr(p.hosts[1-i])
		both.Go(func() {
			if err := flows[i].run(sizes); err != nil {
				t.Errorf("from host %d to %s: %v", i, flows[i].addr, err)
			}
		})
	}
	both.Wait()
	p.setWatch(nil)
	for i := range flows {
		p.missing += flows[i].check(t, len(sizes), seen[i])
	}
}

// check returns how many datagrams passed the relay but did not arrive.
func (f *flow) check(t *testing.T, sent int, seen observer) (lost uint64) {
	t.Helper()
	want := seen.expected()
	missing, extra, twice := 0, 0, 0
	for number := range uint64(sent) {
		missing += max(0, want[number]-f.got[number])
		extra += max(0, f.got[number]-want[number])
		if f.got[number] > 1 {
			twice++
		}
	}
	t.Logf("%d datagrams to %s: %d arrived, %d of these more than once; %d were fragmented", sent, f.addr, len(f.got), twice, len(seen.pieces)+len(seen.earlier))
	if extra > 0 {
		t.Errorf("to %s: %d datagrams arrived that did not pass the relay", f.addr, extra)
	}
	if len(f.got) < sent*9/10 {
		t.Errorf("to %s: only %d of %d datagrams arrived", f.addr, len(f.got), sent)
	}
	return uint64(missing)
}

func (r *relay) setWatch(watch func(from int, d datagram, written bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch = watch
}
