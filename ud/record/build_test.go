package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/checksum"
	"ipoibd/hca/roce"
)

var message = unhex("0800 0000 0102030405") // an IPoIB header and five bytes

func sendTo(to hca.AHSpec, qpn hca.QPN) *hca.SendWR {
	return &hca.SendWR{UD: hca.UDDest{AH: fakeAH(to), QPN: qpn, QKey: 0xb1b}}
}

func TestEthernetShowsTheFrame(t *testing.T) {
	frame := unhex("020000000002 020000000001 0800 4500")
	r := newRecorder(&self, nil)
	r.FromHost(at, withVirtio(frame))
	r.ToHost(at, [][]byte{withVirtio(frame[:14]), frame[14:], {1, 2, 3}})
	got := packets(t, r, Ethernet)
	if len(got) != 2 || !bytes.Equal(got[0], frame) || !bytes.Equal(got[1], append(bytes.Clone(frame), 1, 2, 3)) {
		t.Errorf("got %x", got)
	}
}

// Sends, with the exact bytes of each header.
func TestSentExactBytes(t *testing.T) {
	v4 := hca.AHSpec{Global: true, DGID: gidB, HopLimit: 64, Traffic: 0xb8, FlowLabel: 0x12345}
	v6 := hca.AHSpec{Global: true, DGID: gid6B, HopLimit: 64, Traffic: 0xb8, FlowLabel: 0x12345}
	group := hca.AHSpec{Global: true, DGID: mgid, DLID: 0xc001, SL: 2, HopLimit: 1}
	local := hca.AHSpec{DLID: 9, SL: 3}
	const (
		bth  = "64 70 8001 00 001234 00 000000 00000b1b 00 000077"
		bthG = "64 70 8001 00 ffffff 00 000000 00000b1b 00 000077"
		data = "0800 0000 0102030405 000000"
		a, b = "00000000000000000000ffffc0000201", "00000000000000000000ffffc0000202"
		a6   = "fe80000000000000000000000000000a"
		b6   = "fe80000000000000000000000000000b"
		m    = "ff12401b8001000000000000ffffffff"
	)
	for _, tt := range []struct {
		name  string
		level Level
		from  *Origin
		to    hca.AHSpec
		qpn   hca.QPN
		want  string // without CRCs
		crcs  int
	}{
		{"GRH of IPv4", IPoIB, &self, v4, 0x1234, "6b812345 0024 1b 40" + a + b + "0800 0000 0102030405", 0},
		{"RoCE over IPv4", RoCE, &self, v4, 0x1234, "45b8 0040 0000 4000 40 11 b5f1 c0000201 c0000202 0000 12b7 002c 0000" + bth + data, 4},
		{"RoCE over IPv6", RoCE, &self6, v6, 0x1234, "6b812345 002c 11 40" + a6 + b6 + "0000 12b7 002c ????" + bth + data, 4},
		{"RoCE to a group", RoCE, &self, group, hca.QPNMulticast, "60000000 002c 11 01" + a + m + "0000 12b7 002c ????" + bthG + data, 4},
		{
			"InfiniBand to a group", InfiniBand, &self, group, hca.QPNMulticast,
			"0000000000000000 15 04 0066 0000 0056" + // ERF
				"0023 c001 0015 0005" + // LRH: SL 2, GRH follows, 21 words
				"60000000 0024 1b 01" + a + m + bthG + data, 6,
		},
		{
			"InfiniBand within a subnet", InfiniBand, &self, local, 0x1234,
			"0000000000000000 15 04 003e 0000 002e" +
				"0032 0009 000b 0005" + bth + data, 6,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRecorder(tt.from, nil)
			r.Sent(at, sendTo(tt.to, tt.qpn), message)
			got := packets(t, r, tt.level)
			if len(got) != 1 {
				t.Fatalf("%d packets", len(got))
			}
			p := got[0]
			if tt.level == RoCE {
				checkRoCE(t, p)
				if p[0]>>4 == 6 { // checked by checkRoCE
					tt.want = replaceAt(tt.want, p[46:48])
				}
			}
			if want := unhex(tt.want); !bytes.Equal(p[:len(p)-tt.crcs], want) {
				t.Errorf("got\n%x, want\n%x", p[:len(p)-tt.crcs], want)
			}
		})
	}
}

func replaceAt(s string, b []byte) string {
	return string(bytes.Replace([]byte(s), []byte("????"), []byte(hexOf(b)), 1))
}

// checkRoCE checks what a receiver checks: the lengths, the checksums and the ICRC.
func checkRoCE(t testing.TB, p []byte) {
	t.Helper()
	var path roce.Path
	udp := p[20:]
	if p[0] == 0x45 {
		path = roce.Path{Src: netip.AddrFrom4([4]byte(p[12:])), Dst: netip.AddrFrom4([4]byte(p[16:])), ID: binary.BigEndian.Uint16(p[4:])}
		if hca.IPv4Checksum(p[:20]) != 0 || int(binary.BigEndian.Uint16(p[2:])) != len(p) {
			t.Errorf("IPv4 header %x of %d bytes", p[:20], len(p))
		}
	} else {
		path = roce.Path{Src: netip.AddrFrom16([16]byte(p[8:])), Dst: netip.AddrFrom16([16]byte(p[24:]))}
		udp = p[40:]
		if sum := checksum.Sum(udp, checksum.Pseudo(p[8:40], 17, len(udp))); sum != 0xffff {
			t.Errorf("UDP checksum: sum %#x", sum)
		}
		if int(binary.BigEndian.Uint16(p[4:])) != len(udp) {
			t.Errorf("IPv6 header %x with %d bytes of payload", p[:40], len(udp))
		}
	}
	path.SrcPort = binary.BigEndian.Uint16(udp)
	if port := binary.BigEndian.Uint16(udp[2:]); port != roce.Port || int(binary.BigEndian.Uint16(udp[4:])) != len(udp) {
		t.Errorf("UDP header %x of %d bytes", udp[:8], len(udp))
	}
	var u roce.UDSend
	if err := u.Parse(udp[8:]); err != nil {
		t.Errorf("%v: %x", err, udp[8:])
	} else if match := new(roce.Verifier).Verify(&path, true, udp[8:]); match != roce.MatchKnownID {
		t.Errorf("ICRC: %v", match)
	}
}

// A receive keeps what the network wrote into its headers.
func TestReceivedExactBytes(t *testing.T) {
	r := newRecorder(&self, nil)
	buf := area("192.0.2.2", "192.0.2.1", 0xb9, 61, 0xcafe, message)
	r.Received(at, received(buf), buf)
	got := packets(t, r, RoCE)[0]
	checkRoCE(t, got)
	want := unhex("45b9 0040 cafe 4000 3d 11 edfb c0000202 c0000201 0000 12b7 002c 0000 64 70 8001 00 000077 00 000000 00000b1b 00 001234 0800 0000 0102030405 000000")
	want[10], want[11] = got[10], got[11]
	if !bytes.Equal(got[:len(got)-4], want) {
		t.Errorf("got\n%x, want\n%x", got[:len(got)-4], want)
	}
	r.Received(at, received(buf), buf)
	grh := unhex("6b900000 0024 1b 3d 00000000000000000000ffffc0000202 00000000000000000000ffffc0000201")
	if got := packets(t, r, IPoIB)[0]; !bytes.Equal(got, append(grh, message...)) {
		t.Errorf("IPoIB: got\n%x, want\n%x", got, append(grh, message...))
	}

	r = newRecorder(&self6, nil)
	buf = area("fe80::b", "ff12:401b:8001::ffff:ffff", 0x10, 1, 0, message)
	r.Received(at, received(buf), buf)
	got = packets(t, r, InfiniBand)[0]
	want = unhex("0000000000000000 15 04 0066 0000 0056 0033 0005 0015 0009 61000000 0024 1b 01" +
		"fe80000000000000000000000000000b ff12401b8001000000000000ffffffff 64 70 8001 00 ffffff 00 000000 00000b1b 00 001234 0800 0000 0102030405 000000")
	if !bytes.Equal(got[:len(got)-6], want) {
		t.Errorf("InfiniBand: got\n%x, want\n%x", got[:len(got)-6], want)
	}
}

// IBA 1.4, table 29: the masked bytes of a packet without a GRH, and its ICRC.
func TestInfiniBandICRCExample(t *testing.T) {
	packet := unhex(`7012375c000e17d2 0a202487 0087b1b3 000dec2a 01710a1c015d4002 38f27a05 0000000e
		bb884d85fd5cfba4728bc0690ed40000`)
	var wire [4]byte
	roce.PutICRC(wire[:], icrc(packet, false))
	if got := binary.BigEndian.Uint32(wire[:]); got != 0x9625b75a {
		t.Errorf("ICRC %#x, want 0x9625b75a", got)
	}
}

// A GRH behind the LRH is masked as that of RoCE, so that both levels must agree.
func TestInfiniBandICRCWithGRH(t *testing.T) {
	packet := make([]byte, lrhLen+hca.GRHLen+roce.HeaderLen+16)
	for i := range packet {
		packet[i] = byte(i * 7)
	}
	packet[lrhLen] = 0x6b
	want := icrc(packet, true)
	for at := range packet {
		changed := bytes.Clone(packet)
		changed[at] ^= 1
		masked := at < lrhLen || at > lrhLen && at < lrhLen+4 || at == lrhLen+7 || at == lrhLen+hca.GRHLen+4
		masked = masked || at == lrhLen // the low bits of the first byte are the traffic class
		if same := icrc(changed, true) == want; same != masked {
			t.Errorf("byte %d: covered %v, want %v", at, !same, !masked)
		}
	}
}

// A large send and a large receive become the packets that are on the wire.
func TestLargeOnesAreCut(t *testing.T) {
	const mss, n = 1000, 2500
	large, whole := tcp(n, true), tcp(n, false)
	wr := sendTo(hca.AHSpec{Global: true, DGID: gidB, HopLimit: 64}, 0x1234)
	wr.LSO = hca.LSO{Header: large[:44], MSS: mss}
	r := newRecorder(&self, nil)
	r.Sent(at, wr, large)
	buf := area("192.0.2.2", "192.0.2.1", 0, 64, 1, large)
	wc := received(buf)
	wc.LRO = hca.LRO{Segments: 3, MSS: mss}
	r.Received(at, wc, buf)
	got := packets(t, r, RoCE)
	if len(got) != 6 {
		t.Fatalf("%d packets, want 3 sent and 3 received", len(got))
	}
	for i, p := range got {
		checkRoCE(t, p)
		var u roce.UDSend
		if err := u.Parse(p[28:]); err != nil {
			t.Fatal(err)
		}
		ip, k := u.Payload[4:], i%3
		size := min(mss, n-k*mss)
		if len(ip) != 40+size || int(binary.BigEndian.Uint16(ip[2:])) != len(ip) || hca.IPv4Checksum(ip[:20]) != 0 {
			t.Errorf("packet %d: IP header %x of %d bytes", i, ip[:20], len(ip))
		}
		if sum := checksum.Sum(ip[20:], checksum.Pseudo(ip[12:20], 6, len(ip)-20)); sum != 0xffff {
			t.Errorf("packet %d: TCP checksum, sum %#x", i, sum)
		}
		if seq := binary.BigEndian.Uint32(ip[24:]); seq != uint32(100+k*mss) || !bytes.Equal(ip[40:], whole[44+k*mss:][:size]) {
			t.Errorf("packet %d: sequence number %d, or wrong payload", i, seq)
		}
	}
}

// What cannot be cut is shown as one message, as long as fits in a datagram.
func TestUncuttableIsShownOnce(t *testing.T) {
	r := newRecorder(&self, nil)
	buf := area("192.0.2.2", "192.0.2.1", 0, 64, 1, make([]byte, 1<<16))
	wc := received(buf)
	wc.LRO = hca.LRO{Segments: 3, MSS: 1000}
	for range 3 {
		r.Received(at, wc, buf)
	}
	for _, l := range []Level{RoCE} {
		got := packets(t, r, l)
		if len(got) != 3 || len(got[0]) > 1<<16-1 {
			t.Fatalf("%v: %d packets of %d bytes", l, len(got), len(got[0]))
		}
		checkRoCE(t, got[0])
	}
}

// Short messages, and receives without a GRH or with an unknown one, are shown as they are.
func TestOddReceives(t *testing.T) {
	for n := range 5 {
		for name, flags := range map[string]hca.WCFlags{"GRH": hca.WCFlagGRH, "none": 0} {
			buf := append(make([]byte, hca.GRHLen), message[:n]...)
			r := newRecorder(&self, nil)
			wc := &hca.WC{Flags: flags, ByteLen: uint32(len(buf)), SrcQPN: 0x1234}
			r.Received(at, wc, buf)
			if got := packets(t, r, IPoIB); len(got) != 1 || !bytes.Equal(got[0][40:], message[:n]) {
				t.Errorf("%d bytes, %s: %x", n, name, got)
			}
			r.Received(at, wc, buf)
			checkRoCE(t, packets(t, r, RoCE)[0])
		}
	}
	r := newRecorder(&self, nil)
	r.Received(at, &hca.WC{ByteLen: 3}, make([]byte, 100))
	r.Received(at, &hca.WC{ByteLen: 1 << 31}, make([]byte, 100))
	r.Received(at, &hca.WC{ByteLen: 100}, make([]byte, 30))
	if got := packets(t, r, IPoIB); len(got) != 2 || len(got[0]) != 40 || len(got[1]) != 100 {
		t.Errorf("impossible lengths: %d packets", len(got))
	}
}

func TestBuildReturnsTheErrorOfEach(t *testing.T) {
	r := newRecorder(&self, nil)
	r.Sent(at, sendTo(hca.AHSpec{Global: true, DGID: gidB}, 1), message)
	mine := errors.New("mine")
	if err := new(Builder).Build(r.Peek(), RoCE, func([]byte) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("error %v", err)
	}
}

func TestLevels(t *testing.T) {
	want := map[string]uint16{"ethernet": 1, "ipoib": 242, "roce": 101, "infiniband": 197}
	for _, name := range Levels() {
		l, ok := ParseLevel(name)
		if !ok || l.String() != name || l.LinkType() != want[name] {
			t.Errorf("%s: %v %v %d", name, ok, l, l.LinkType())
		}
	}
	if _, ok := ParseLevel("udp"); ok || len(Levels()) != len(want) || NumLevel.String() != "unknown" {
		t.Error("an unknown level")
	}
}
