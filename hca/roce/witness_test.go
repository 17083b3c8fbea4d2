package roce_test

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"ipoibd/hca/roce"
)

// Witnesses are independent programs that must produce the same result. They are Debian
// packages; python is named by its path because scapy is installed for that interpreter.
const (
	tshark  = "/usr/bin/tshark"  // package tshark
	python  = "/usr/bin/python3" // packages python3, python3-scapy
	program = "testdata/icrc.py"
	capture = "testdata/rxe-ud.pcap"
	needs   = "apt-get install tshark python3-scapy"
)

// run returns the output lines of a witness.
func run(t *testing.T, name string, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v (%s)\n%s", name, err, needs, &stderr)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

// witnessFrames returns frames of all pad counts and several lengths, unicast and
// multicast, over both families, with congestion marks.
func witnessFrames() []frame {
	rng := newRand(11)
	v4, v6 := path4, path6
	v4.ID = 0xcafe
	v4.Dst, v6.Dst = netip.MustParseAddr("239.1.2.3"), netip.MustParseAddr("ff12::1:3")
	var frames []frame
	for _, path := range []roce.Path{path4, path6, v4, v6} {
		for _, n := range []int{0, 1, 2, 3, 4, 5, 63, 64, 1444, 2044, 4095, 4096} {
			frames = append(frames, synthetic(rng, path, n))
		}
	}
	for i := range frames {
		frames[i].datagram[4] = byte(i) << 6 // FECN and BECN; the ICRC masks them
	}
	return frames
}

// writeCapture writes frames as a pcap and returns its name.
func writeCapture(t *testing.T, frames []frame) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "frames.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := pcapgo.NewWriter(file)
	if err := w.WriteFileHeader(1<<16, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		data := f.ethernet(t)
		info := gopacket.CaptureInfo{Timestamp: time.Unix(0, 0), CaptureLength: len(data), Length: len(data)}
		if err := w.WritePacket(info, data); err != nil {
			t.Fatal(err)
		}
	}
	return file.Name()
}

// ethernet returns the frame as on the wire. Its ToS, TTL and flow label differ from
// the values that the ICRC assumes.
func (f *frame) ethernet(t *testing.T) []byte {
	t.Helper()
	link := &layers.Ethernet{
		SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4,
	}
	udp := &layers.UDP{SrcPort: layers.UDPPort(f.path.SrcPort), DstPort: roce.Port}
	stack := []gopacket.SerializableLayer{link, nil, udp, gopacket.Payload(f.datagram)}
	var err error
	if f.path.Src.Is4() {
		ip := &layers.IPv4{
			Version: 4, TOS: 0xb8, Id: f.path.ID, Flags: layers.IPv4DontFragment, TTL: 33,
			Protocol: layers.IPProtocolUDP, SrcIP: f.path.Src.AsSlice(), DstIP: f.path.Dst.AsSlice(),
		}
		stack[1], err = ip, udp.SetNetworkLayerForChecksum(ip)
	} else {
		link.EthernetType = layers.EthernetTypeIPv6
		ip := &layers.IPv6{
			Version: 6, TrafficClass: 0xb8, FlowLabel: 0x12345, HopLimit: 33,
			NextHeader: layers.IPProtocolUDP, SrcIP: f.path.Src.AsSlice(), DstIP: f.path.Dst.AsSlice(),
		}
		stack[1], err = ip, udp.SetNetworkLayerForChecksum(ip)
	}
	if err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, stack...); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// wireICRC returns the ICRC of a datagram in hexadecimal.
func wireICRC(datagram []byte) string {
	return hex.EncodeToString(datagram[len(datagram)-roce.ICRCLen:])
}

func TestWitnessICRC(t *testing.T) {
	ours := witnessFrames()
	for name, c := range map[string]struct {
		file   string
		frames []frame
	}{
		"rxe":  {capture, rxeFrames(t)},
		"ours": {writeCapture(t, ours), ours},
	} {
		t.Run(name, func(t *testing.T) {
			lines := run(t, python, program, c.file)
			if len(lines) != len(c.frames) {
				t.Fatalf("%d ICRCs for %d frames", len(lines), len(c.frames))
			}
			for i, f := range c.frames {
				if got := wireICRC(f.datagram); got != lines[i] {
					t.Errorf("frame %d: %s, witness %s: the ICRCs differ", i, got, lines[i])
				}
			}
		})
	}
}

// witnessFields are the fields that tshark decodes, in the order of [frame.fields].
var witnessFields = []string{
	"frame.protocols", "infiniband.bth.opcode", "infiniband.bth.padcnt", "infiniband.bth.p_key",
	"infiniband.bth.se", "infiniband.bth.m", "infiniband.bth.a", "infiniband.bth.destqp", "infiniband.bth.psn",
	"infiniband.deth.q_key", "infiniband.deth.srcqp", "infiniband.invariant.crc", "_ws.malformed", "_ws.expert",
}

// fields returns the line that tshark should print for a frame.
func (f *frame) fields(t *testing.T) string {
	t.Helper()
	var p roce.UDSend
	err := p.Parse(f.datagram)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %d %d %t %t %t %#06x %d %#016x %#08x 0x%s", p.Opcode, p.Pad, p.PKey,
		p.Solicited, p.Migrated, p.AckReq, uint32(p.DestQPN), p.PSN, uint64(p.QKey), uint32(p.SrcQPN), wireICRC(f.datagram))
}

// boolean maps the forms of a flag, which depend on the version of tshark.
var boolean = map[string]string{"0": "false", "1": "true", "False": "false", "True": "true"}

// normal returns a line of tshark with its flags in Go's notation.
func normal(line string) string {
	fields := strings.Fields(line)
	for i := 3; i < 6 && i < len(fields); i++ {
		fields[i] = boolean[fields[i]]
	}
	return strings.Join(fields, " ")
}

func TestWitnessTshark(t *testing.T) {
	frames := witnessFrames()
	args := []string{
		"-n", "-r", writeCapture(t, frames), "-o", "udp.check_checksum:TRUE", "-T", "fields",
		"--disable-protocol", "infiniband.eoib", // it claims empty payloads and then misses its header
	}
	for _, name := range witnessFields {
		args = append(args, "-e", name)
	}
	lines := run(t, tshark, args...)
	if len(lines) != len(frames) {
		t.Fatalf("%d lines for %d frames", len(lines), len(frames))
	}
	for i, f := range frames {
		protocols, rest, _ := strings.Cut(lines[i], "\t")
		if !strings.Contains(protocols, ":udp:infiniband") {
			t.Errorf("frame %d: protocols %s, want infiniband over UDP", i, protocols)
		}
		if got, want := normal(rest), f.fields(t); got != want {
			t.Errorf("frame %d: tshark prints\n%s, want\n%s", i, got, want)
		}
	}
}
