package e2e

import (
	"encoding/binary"
	"encoding/json"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// deadPeers is the number of neighbours on the underlay that do not answer.
const deadPeers = 99

// deadLoss is the loss between live hosts, in per cent, that dead neighbours may cause.
const deadLoss = 1

// A host sends 150 multicasts a second to each of 100 peers, and 99 of these peers are
// dead. The kernel queues packets for each dead neighbour, and only these packets are
// lost (R07).
func TestR07DeadPeersCostOnlyTheirOwnFrames(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	args := []string{"--peer", nstest.IPv4(b.number)}
	for i := range deadPeers {
		args = append(args, "--peer", nstest.IPv4(2+i))
	}
	a.join(args...)
	b.join("--peer", nstest.IPv4(a.number))
	pingAll(a, b)
	before := a.book()
	talk := b.talkTo(a)
	for range 4 { // 50 a second each at most, and 40 where timers tick at 100 Hz
		a.background("ping", "-n", "-q", "-I", ifName, "-i", "0.02", "-s", "1372", "239.1.2.3")
	}
	runs := form(10*time.Second, 5*time.Minute)
	time.Sleep(runs)
	talk.end(deadLoss)
	requireNoRung(t, hosts...)
	k := a.logSends(before)
	// Each multicast loops back once, and so does each probe.
	multicasts := k.of("hca_tx_looped") - k.of("freeze_probes")
	perSecond := float64(multicasts) / runs.Seconds()
	t.Logf("%.0f multicasts a second", perSecond)
	if least := form(50.0, 150); perSecond < least {
		t.Errorf("%.0f multicasts a second, want %.0f at least", perSecond, least)
	}
	if sent := k.of("hca_tx_packets"); sent < deadPeers*multicasts {
		t.Errorf("%d datagrams for %d multicasts: the host did not send to every dead neighbour", sent, multicasts)
	}
}

// An attacker makes a host answer 99 unused underlay addresses, 8,000 times a second in
// bursts of 4 s. The host keeps answering other hosts (R07).
func TestR07SpoofedSourcesCostOnlyTheirOwnFrames(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	const rate, burst = 8000, 4 * time.Second
	s := newSiege(t, join)
	p := newSpoofer(s)
	before := s.a.book()
	echoes := 0
	for end := time.Now().Add(form(2*burst, 5*time.Minute)); time.Now().Before(end); time.Sleep(time.Second) {
		start := time.Now()
		for sent := 0; time.Since(start) < burst; time.Sleep(time.Millisecond) {
			due := int(time.Since(start).Seconds() * rate)
			// What this process has missed while it waited for a processor would overflow the host's socket at once.
			for sent = max(sent, due-rate/20); sent < due; sent++ {
				if sent%rate < deadPeers { // every second, so that a's kernel keeps them reachable
					p.introduce(sent % rate)
				}
				p.echo(sent % deadPeers)
				echoes++
			}
		}
	}
	s.talk.end(deadLoss)
	requireNoRung(t, s.a, s.b)
	if sent := s.a.logSends(before).of("hca_tx_packets"); sent < uint64(echoes/2) {
		t.Errorf("%d datagrams for %d echo requests: the host did not answer them", sent, echoes)
	}
}

// An underlay that sends nothing for 3 s, with a queue long enough to fill every buffer
// above it, is not a fault of the device, so no queue pair is reset (R07, R08).
func TestR08BlockedUnderlayResetsNothing(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	const blocked = 3 * time.Second
	a, b := twoJoined(t)
	flood := a.dialUDP(b)
	for range form(1, 10) {
		before := a.book()
		talk := b.talkTo(a)
		// A token bucket passes at least a byte a second.
		a.Run("tc", "qdisc", "replace", "dev", nstest.Dev, "root", "tbf", "rate", "8", "burst", "2000", "limit", "1000000000")
		for start := time.Now(); time.Since(start) < blocked; {
			_, _ = flood.Write(make([]byte, 1372)) // refused at times, while ib0's queue is full
		}
		a.Run("tc", "qdisc", "del", "dev", nstest.Dev, "root")
		took := b.waitReaches(a)
		talk.end(100) // the underlay passed no packets for a while
		t.Logf("reached again %v after the underlay resumed", took)
		requireOnlyRungs(t, []string{resumeQP}, a, b)
		if a.logSends(before).of("hca_tx_drop_no_room", "hca_wire_tx_drop_no_buffers") == 0 {
			t.Error("the wire was not full, so the test proves nothing")
		}
	}
}

// dialUDP opens a UDP socket to ib0 of another host.
func (h *host) dialUDP(other *host) net.Conn {
	h.tb.Helper()
	var conn net.Conn
	h.Do(func() {
		var err error
		if conn, err = net.Dial("udp4", net.JoinHostPort(other.ip4(), "9")); err != nil {
			h.tb.Fatal(err)
		}
	})
	h.tb.Cleanup(func() { conn.Close() })
	return conn
}

// logSends logs the outcome of a host's datagrams since an earlier book, and returns the
// counters since then.
func (h *host) logSends(before book) book {
	h.tb.Helper()
	now := h.book().since(before)
	sends := map[string]uint64{}
	for _, name := range append(append([]string{"hca_tx_packets", "hca_wire_tx_packets"}, sendDrops...), wireDrops...) {
		if n := now.of(name); n > 0 {
			sends[name] = n
		}
	}
	h.tb.Logf("host %d sent %v", h.number, sends)
	return now
}

// rungs returns how often the device and the interface of a host entered each rung.
func (h *host) rungs() map[string]uint64 {
	h.tb.Helper()
	type ladder struct {
		Recovery struct {
			Rungs map[string]uint64 `json:"rungs"`
		} `json:"recovery"`
	}
	var s struct {
		Devices    []ladder `json:"devices"`
		Interfaces []ladder `json:"interfaces"`
	}
	out, err := h.daemon.command("status", "--json").Output()
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	if err != nil || len(s.Devices) != 1 || len(s.Interfaces) != 1 {
		h.tb.Fatalf("status: %v\n%s", err, out)
	}
	all := map[string]uint64{}
	for _, l := range append(s.Devices, s.Interfaces...) {
		for rung, n := range l.Recovery.Rungs {
			all[rung] += n
		}
	}
	return all
}

func requireNoRung(t *testing.T, hosts ...*host) {
	t.Helper()
	requireOnlyRungs(t, nil, hosts...)
}

// requireOnlyRungs checks that the hosts entered no rung but the allowed ones.
func requireOnlyRungs(t *testing.T, allowed []string, hosts ...*host) {
	t.Helper()
	for _, h := range hosts {
		entered := h.rungs()
		t.Logf("host %d: rungs %v", h.number, entered)
		for _, rung := range allowed {
			delete(entered, rung)
		}
		if len(entered) > 0 {
			t.Errorf("host %d: rungs %v, want only %v", h.number, entered, allowed)
		}
	}
}

// ghost returns the i-th address of the underlay that no host has, and the address of ib0
// and the queue pair that it claims.
func ghost(i int) (underlay, inner netip.Addr, qpn hca.QPN) {
	inner = netip.AddrFrom4([4]byte{10, 44, 0, byte(100 + i)})
	return addr(nstest.IPv4(100 + i)), inner, hca.QPN(0x100000 + i)
}

// introduce makes the host learn the i-th ghost, or hear from it again.
func (p *spoofer) introduce(i int) {
	p.t.Helper()
	src, inner, qpn := ghost(i)
	for _, op := range []uint16{ipoib.ARPRequest, ipoib.ARPReply} {
		claim := p.claim(qpn, src)
		claim.Op, claim.SPA, claim.TPA = op, inner, addr(p.a.ip4())
		claim.THA = endpoint(p.qpn, p.dst)
		p.spoof(src, qpn, message(ipoib.EtherTypeARP, claim.Append(nil)))
	}
}

// echo sends the host an echo request in the name of the i-th ghost.
func (p *spoofer) echo(i int) {
	p.t.Helper()
	src, inner, qpn := ghost(i)
	p.spoof(src, qpn, message(ipoib.EtherTypeIPv4, ipv4Echo(inner, addr(p.a.ip4()))))
}

// ipv4Echo returns an IPv4 packet with an ICMP echo request (RFC 792).
func ipv4Echo(src, dst netip.Addr) []byte {
	const ipLen, payload = 20, 1000
	b := make([]byte, ipLen+8+payload)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_ICMP
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(b[10:], hca.IPv4Checksum(b[:ipLen]))
	b[ipLen] = 8
	binary.BigEndian.PutUint16(b[ipLen+2:], hca.IPv4Checksum(b[ipLen:]))
	return b
}
