package vm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
)

// datagram is all that 'ipoibd capture' knows of a RoCEv2 datagram; what it does not know is not
// here: the source port, the PSN, and the identification of a send.
type datagram struct {
	src, dst netip.Addr
	bth      roce.BTH
	deth     roce.DETH
	payload  string
}

// newDatagram parses an Ethernet frame whose ICRC is correct.
func newDatagram(tb testing.TB, frame []byte) datagram {
	tb.Helper()
	path, data := dissect(tb, frame)
	var send roce.UDSend
	if err := send.Parse(data); err != nil {
		tb.Fatalf("%v: % x", err, frame)
	}
	if match := new(roce.Verifier).Verify(&path, true, data); match != roce.MatchKnownID {
		tb.Errorf("the ICRC does not match: % x", frame)
	}
	send.PSN, send.Solicited, send.Migrated = 0, false, false
	return datagram{path.Src, path.Dst, send.BTH, send.DETH, string(send.Payload)}
}

// captureEcho captures echo requests and their answers on an endpoint with a real device.
func captureEcho(t *testing.T, a, b *endpoint) (file string) {
	t.Helper()
	p := a.start("ipoibd", "capture", "--control", a.control, "--level", "roce")
	eventually(t, "the capture begins", func() bool { return p.Stdout() != "" })
	ping(t, a, b.ip4(), 8, 100)
	p.Signal(syscall.SIGINT)
	awaitExit(t, p)
	return p.Stdout()
}

// requireCaptured checks that the wire carried every datagram of a capture at the RoCE level, with
// the same addresses, keys, numbers and payload.
func requireCaptured(t *testing.T, file string, c *nstest.Capture, a, b netip.Addr) {
	t.Helper()
	text, err := os.ReadFile(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := pcapgo.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	carried := map[datagram]bool{}
	for {
		frame, _, err := wire.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		carried[newDatagram(t, frame)] = true
	}
	r, err := pcapgo.NewNgReader(bytes.NewReader([]byte(file)), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatalf("%v: %d bytes", err, len(file))
	}
	seen := map[string]int{}
	for {
		packet, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		ether := append(make([]byte, 12), 0x08, 0)
		if packet[0]>>4 == 6 {
			ether[12], ether[13] = 0x86, 0xdd
		}
		d := newDatagram(t, append(ether, packet...))
		way := fmt.Sprintf("%v to %v", d.src, d.dst)
		switch {
		case d.src == d.dst: // a probe of the device, which does not leave it
			way = "probes"
		case !carried[d]:
			t.Errorf("the wire did not carry %+v", d)
		}
		seen[way]++
	}
	t.Logf("captured: %v", seen)
	if seen[fmt.Sprintf("%v to %v", a, b)] < 4 || seen[fmt.Sprintf("%v to %v", b, a)] < 4 {
		t.Error("the capture lacks echo requests or answers")
	}
}
