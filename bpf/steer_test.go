package bpf_test

import (
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/bpf"
	"ipoibd/link/linktest/nstest"
)

// newSteering loads a program for any number of queues, and returns its descriptor.
func newSteering(tb testing.TB, queues uint32) int {
	tb.Helper()
	fd, err := bpf.LoadSteering(queues)
	must(tb, err)
	tb.Cleanup(func() { must(tb, unix.Close(fd)) })
	return fd
}

// The programs spread flows over 1, 2, 4 and 8 queues.
func TestSteeringForEachNumberOfQueues(t *testing.T) {
	p, err := programs()
	must(t, err)
	for queues := range bpf.MaxQueues + 2 {
		fd, err := p.Steering(queues)
		if want := queues > 0 && queues <= bpf.MaxQueues && queues&(queues-1) == 0; (err == nil) != want {
			t.Errorf("%d queues: %v, want a program: %t", queues, err, want)
		}
		if err != nil {
			continue
		}
		seen := map[uint32]bool{}
		for port := range uint16(256) {
			seen[testRun(t, fd, ether(0x0800, ipv4(addrA, addrB, 6, 0, [2]uint16{port, 2})))] = true
		}
		if len(seen) != queues || !seen[uint32(queues-1)] {
			t.Errorf("%d queues: flows use %v", queues, seen)
		}
	}
}

var (
	addrA, addrB   = [4]byte{192, 0, 2, 1}, [4]byte{192, 0, 2, 2}
	addrA6, addrB6 = [16]byte{0x20, 1, 0xd, 0xb8, 15: 1}, [16]byte{0x20, 1, 0xd, 0xb8, 15: 2}
)

const (
	moreFragments = 0x2000
	optionsHeader = 60 // IPv6 destination options
	fragHeader    = 44
)

// All packets of a flow get the same queue, whatever their payload and length; so do all
// fragments between two addresses, and all packets with IPv6 extension headers.
func TestSteeringKeepsAFlowTogether(t *testing.T) {
	s := newSteering(t, 1<<16)
	for _, c := range []struct {
		name string
		a, b []byte
		same bool
	}{
		{"IPv4, other payload", ipv4(addrA, addrB, 6, 0, [2]uint16{1, 2}), ipv4(addrA, addrB, 6, 0x4000, [2]uint16{1, 2}, 7, 7, 7), true},
		{"IPv4, other source port", ipv4(addrA, addrB, 6, 0, [2]uint16{1, 2}), ipv4(addrA, addrB, 6, 0, [2]uint16{3, 2}), false},
		{"IPv4, other destination port", ipv4(addrA, addrB, 17, 0, [2]uint16{1, 2}), ipv4(addrA, addrB, 17, 0, [2]uint16{1, 3}), false},
		{"IPv4, other protocol", ipv4(addrA, addrB, 6, 0, [2]uint16{1, 2}), ipv4(addrA, addrB, 17, 0, [2]uint16{1, 2}), false},
		{"IPv4, other direction", ipv4(addrA, addrB, 6, 0, [2]uint16{1, 1}), ipv4(addrB, addrA, 6, 0, [2]uint16{1, 1}), false},
		{"ICMP has no ports", ipv4(addrA, addrB, 1, 0, [2]uint16{0x0800, 1}), ipv4(addrA, addrB, 1, 0, [2]uint16{0x0800, 2}), true},
		{"first and later fragment", ipv4(addrA, addrB, 17, moreFragments, [2]uint16{1, 2}), ipv4(addrA, addrB, 17, 100, [2]uint16{3, 4}), true},
		{"fragments of two destinations", ipv4(addrA, addrB, 17, moreFragments, [2]uint16{1, 2}), ipv4(addrA, addrA, 17, moreFragments, [2]uint16{1, 2}), false},
		{"IPv6, other payload", ipv6(addrA6, addrB6, 6, [2]uint16{1, 2}), ipv6(addrA6, addrB6, 6, [2]uint16{1, 2}, 7, 7, 7), true},
		{"IPv6, other port", ipv6(addrA6, addrB6, 6, [2]uint16{1, 2}), ipv6(addrA6, addrB6, 6, [2]uint16{1, 3}), false},
		{"IPv6 fragments", ipv6(addrA6, addrB6, fragHeader, [2]uint16{1, 2}), ipv6(addrA6, addrB6, fragHeader, [2]uint16{3, 4}), true},
		{"IPv6 options and fragments", ipv6(addrA6, addrB6, optionsHeader, [2]uint16{1, 2}), ipv6(addrA6, addrB6, fragHeader, [2]uint16{3, 4}), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var queues [2]uint32
			for i, p := range [][]byte{c.a, c.b} {
				etherType := uint16(0x0800)
				if p[0]>>4 == 6 {
					etherType = 0x86dd
				}
				queues[i] = testRun(t, s, ether(etherType, p))
			}
			if (queues[0] == queues[1]) != c.same {
				t.Errorf("queues %d and %d, want the same: %t", queues[0], queues[1], c.same)
			}
		})
	}
}

// Flow agrees with the program about all packets, also damaged ones.
func TestFlow(t *testing.T) {
	const queues = 1 << 31
	s := newSteering(t, queues)
	rng := rand.New(rand.NewPCG(1, 2))
	protocols := []uint8{6, 6, 6, 17, 17, 17, 33, 132, 136, 1, 58, 44, 60, 51, 43, 0, 59}
	seen := map[uint32]bool{}
	for range 5000 {
		ports := [2]uint16{uint16(rng.Uint32()), uint16(rng.Uint32())}
		protocol, typ, p := protocols[rng.IntN(len(protocols))], uint16(0x0800), []byte(nil)
		if rng.IntN(2) == 0 {
			p = ipv4(addrA, [4]byte{10, byte(rng.IntN(4))}, protocol, uint16([]int{0, 0x4000, moreFragments, 7}[rng.IntN(4)]), ports, make([]byte, 30)...)
			p[0] = 0x40 | byte(rng.IntN(16))
		} else {
			typ, p = 0x86dd, ipv6(addrA6, [16]byte{byte(rng.IntN(4))}, protocol, ports, make([]byte, 8)...)
		}
		switch rng.IntN(10) {
		case 0:
			typ = 0x0806
		case 1, 2, 3:
			p = p[:rng.IntN(len(p)+1)]
		}
		flow := bpf.Flow(typ, p)
		seen[flow] = true
		if flow == 0 { // its order does not matter
			continue
		}
		if got := testRun(t, s, ether(typ, p)); got != flow>>1 {
			t.Fatalf("type %#x, packet %x: flow %#x, queue %#x", typ, p, flow, got)
		}
	}
	if len(seen) < 500 {
		t.Errorf("only %d flows", len(seen))
	}
}

// IPv4 options move the ports.
func TestSteeringFindsPortsBehindOptions(t *testing.T) {
	s := newSteering(t, 1<<16)
	var queues []uint32
	for _, port := range []byte{1, 2} {
		p := append(ipv4(addrA, addrB, 6, 0, [2]uint16{9, 9}), 0, 1, 0, port)
		p[0] = 0x46
		queues = append(queues, testRun(t, s, ether(0x0800, p)))
	}
	if queues[0] == queues[1] {
		t.Errorf("both flows have queue %d", queues[0])
	}
}

// Malformed and truncated frames of every length get a queue that exists. Without a complete IP
// header, and without IP, that is queue 0.
func TestSteeringOfEveryLength(t *testing.T) {
	const queues = 3
	s := newSteering(t, queues)
	for _, frame := range [][]byte{
		ether(0x0800, ipv4(addrA, addrB, 6, 0, [2]uint16{1, 2})),
		ether(0x86dd, ipv6(addrA6, addrB6, 17, [2]uint16{1, 2})),
		ether(0x0806, make([]byte, 28)),
		ether(0x0800, make([]byte, 40)),
		ether(0x0800, []byte{0x4f, 0, 0, 60, 0, 0, 0, 0, 64, 6, 19: 0}),
	} {
		for n := range len(frame) + 1 {
			got := testRun(t, s, frame[:n])
			header := 34
			if frame[12] == 0x86 {
				header = 54
			}
			if got >= queues || got != 0 && (n < header || frame[13] == 6) {
				t.Errorf("%d bytes of % x: queue %d", n, frame, got)
			}
		}
	}
}

// On a TAP with two queues each flow stays on one queue, and different flows use both. A queue
// beyond those of the program gets no frame.
func TestSteeringOnTAP(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, s := newTAP(t, 3), newSteering(t, 2)
	tap.set(unix.TUNSETSTEERINGEBPF, s)
	const flows, packets = 64, 20
	for i := range packets {
		for flow := range flows {
			must(t, tap.send(ether(0x0800, ipv4(addrA, addrB, 17, 0, [2]uint16{uint16(flow), 53}, byte(i), 1, 2, 3))))
		}
	}
	queueOf, perQueue, total := map[string]int{}, [3]int{}, 0
	for queue := range tap.queues {
		for _, frame := range tap.read(queue, peerMAC) {
			flow := hex.EncodeToString(frame[34:36])
			if first, known := queueOf[flow]; known && first != queue {
				t.Errorf("flow %s uses the queues %d and %d", flow, first, queue)
			}
			queueOf[flow] = queue
			perQueue[queue]++
			total++
		}
	}
	if total != flows*packets || len(queueOf) != flows {
		t.Errorf("%d frames of %d flows arrived, want %d of %d", total, len(queueOf), flows*packets, flows)
	}
	if perQueue[2] != 0 || perQueue[0] < total/4 || perQueue[1] < total/4 {
		t.Errorf("frames per queue: %v", perQueue)
	}
	tap.set(unix.TUNSETSTEERINGEBPF, -1)
}
