package vm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
)

// roceFilter selects RoCEv2: whole packets and first fragments.
const roceFilter = "udp and dst port 4791"

// wire counts the RoCEv2 frames of a capture by sender.
type wire map[netip.Addr]int

// senderQP is a queue pair that sends.
type senderQP struct {
	addr netip.Addr
	qpn  hca.QPN
}

// verifyWire checks that every frame of a capture is a UD SEND whose ICRC matches
// with the identification in its IP header, that the PSNs of each queue pair are in order (see psnOrder),
// and that every message is a packet of IP whose lengths and checksums are right. It counts
// the frames. The packets of rxe devices and of those with a fast path, which the caller lists, may be reordered.
func verifyWire(tb testing.TB, c *nstest.Capture, reordered ...netip.Addr) wire {
	tb.Helper()
	file, err := os.Open(c.Path)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	r, err := pcapgo.NewReader(file)
	if err != nil {
		tb.Fatalf("read %s: %v", c.Path, err)
	}
	w, psns := wire{}, map[senderQP]*psnOrder{}
	for n := 0; ; n++ {
		data, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return w
		}
		if err != nil {
			tb.Fatalf("read %s: %v", c.Path, err)
		}
		path, datagram := dissect(tb, data)
		w[path.Src]++
		if match := new(roce.Verifier).Verify(&path, true, datagram); match != roce.MatchKnownID {
			tb.Errorf("frame %d from %v: its ICRC does not match: % x", n, path.Src, data)
		}
		var send roce.UDSend
		if err = send.Parse(datagram); err != nil {
			tb.Errorf("frame %d from %v: %v", n, path.Src, err)
			continue
		}
		qp := senderQP{path.Src, send.SrcQPN}
		if psns[qp] == nil {
			psns[qp] = &psnOrder{reordered: slices.Contains(reordered, path.Src), seen: map[uint32]bool{}, last: map[netip.Addr]uint32{}}
		}
		if err := psns[qp].next(path.Dst, send.PSN); err != nil {
			tb.Errorf("frame %d from %v, QP %v: %v", n, qp.addr, qp.qpn, err)
		}
		if err := verifyMessage(send.Payload); err != nil {
			tb.Fatalf("frame %d from %v: %v: % x", n, path.Src, err, send.Payload)
		}
	}
}

// psnOrder checks the PSNs of a queue pair in the order in which they were captured. Each must be
// within maxPSNStep of the highest one so far, and none may repeat. To one destination each must be
// ahead of the last one, unless the sender's packets may be reordered: the kernel of an rxe device
// delays those to a neighbour whose address it resolves, and a fast path sends between the numbering
// of other packets and their departure.
type psnOrder struct {
	reordered bool
	highest   uint32
	seen      map[uint32]bool
	last      map[netip.Addr]uint32
}

const (
	// maxPSNStep allows for messages of a device to itself, which are numbered but never reach
	// the wire, and for the reordering of rxe's packets in a guest with several processors.
	maxPSNStep = 64
)

func (o *psnOrder) next(dst netip.Addr, psn uint32) error {
	step := func(from uint32) int32 { return int32((psn-from)<<8) >> 8 }
	repeated, first, highest := o.seen[psn], len(o.seen) == 0, o.highest
	o.seen[psn] = true
	if first || step(highest) > 0 {
		o.highest = psn
	}
	last, known := o.last[dst]
	o.last[dst] = psn
	switch {
	case first:
		return nil
	case repeated:
		return fmt.Errorf("PSN %#x again", psn)
	case max(step(highest), -step(highest)) > maxPSNStep:
		return fmt.Errorf("PSN %#x after %#x", psn, highest)
	case known && step(last) < 0 && !o.reordered:
		return fmt.Errorf("PSN %#x to %v after %#x", psn, dst, last)
	}
	return nil
}

// verifyMessage returns an error if a message of IP over InfiniBand is a packet of IP with
// other lengths or checksums than it should have.
func verifyMessage(msg []byte) error {
	const encapLen = 4
	if len(msg) < encapLen {
		return errors.New("no encapsulation header")
	}
	first, size := layers.LayerTypeIPv4, -1
	switch body := msg[encapLen:]; layers.EthernetType(binary.BigEndian.Uint16(msg)) {
	case layers.EthernetTypeIPv4:
		if len(body) > 4 {
			size = int(binary.BigEndian.Uint16(body[2:]))
		}
	case layers.EthernetTypeIPv6:
		if first = layers.LayerTypeIPv6; len(body) > 6 {
			size = 40 + int(binary.BigEndian.Uint16(body[4:]))
		}
	default:
		return nil
	}
	if size != len(msg)-encapLen {
		return fmt.Errorf("the packet of IP has %d bytes, the message %d", size, len(msg)-encapLen)
	}
	packet := gopacket.NewPacket(msg[encapLen:], first, gopacket.Default)
	if udp, ok := packet.TransportLayer().(*layers.UDP); ok && int(udp.Length) != len(udp.Contents)+len(udp.Payload) {
		return fmt.Errorf("UDP has %d bytes, and says %d", len(udp.Contents)+len(udp.Payload), udp.Length)
	}
	for _, l := range packet.Layers() {
		if l, ok := l.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			if err := l.SetNetworkLayerForChecksum(packet.NetworkLayer()); err != nil {
				return err
			}
		}
	}
	err, wrong := packet.VerifyChecksums()
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("wrong checksum in layer %v: %+v", wrong[0].Layer.LayerType(), wrong[0].ChecksumVerificationResult)
	}
	return err
}

// dissect splits a RoCEv2 frame into its path and its payload.
func dissect(tb testing.TB, data []byte) (roce.Path, []byte) {
	tb.Helper()
	packet := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
	udp, ok := packet.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if !ok || packet.ErrorLayer() != nil {
		tb.Fatalf("not a UDP datagram: %v", packet)
	}
	path := roce.Path{SrcPort: uint16(udp.SrcPort)}
	if ip, ok := packet.NetworkLayer().(*layers.IPv4); ok {
		path.ID = ip.Id
	}
	flow := packet.NetworkLayer().NetworkFlow()
	path.Src, _ = netip.AddrFromSlice(flow.Src().Raw())
	path.Dst, _ = netip.AddrFromSlice(flow.Dst().Raw())
	return path, udp.Payload
}
