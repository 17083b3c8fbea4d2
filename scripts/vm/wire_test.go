package vm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
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
// with the identification in its IP header, that the numbers of each queue pair's
// packets count up and do not repeat, and that every message is a packet of IP whose lengths and
// checksums are right. It counts the frames.
func verifyWire(tb testing.TB, c *nstest.Capture) wire {
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
	w, highest, seen := wire{}, map[senderQP]uint32{}, map[senderQP]map[uint32]bool{}
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
		if match, _ := roce.Verify(&path, true, datagram); match != roce.MatchKnownID {
			tb.Errorf("frame %d from %v: its ICRC does not match: % x", n, path.Src, data)
		}
		var send roce.UDSend
		if err = send.Parse(datagram); err != nil {
			tb.Errorf("frame %d from %v: %v", n, path.Src, err)
			continue
		}
		qp := senderQP{path.Src, send.SrcQPN}
		if seen[qp] == nil {
			seen[qp], highest[qp] = map[uint32]bool{}, send.PSN
		}
		ahead := (send.PSN - highest[qp] + maxPSNStep) & psnMask // by maxPSNStep less than that
		if seen[qp][send.PSN] || ahead > 2*maxPSNStep {
			tb.Errorf("frame %d from %v, QP %v: PSN %#x after %#x", n, qp.addr, qp.qpn, send.PSN, highest[qp])
		}
		if seen[qp][send.PSN] = true; ahead > maxPSNStep {
			highest[qp] = send.PSN
		}
		if err := verifyMessage(send.Payload); err != nil {
			tb.Fatalf("frame %d from %v: %v: % x", n, path.Src, err, send.Payload)
		}
	}
}

const (
	psnMask = 1<<24 - 1
	// maxPSNStep is by how much two packets in a row may differ: rxe numbers messages of a
	// device to itself, which never reach the wire, and a guest with several processors
	// reorders what rxe sends.
	maxPSNStep = 64
)

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
