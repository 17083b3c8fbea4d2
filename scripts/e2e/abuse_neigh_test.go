package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// No host believes a claim of another's fabric address, in any kind of message.
func TestAbuseForgedAddresses(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	s := newSiege(t, join)
	before := s.beliefs()
	forged := s.forgeries()
	want := map[string]uint64{"neigh_drop_forged_link_address": uint64(len(forged))}
	send := func(dst netip.Addr, qpn hca.QPN) func() {
		return func() {
			for _, msg := range forged {
				s.mallory.send(dst, rightPacket(qpn, msg))
			}
		}
	}
	for _, h := range s.honest() {
		h.expect("forged, to this host", want, send(h.underlay(), h.qp().QPN))
	}
	s.a.expect("forged, to the group", want, func() {
		s.b.expect("forged, to the group", want, send(groupAddr, hca.QPNMulticast))
	})
	if now := s.beliefs(); !slices.Equal(now, before) {
		t.Errorf("the hosts' entries are\n%s\nbut were\n%s", strings.Join(now, "\n"), strings.Join(before, "\n"))
	}
	s.end(1)
}

// forgeries returns messages of every kind that contains a sender's address,
// each with every address that is not mallory's own.
func (s *siege) forgeries() (msgs [][]byte) {
	s.t.Helper()
	a, b, none := s.a.qp().QPN, s.b.qp().QPN, hca.QPN(0x123456)
	for _, link := range []ipoib.Addr{
		{},
		endpoint(a, s.a.underlay()),
		endpoint(b, s.b.underlay()),
		endpoint(malloryQPN, s.b.underlay()),
		endpoint(b, s.mallory.addr),
		endpoint(none, s.mallory.addr),
		endpoint(malloryQPN, addr("198.51.100.1")),
	} {
		msgs = append(msgs, s.forgedARP(link)...)
		msgs = append(msgs, s.forgedND(link)...)
	}
	return msgs
}

// forgedARP returns requests, replies and announcements for each host's address
// and for an unused one.
func (s *siege) forgedARP(link ipoib.Addr) (msgs [][]byte) {
	for _, spa := range []string{s.a.ip4(), s.b.ip4(), "10.44.0.99", "0.0.0.0"} {
		for _, tpa := range []string{s.a.ip4(), s.b.ip4(), spa} {
			for _, op := range []uint16{ipoib.ARPRequest, ipoib.ARPReply} {
				body := ipoib.ARP{Op: op, SHA: link, SPA: addr(spa), TPA: addr(tpa)}
				msgs = append(msgs, message(ipoib.EtherTypeARP, body.Append(nil)))
			}
		}
	}
	return msgs
}

// forgedND returns solicitations and advertisements for the same addresses.
func (s *siege) forgedND(link ipoib.Addr) (msgs [][]byte) {
	for _, src := range []string{s.a.ip6(), s.b.ip6(), "fd44::99"} {
		msgs = append(msgs,
			message(ipoib.EtherTypeIPv6, ipoib.AppendUnsolicitedNA(nil, addr(src), link)),
			message(ipoib.EtherTypeIPv6, ipoib.AppendNS(nil, addr(src), addr(s.a.ip6()), link)),
			message(ipoib.EtherTypeIPv6, ipoib.AppendNS(nil, addr(src), addr(s.b.ip6()), link)))
	}
	return msgs
}

// beliefs returns the neighbour entries of the hosts' kernels and daemons, without their age and without link-local
// addresses: the kernel announces them after DAD, and probes a neighbour from them some seconds after its first packet.
func (s *siege) beliefs() (all []string) {
	s.t.Helper()
	for _, h := range s.honest() {
		for line := range strings.Lines(h.Run("ip", "-o", "neigh", "show", "dev", ifName)) {
			if f := strings.Fields(line); len(f) > 2 && f[1] == "lladdr" && !strings.HasPrefix(f[0], "fe80:") {
				all = append(all, fmt.Sprintf("host %d: kernel: %s", h.number, f[:3]))
			}
		}
		for _, p := range h.iface().Peers {
			slices.Sort(p.IPs)
			ips := slices.DeleteFunc(p.IPs, func(ip string) bool { return strings.HasPrefix(ip, "fe80:") })
			all = append(all, fmt.Sprintf("host %d: daemon: %s %s %#x %s", h.number, p.MAC, p.GID, p.QPN, ips))
		}
	}
	slices.Sort(all)
	return all
}

const (
	// heardLimit is the maximum number of heard peers in a table.
	heardLimit = 16_384
	// flood is the number of peers that mallory invents as fast as it can. inventions bounds
	// their total number: one for each invented address.
	flood      = 50_000
	inventions = 1 << 17
	// otherMessages is the maximum number of ARP and ND messages that the table gets from the
	// honest host in the meantime.
	otherMessages = 100
)

// Invented peers, each with its own GID and a consistent address, only replace each other. The
// table stays bounded while they replace all of its heard peers, and an honest peer that the
// host sends to stays in it.
func TestR07AbuseInventedPeers(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	s := newSiege(t, join)
	honest := s.b.qp()
	s.inventPeers()

	peers := s.a.iface().Peers
	if !slices.ContainsFunc(peers, func(p peer) bool {
		return p.GID == honest.GID && p.QPN == honest.QPN && slices.Contains(p.IPs, s.b.ip4())
	}) {
		t.Errorf("the honest peer %+v was evicted", honest)
	}
	s.end(floodLoss)
}

// floodLoss is the loss of the talk, in per cent, that a flood may cause: it
// uses most of two processors for about a second, in which the buffers of
// socket and queue pair overflow.
const floodLoss = 25

// inventPeers sends one request from each peer, until all heard peers of a's table have been
// replaced. It checks that each request is counted once, and the number of peers that remain.
func (s *siege) inventPeers() {
	s.t.Helper()
	spoofer := newSpoofer(s)
	var before book
	eventually(s.t, countLimit, "the counters are read while no message is in transit", func() bool {
		before = s.a.book()
		return before.of("neigh_from_fabric") == before.of("rx_slow_path")
	})
	sent := 0
	invent := func(n int, pause time.Duration) (now book) {
		start := time.Now()
		for last := sent + n; sent < last; sent++ {
			spoofer.ask(sent)
			if sent%100 == 99 {
				time.Sleep(pause)
			}
		}
		s.t.Logf("%d requests sent in %v; of all %d requests", n, time.Since(start).Round(time.Millisecond), sent)

		ends := []string{"rx_slow_path", "rx_drop_slow_path_full", "rx_drop_slow_path_limit", "hca_rx_drop_no_recv", "hca_wire_socket_drops"}
		defer func() {
			for _, name := range append(ends, "neigh_from_fabric", "neigh_peers_evicted") {
				s.t.Logf("%9d %s", now.of(name), name)
			}
		}()
		eventually(s.t, 10*countLimit, "every request is accounted for", func() bool {
			now = s.a.book().since(before)
			return now.of(ends...) >= uint64(sent) && now.of("neigh_from_fabric") == now.of("rx_slow_path")
		})
		return now
	}

	// Most of a flood does not reach the table. The rest is sent at a rate that the table can
	// process.
	now := invent(flood, 0)
	for now.of("neigh_peers_evicted") < heardLimit {
		if sent == inventions {
			s.t.Fatalf("only %d peers were evicted, want at least %d", now.of("neigh_peers_evicted"), heardLimit)
		}
		now = invent(min(inventions-sent, heardLimit/2), 10*time.Millisecond)
	}
	// Each invented peer sent one request, so this is at least the number of those in the table.
	if n := now.of("neigh_from_fabric") - now.of("neigh_peers_evicted"); n > heardLimit+otherMessages {
		s.t.Errorf("%d invented peers remain, want at most %d", n, heardLimit)
	}
}

// spoofer sends from addresses that it does not have, by a raw socket.
type spoofer struct {
	*siege
	fd  int
	qpn hca.QPN
	dst netip.Addr
}

func newSpoofer(s *siege) *spoofer {
	s.t.Helper()
	p := &spoofer{siege: s, qpn: s.a.qp().QPN, dst: s.a.underlay()}
	// The kernel's table of neighbours is shared by all namespaces, those of other tests too: a resolves one gateway
	// for its answers to all invented peers, not each of them. (The kernel takes an address without a route for one
	// of the link.)
	s.a.Run("ip", "route", "add", invented, "via", s.mallory.addr.String())
	// If the table is full nevertheless, the kernel removes neighbours, and then drops most of a flood while it resolves
	// the destination again.
	mac := strings.Fields(s.a.Run("ip", "-br", "link", "show", nstest.Dev))[2]
	s.mallory.Run("ip", "neigh", "replace", p.dst.String(), "lladdr", mac, "dev", nstest.Dev, "nud", "permanent")
	s.mallory.Do(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			s.t.Fatalf("open a raw socket: %v", err)
		}
		p.fd = fd
	})
	s.t.Cleanup(func() { _ = unix.Close(p.fd) })
	return p
}

// invented are the addresses of invented peers (RFC 2544).
const invented = "198.18.0.0/15"

// ask sends an ARP request for a's address from the i-th invented peer: an
// address of these and a queue pair, which agree in message
// and headers. The claimed addresses are few, because the bound of the kernel's
// neighbour cache is shared by all namespaces.
func (p *spoofer) ask(i int) {
	src := netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8), byte(i)})
	qpn := hca.QPN(0x100000 + i)
	claim := p.claim(qpn, src)
	claim.SPA = netip.AddrFrom4([4]byte{10, 44, 0, byte(100 + i%100)})
	p.spoof(src, qpn, message(ipoib.EtherTypeARP, claim.Append(nil)))
}

// spoof sends a message to a's queue pair in the name of another queue pair.
func (p *spoofer) spoof(src netip.Addr, qpn hca.QPN, msg []byte) {
	packet := rightPacket(p.qpn, msg)
	packet.SrcQPN = qpn
	path := roce.Path{Src: src, Dst: p.dst, SrcPort: 0xc000}
	datagram := ipv4UDP(path, packet.encode(path))
	if err := unix.Sendto(p.fd, datagram, 0, &unix.SockaddrInet4{Addr: p.dst.As4()}); err != nil {
		p.t.Fatalf("spoof %s: %v", src, err)
	}
}
