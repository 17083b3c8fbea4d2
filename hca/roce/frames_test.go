package roce_test

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"ipoibd/hca"
	"ipoibd/hca/roce"
)

// frame is a datagram with the path that its ICRC was computed for.
type frame struct {
	path     roce.Path
	ipHeader []byte
	datagram []byte
}

// rxeFrames returns the UD SENDs in testdata/rxe-ud.pcap, which the Linux
// Soft-RoCE driver sent.
func rxeFrames(t testing.TB) []frame {
	t.Helper()
	file, err := os.Open("testdata/rxe-ud.pcap")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := pcapgo.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var frames []frame
	for {
		data, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return frames
		}
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, decode(t, data))
	}
}

// decode returns the path and the datagram of an Ethernet frame.
func decode(t testing.TB, data []byte) frame {
	t.Helper()
	packet := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
	udp, ok := packet.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if !ok || udp.DstPort != roce.Port {
		t.Fatalf("no RoCEv2 frame: %v", packet)
	}
	f := frame{datagram: udp.Payload, ipHeader: packet.NetworkLayer().LayerContents()}
	f.path.SrcPort = uint16(udp.SrcPort)
	switch ip := packet.NetworkLayer().(type) {
	case *layers.IPv4:
		f.path.ID = ip.Id
		f.path.Src, _ = netip.AddrFromSlice(ip.SrcIP.To4())
		f.path.Dst, _ = netip.AddrFromSlice(ip.DstIP.To4())
	case *layers.IPv6:
		f.path.Src, _ = netip.AddrFromSlice(ip.SrcIP)
		f.path.Dst, _ = netip.AddrFromSlice(ip.DstIP)
	}
	return f
}

// Paths of synthetic frames.
var (
	path4 = roce.Path{
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 0xc123,
	}
	path6 = roce.Path{
		Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8::2"), SrcPort: 0xc123,
	}
)

// synthetic returns a frame with n bytes of random payload.
func synthetic(rng *rand.Rand, path roce.Path, n int) frame {
	pad := roce.PadFor(n)
	d := make([]byte, roce.HeaderLen+n+pad+roce.ICRCLen)
	(&roce.BTH{
		Opcode: roce.OpcodeUDSendOnly, Pad: uint8(pad), PKey: hca.PKey(rng.Uint32()),
		Solicited: rng.Uint32()&1 != 0, Migrated: rng.Uint32()&1 != 0, AckReq: rng.Uint32()&1 != 0,
		DestQPN: hca.QPN(rng.Uint32()) & hca.QPNMask, PSN: rng.Uint32() & 0xffffff,
	}).Put(d)
	(&roce.DETH{QKey: 0x0b1b, SrcQPN: hca.QPN(rng.Uint32()) & hca.QPNMask}).Put(d[roce.BTHLen:])
	for i := range n {
		d[roce.HeaderLen+i] = byte(rng.Uint32())
	}
	end := len(d) - roce.ICRCLen
	roce.PutICRC(d[end:], roce.ICRC(&path, d[:end]))
	return frame{path: path, datagram: d}
}

// newRand returns a generator with a fixed seed.
func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 4791)) }

// flipICRC xors the ICRC of a datagram.
func flipICRC(datagram []byte, mask uint32) {
	tail := datagram[len(datagram)-roce.ICRCLen:]
	binary.LittleEndian.PutUint32(tail, binary.LittleEndian.Uint32(tail)^mask)
}
