package bpf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"ipoibd/bpf"
	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
)

// underlays are the addresses of two hosts, of each family.
var underlays = []struct {
	name  string
	addrs [2]string
}{{"IPv4", [2]string{"192.0.2.1", "192.0.2.2"}}, {"IPv6", [2]string{"2001:db8::1", "2001:db8::2"}}}

// The fast path sends the same packets as the pure codec makes, byte for byte, and makes the same frames of them. It
// completes partial checksums.
func TestFastPathAgreesWithCodec(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, u := range underlays {
		t.Run(u.name, func(t *testing.T) {
			nstest.New(t).Do(func() {
				a, b := twoFastHosts(t, u.addrs)
				rng := rand.New(rand.NewPCG(1, 2))
				const frames = 1000
				for n := range uint32(frames) {
					frame, want := a.frameTo(b, rng)
					result, packet := a.sends(t, frame)
					if result != actRedirect {
						t.Fatalf("frame %x: result %#x; %+v", frame, result, a.gate.Counts())
					}
					pure := a.packetOf(want, b, (firstPSN+n)&0xffffff, a.port(packet))
					p := pure.bytes() // with an Ethernet header, which the kernel writes later
					if !bytes.Equal(packet[14:], p[14:]) {
						t.Fatalf("frame %x: sent\n%x, want\n%x", frame, packet[14:], p[14:])
					}
					result, got := b.receives(t, p)
					if result != actRedirect || !bytes.Equal(got, want) {
						t.Fatalf("packet %x: result %#x, received\n%x, want\n%x; %+v", p, result, got, want, b.gate.Counts())
					}
				}
				sent, received := a.gate.Counts(), b.gate.Counts()
				if sent.Tx[bpf.FastCarried] != frames || received.Rx[bpf.FastCarried] != frames || sent.TxBytes != received.RxBytes {
					t.Errorf("sent %+v, received %+v", sent, received)
				}
				to, _ := a.gate.PeerCounts(b.MAC)
				from, _ := b.gate.PeerCounts(a.MAC)
				if to.TxPackets != frames || from.RxPackets != frames || to.TxBytes != from.RxBytes || to.TxBytes != sent.TxBytes-frames*14 {
					t.Errorf("to the peer %+v, from the peer %+v", to, from)
				}
			})
		})
	}
}

// What the fast path does not carry from the host remains as it is, and is counted.
func TestFastPathLeavesFrames(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nstest.New(t).Do(func() {
		a, b := twoFastHosts(t, underlays[0].addrs)
		udp := func(ports ...uint16) []byte {
			l4 := binary.BigEndian.AppendUint16(nil, ports[0])
			return append(binary.BigEndian.AppendUint16(l4, ports[1]), make([]byte, 24)...)
		}
		v4 := func(protocol byte, l4 []byte) []byte { return ipv4Packet(inner4[0], inner4[1], 0, 64, 7, protocol, l4) }
		v6 := func(next byte, l4 []byte) []byte { return ipv6Packet(inner6[0], inner6[1], 0, 0, 64, next, l4) }
		edit := func(b []byte, at int, v byte) []byte { b[at] = v; return b }
		for _, c := range []struct {
			name   string
			ip     []byte
			ether  func(ether []byte)
			at     skBuff
			reason bpf.Verdict
		}{
			{"too long", v4(17, make([]byte, bpf.MaxFastPacket-20+1)), nil, skBuff{}, bpf.FastLength},
			{"to be cut", v4(6, make([]byte, 400)), nil, skBuff{GSOSize: 100, GSOSegs: 4}, bpf.FastLength},
			{"shorter than a UDP header", v4(17, make([]byte, 7)), nil, skBuff{}, bpf.FastKind},
			{"shorter than a TCP header", v6(6, make([]byte, 19)), nil, skBuff{}, bpf.FastKind},
			{"IPv4 options", edit(v4(17, udp(1, 2)), 0, 0x46), nil, skBuff{}, bpf.FastKind},
			{"first fragment", edit(v4(17, udp(1, 2)), 6, 0x20), nil, skBuff{}, bpf.FastKind},
			{"last fragment", edit(v4(17, udp(1, 2)), 7, 1), nil, skBuff{}, bpf.FastKind},
			{"IPv4 with a wrong length", edit(v4(17, udp(1, 2)), 3, 47), nil, skBuff{}, bpf.FastKind},
			{"IPv6 with a wrong length", edit(v6(17, udp(1, 2)), 5, 27), nil, skBuff{}, bpf.FastKind},
			{"another version", edit(v4(17, udp(1, 2)), 0, 0x65), nil, skBuff{}, bpf.FastKind},
			{"IPv4 multicast", edit(v4(17, udp(1, 2)), 16, 224), nil, skBuff{}, bpf.FastKind},
			{"IPv6 multicast", edit(v6(17, udp(1, 2)), 24, 0xff), nil, skBuff{}, bpf.FastKind},
			{"DHCP", v4(17, udp(68, 67)), nil, skBuff{}, bpf.FastKind},
			{"DHCP from a server", v4(17, udp(67, 1068)), nil, skBuff{}, bpf.FastKind},
			{"DHCPv6", v6(17, udp(546, 547)), nil, skBuff{}, bpf.FastKind},
			{"a port of DHCPv6 in IPv4", v4(17, udp(1, 546)), nil, skBuff{}, bpf.FastKind},
			{"a port of DHCP in IPv6", v6(17, udp(67, 1)), nil, skBuff{}, bpf.FastKind},
			{"ICMP but no echo", v4(1, []byte{3, 0, 0, 0, 0, 0, 0, 0}), nil, skBuff{}, bpf.FastKind},
			{"neighbour discovery", v6(58, append([]byte{135}, make([]byte, 31)...)), nil, skBuff{}, bpf.FastKind},
			{"IPv6 fragment", v6(44, make([]byte, 40)), nil, skBuff{}, bpf.FastKind},
			{"SCTP", v4(132, make([]byte, 40)), nil, skBuff{}, bpf.FastKind},
			{"ARP", v4(17, udp(1, 2)), func(e []byte) { e[13] = 6 }, skBuff{}, bpf.FastKind},
			{"from another MAC", v4(17, udp(1, 2)), func(e []byte) { e[11]++ }, skBuff{}, bpf.FastStranger},
			{"to another MAC", v4(17, udp(1, 2)), func(e []byte) { e[5]++ }, skBuff{}, bpf.FastStranger},
			{"broadcast", v4(17, udp(1, 2)), func(e []byte) { copy(e, "\xff\xff\xff\xff\xff\xff") }, skBuff{}, bpf.FastStranger},
		} {
			frame := append(append(slices.Clone(b.MAC[:]), a.MAC[:]...), 0x08, 0x00)
			if c.ip[0]>>4 == 6 && c.name != "another version" {
				frame[12], frame[13] = 0x86, 0xdd
			}
			frame = append(frame, c.ip...)
			if c.ether != nil {
				c.ether(frame)
			}
			c.at.Ifindex = uint32(a.Netdev)
			a.gate.PassAll()
			before := a.gate.Counts()
			result, out := run(t, a.send, c.at, frame)
			after := a.gate.Counts()
			if result != actNext || !bytes.Equal(out, frame) || after.Tx[c.reason] != before.Tx[c.reason]+1 {
				t.Errorf("%s: result %#x, changed: %t, counts %v, were %v", c.name, result, !bytes.Equal(out, frame), after.Tx, before.Tx)
			}
		}
		if result, _ := run(t, a.send, skBuff{Ifindex: uint32(a.Underlay)}, make([]byte, 60)); result != actNext {
			t.Errorf("at a netdev without a gate: result %#x", result)
		}
	})
}

// What the fast path does not accept from the underlay remains as it is, and is counted.
func TestFastPathLeavesPackets(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, u := range underlays {
		t.Run(u.name, func(t *testing.T) { nstest.New(t).Do(func() { testLeavesPackets(t, u.addrs) }) })
	}
}

func testLeavesPackets(t *testing.T, addrs [2]string) {
	a, b := twoFastHosts(t, addrs)
	const notOurs = bpf.NumVerdict // not even counted
	datagram := 14 + a.ipLen()     // offset of the UDP header
	for _, c := range []struct {
		name   string
		seal   func(p *packet)
		edit   func(b []byte) // after the ICRC was computed
		reason bpf.Verdict
	}{
		{"another port", nil, func(p []byte) { p[datagram+3]++ }, notOurs},
		{"TCP", nil, func(p []byte) { p[datagram-a.ipLen()+map[int]int{20: 9, 40: 6}[a.ipLen()]] = 6 }, notOurs},
		{"another QPN", func(p *packet) { p.bth.DestQPN++ }, nil, notOurs},
		{"multicast", func(p *packet) { p.bth.DestQPN = hca.QPNMulticast }, nil, notOurs},
		{"another opcode", func(p *packet) { p.bth.Opcode = 4 }, nil, bpf.FastHeader},
		{"another transport version", func(p *packet) { p.bth.Version = 1 }, nil, bpf.FastHeader},
		{"limited member", func(p *packet) { p.bth.PKey = 0x7fff }, nil, bpf.FastHeader},
		{"another Q_Key", func(p *packet) { p.deth.QKey++ }, nil, bpf.FastHeader},
		{"reserved bits of IPoIB", func(p *packet) { p.message[3] = 1 }, nil, bpf.FastHeader},
		{"another destination", func(p *packet) { p.dst = p.dst.Next() }, nil, bpf.FastHeader},
		{"another length of UDP", nil, func(p []byte) { p[datagram+5]++ }, bpf.FastHeader},
		{"unknown QPN", func(p *packet) { p.deth.SrcQPN++ }, nil, bpf.FastStranger},
		{"unknown address", func(p *packet) { p.src = p.src.Next().Next() }, nil, bpf.FastStranger},
		{"own address", func(p *packet) { p.src = p.dst }, nil, bpf.FastStranger},
		{"mapped addresses", func(p *packet) { // an IPv4 gate does not know them
			if p.src.Is4() {
				p.src, p.dst = netip.AddrFrom16(p.src.As16()), netip.AddrFrom16(p.dst.As16())
			} else {
				p.src = netip.AddrFrom16(netip.MustParseAddr("192.0.2.1").As16())
			}
		}, nil, map[bool]bpf.Verdict{true: bpf.FastHeader, false: bpf.FastStranger}[a.Addr.Is4()]},
		{"ARP", func(p *packet) { p.message[1] = 6 }, nil, bpf.FastKind},
		{"IPoIB type without a meaning", func(p *packet) { p.message[0] = 0x12 }, nil, bpf.FastKind},
		{"a fragment", func(p *packet) { p.message[4+6] = 0x20 }, nil, bpf.FastKind},
		{"multicast inside", func(p *packet) { p.message[4+16] = 224 }, nil, bpf.FastKind},
		{"no whole words", func(p *packet) { p.bth.Pad = 1 }, nil, bpf.FastHeader},
		{"damaged payload", nil, func(p []byte) { p[len(p)-6]++ }, bpf.FastDamaged},
		{"damaged ICRC", nil, func(p []byte) { p[len(p)-1]++ }, bpf.FastDamaged},
		{"damaged PSN", nil, func(p []byte) { p[datagram+8+11]++ }, bpf.FastDamaged},
		{"to another host", nil, func(p []byte) { p[5] ^= 1 }, notOurs},
	} {
		frame := append(append(slices.Clone(b.MAC[:]), a.MAC[:]...), 0x08, 0x00)
		frame = append(frame, ipv4Packet(inner4[0], inner4[1], 0, 64, 7, 17, make([]byte, 36))...)
		p := a.packetOf(frame, b, 1, 0xc000)
		if c.seal != nil {
			c.seal(&p)
		}
		packet := p.bytes()
		copy(packet, b.outer[:])
		if c.edit != nil {
			c.edit(packet)
		}
		b.gate.PassAll()
		before := b.gate.Counts()
		result, out := run(t, b.recv, skBuff{Ifindex: uint32(b.Underlay)}, packet)
		after := b.gate.Counts()
		want := before
		if c.reason != notOurs {
			want.Rx[c.reason]++
		}
		if result != actNext || !bytes.Equal(out, packet) || after != want {
			t.Errorf("%s: result %#x, changed: %t, counts %v, want %v", c.name, result, !bytes.Equal(out, packet), after.Rx, want.Rx)
		}
	}
	if p, ok := a.gate.PeerCounts(b.MAC); !ok || p != (bpf.PeerCounts{}) {
		t.Errorf("counts of a peer without traffic: %+v, %t", p, ok)
	}
}

var packets = flag.Int("packets", 5000, "how many packets TestFastPathAcceptsNoMoreThanCodec makes in each family")

// Whatever the fast path accepts, the pure codec accepts as well, and finds the same in it.
func TestFastPathAcceptsNoMoreThanCodec(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, u := range underlays {
		t.Run(u.name, func(t *testing.T) {
			nstest.New(t).Do(func() {
				a, b := twoFastHosts(t, u.addrs)
				seed := rand.Uint64()
				rng := rand.New(rand.NewPCG(seed, 0))
				carried := 0
				for range *packets {
					_, frame := a.frameTo(b, rng)
					p := a.packetOf(frame, b, rng.Uint32(), uint16(rng.Uint32()))
					p.id = uint16(rng.IntN(3))
					packet := p.bytes()
					edits := rng.IntN(3)
					for range edits {
						switch at := 14 + rng.IntN(len(packet)-14); rng.IntN(8) {
						case 0:
							packet = packet[:max(at, 14+40)]
						case 1:
							packet = append(packet, byte(at))
						default:
							packet[at] ^= 1 << rng.IntN(8)
						}
					}
					result, got := b.receives(t, packet)
					if result != actRedirect {
						if edits == 0 {
							t.Fatalf("seed %d: packet %x was not carried: %+v", seed, packet, b.gate.Counts())
						}
						b.gate.PassAll()
						continue
					}
					carried++
					if want := b.decoded(packet, a); !bytes.Equal(got, want) {
						t.Fatalf("seed %d: packet %x was made\n%x, want\n%x", seed, packet, got, want)
					}
				}
				t.Logf("%d carried", carried)
				if carried < *packets/4 {
					t.Error("too few")
				}
			})
		})
	}
}

// decoded returns the frame in a packet from a peer according to the pure codec, or nil if that does not accept it.
func (h *fastHost) decoded(p []byte, from *fastHost) []byte {
	ip, udp := p[14:14+h.ipLen()], p[14+h.ipLen():]
	path := roce.Path{SrcPort: binary.BigEndian.Uint16(udp)}
	var ok bool
	if h.Addr.Is4() {
		path.Src, path.Dst, path.ID = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:])), binary.BigEndian.Uint16(ip[4:])
		ok = ip[0] == 0x45 && ip[9] == 17 && fold(ip) == 0xffff && int(binary.BigEndian.Uint16(ip[2:])) == len(p)-14
	} else {
		path.Src, path.Dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		ok = ip[0]>>4 == 6 && ip[6] == 17 && int(binary.BigEndian.Uint16(ip[4:])) == len(udp) && fold(append(binary.BigEndian.AppendUint16(nil, pseudo(p[14:], 40)), udp...)) == 0xffff
	}
	ok = ok && binary.BigEndian.Uint16(udp[2:]) == roce.Port && int(binary.BigEndian.Uint16(udp[4:])) == len(udp)
	var u roce.UDSend
	var v roce.Verifier
	if !ok || path.Src != from.Addr || path.Dst != h.Addr || u.Parse(udp[8:]) != nil || v.Verify(&path, true, udp[8:]) == roce.NoMatch ||
		u.DestQPN != hca.QPN(h.Num) || u.SrcQPN != hca.QPN(from.Num) || u.QKey != hca.QKey(h.QKey) || u.PKey != hca.PKey(h.PKey) {
		return nil
	}
	return append(append(append(slices.Clone(h.MAC[:]), from.MAC[:]...), u.Payload[:2]...), u.Payload[4:]...)
}

// No frame overtakes an earlier one of its flow.
func TestFastPathKeepsOrder(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nstest.New(t).Do(func() {
		a, b := twoFastHosts(t, underlays[0].addrs)
		frame := func(port uint16, n int) []byte {
			l4 := append(binary.BigEndian.AppendUint16([]byte{0, 1}, port), make([]byte, n)...)
			return append(append(append(slices.Clone(b.MAC[:]), a.MAC[:]...), 0x08, 0x00), ipv4Packet(inner4[0], inner4[1], 0, 64, 7, 17, l4)...)
		}
		fragment := func(port uint16) []byte {
			f := frame(port, 100)
			f[14+6] = 0x20
			return f
		}
		for _, c := range []struct {
			name    string
			host    *fastHost
			peer    bpf.FastPeer
			carried func(f []byte) bool
			pass    func(lane int, flow, n uint32)
			lane    func(flow uint32) int
		}{
			{
				"sent", a, b.asPeer(), func(f []byte) bool { r, _ := a.sends(t, f); return r == actRedirect },
				func(_ int, flow, n uint32) { a.gate.Sent(flow, n) },
				func(flow uint32) int { return int(flow >> 31) },
			},
			{
				"received", b, a.asPeer(), func(f []byte) bool {
					p := a.packetOf(f, b, 0, 0xc001)
					r, _ := b.receives(t, p.bytes())
					return r == actRedirect
				}, b.gate.Received, func(uint32) int { return 1 },
			},
		} {
			now := time.Now()
			expect := func(what string, f []byte, want bool) {
				t.Helper()
				if got := c.carried(f); got != want {
					t.Errorf("%s: %s: carried: %t", c.name, what, got)
				}
			}
			pass := func(f []byte) {
				flow := bpf.Flow(0x0800, f[14:])
				c.pass(c.lane(flow), flow, 1)
			}
			short, long := frame(5, 20), frame(5, 1000)
			expect("first", short, true)
			pass(short) // of the daemon itself: no program has left it
			expect("a long one", long, false)
			expect("a short one behind it", short, false)
			expect("a short one of another flow", frame(6, 20), true)
			pass(long)
			expect("when the long one has passed", short, false)
			pass(short)
			expect("when one more has", short, false)
			pass(short)
			pass(short)
			expect("when all have", short, true)
			expect("a fragment, perhaps of this flow", fragment(5), false)
			expect("a short one behind it", short, false)
			pass(short)
			pass(fragment(5))
			expect("when both have passed", short, true)

			expect("a long one that will be lost", long, false)
			rounds := 0
			for ; !c.carried(short); rounds++ { // until the long one is believed to be lost
				pass(short)
				now = now.Add(150 * time.Millisecond)
				c.host.idle(now)
				if rounds == 100 {
					t.Fatal(c.name + ": a lost one is waited for without end")
				}
			}
			if rounds < 4 {
				t.Errorf("%s: believed to be lost after %d rounds", c.name, rounds)
			}

			c.host.gate.Shut()
			expect("with a closed gate", short, false)
			c.host.gate.Open(c.host.GateKeys)
			expect("with an open gate", short, false)
			pass(short)
			expect("while one waits", short, false)
			pass(short)
			pass(short)
			expect("when all have passed", short, true)
		}
	})
}

// Once Shut or RemovePeer has returned, no program sends or accepts anything, however many run.
func TestFastPathShuts(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoFastHosts(t, underlays[0].addrs)
	rng := rand.New(rand.NewPCG(1, 2))
	_, frame := a.frameTo(b, rng)
	p := a.packetOf(frame, b, 0, 0xc000)
	packet := p.bytes()
	copy(packet, b.outer[:])
	done := make(chan struct{})
	var flood sync.WaitGroup
	runs := func(h *fastHost, at int, data []byte) {
		prog := map[bool]*ebpf.Program{true: h.send, false: h.recv}[at == h.Netdev]
		o := ebpf.RunOptions{Data: data, DataOut: make([]byte, 4096), Context: skBuff{Ifindex: uint32(at)}}
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, err := prog.Run(&o); err != nil {
				t.Error(err)
				return
			}
			o.DataOut = o.DataOut[:cap(o.DataOut)]
		}
	}
	defer flood.Wait()
	defer close(done) // before it waits
	for range 2 {
		flood.Go(func() { runs(a, a.Netdev, frame) })
		flood.Go(func() { runs(b, b.Underlay, packet) })
	}
	carried := 0
	for n := range 40 {
		for _, h := range []*fastHost{a, b} {
			peer := map[*fastHost]*fastHost{a: b, b: a}[h]
			sofar := func() uint64 { c := h.gate.Counts(); return c.Tx[bpf.FastCarried] + c.Rx[bpf.FastCarried] }
			for before := sofar(); sofar() == before && !t.Failed(); {
				h.gate.PassAll() // what was left while the gate was closed
				time.Sleep(10 * time.Microsecond)
			}
			var end bpf.GateCounts
			if n%2 == 0 {
				h.gate.Shut()
				end = h.gate.Counts()
			} else {
				last, err := h.gate.RemovePeer(peer.MAC)
				must(t, err)
				end = h.gate.Counts()
				carried += int(last.TxPackets + last.RxPackets)
			}
			psn := *h.gate.PSN()
			time.Sleep(100 * time.Microsecond)
			if now := h.gate.Counts(); now.Tx[bpf.FastCarried] != end.Tx[bpf.FastCarried] || now.Rx[bpf.FastCarried] != end.Rx[bpf.FastCarried] || *h.gate.PSN() != psn {
				t.Fatalf("round %d: carried afterwards: %+v, were %+v", n, now, end)
			}
			if n%2 == 0 {
				h.gate.Open(h.GateKeys)
			} else {
				must(t, h.gate.AddPeer(peer.asPeer()))
			}
		}
	}
	t.Logf("%d carried, %+v", carried, a.gate.Counts())
	if carried == 0 {
		t.Error("the peers have carried nothing")
	}
}

// emptyLimit is ten times the goal for the time from the end of a process to that of its fast path. The kernel empties the map
// of calls from a work queue (prog_array_map_clear, kernel/bpf/arraymap.c), which waits for a processor.
const emptyLimit = time.Second

// When the process ends, everything soon takes its usual way through the attached programs.
func TestFastPathEndsWithItsProcess(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nstest.New(t).Do(func() {
		a, b := twoFastHosts(t, underlays[0].addrs)
		_, frame := a.frameTo(b, rand.New(rand.NewPCG(1, 2)))
		result, _ := a.sends(t, frame)
		if result != actRedirect {
			t.Fatalf("result %#x", result)
		}
		must(t, unix.Close(a.calls))
		closed := time.Now()
		for result == actRedirect && time.Since(closed) < emptyLimit {
			result, _ = a.sends(t, frame)
		}
		t.Logf("ended within %v", time.Since(closed))
		before := a.gate.Counts()
		if result, out := a.sends(t, frame); result != actNext || !bytes.Equal(out, frame) || a.gate.Counts() != before {
			t.Errorf("result %#x; %+v, was %+v", result, a.gate.Counts(), before)
		}
	})
}

// The numbers of queue pairs and of peers are bounded, and those that were removed are free again.
func TestFastPathIsBounded(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	nstest.New(t).Do(func() {
		a := newFastHost(t, 1, "192.0.2.1")
		fill := func(add func(n uint32) error, limit error) (n uint32) {
			for {
				if err := add(n); err != nil {
					if !errors.Is(err, limit) {
						t.Fatal(err)
					}
					return n
				}
				n++
			}
		}
		var gates []*bpf.Gate
		if n := fill(func(n uint32) error {
			spec := a.GateSpec
			spec.Netdev, spec.Num = 1000+int(n), 0x1000+n
			g, err := a.path.Gate(spec)
			gates = append(gates, g)
			return err
		}, bpf.ErrNoGate); n != 63 {
			t.Errorf("%d more queue pairs", n)
		}
		if n := fill(func(n uint32) error {
			peer := a.asPeer()
			binary.BigEndian.PutUint32(peer.MAC[2:], n)
			peer.Num = n
			return a.gate.AddPeer(peer)
		}, bpf.ErrNoPeer); n != 4096 {
			t.Errorf("%d peers", n)
		}
		must(t, gates[0].Close())
		must(t, a.gate.Close())
		var err error
		a.gate, err = a.path.Gate(a.GateSpec)
		must(t, err)
		if _, err := a.path.Gate(a.GateSpec); err == nil {
			t.Error("two queue pairs with one TAP")
		}
		must(t, a.gate.AddPeer(a.asPeer()))
		if err := a.gate.AddPeer(a.asPeer()); err == nil {
			t.Error("two peers with one MAC")
		}
		for _, bad := range []func(s *bpf.GateSpec){
			func(s *bpf.GateSpec) { s.Ports = nil },
			func(s *bpf.GateSpec) { s.Ports = make([]uint16, 9) },
			func(s *bpf.GateSpec) { s.Addr = netip.Addr{} },
		} {
			spec := a.GateSpec
			bad(&spec)
			if _, err := a.path.Gate(spec); err == nil {
				t.Errorf("a gate for %+v", spec)
			}
		}
	})
}

// Without capabilities the fast path is refused, and says what is missing; what was loaded works.
func TestFastPathWithoutCapabilities(t *testing.T) {
	fds, err := bpf.LoadFastPath()
	must(t, err)
	withoutCapabilities(t, func() {
		if _, err := bpf.LoadFastPath(); !errors.Is(err, bpf.ErrNotPermitted) {
			t.Errorf("%v", err)
		}
		p, err := bpf.OpenFastPath(fds)
		if err != nil {
			t.Error(err)
			return
		}
		g, err := p.Gate(bpf.GateSpec{Netdev: 1, Underlay: 2, Addr: netip.MustParseAddr("192.0.2.1"), Num: 2, Ports: []uint16{1}})
		if err != nil {
			t.Error(err)
			return
		}
		if err := errors.Join(g.AddPeer(bpf.FastPeer{Addr: netip.MustParseAddr("192.0.2.2")}), g.Close()); err != nil {
			t.Error(err)
		}
	})
}
