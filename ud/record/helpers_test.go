package record

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/checksum"
	"ipoibd/hca/roce"
	"ipoibd/ud/vnet"
)

var (
	at    = time.Unix(1_700_000_000, 5)
	gidA  = hca.GIDFromAddr(netip.MustParseAddr("192.0.2.1"))
	gidB  = hca.GIDFromAddr(netip.MustParseAddr("192.0.2.2"))
	gid6A = hca.GID(netip.MustParseAddr("fe80::a").As16())
	gid6B = hca.GID(netip.MustParseAddr("fe80::b").As16())
	mgid  = hca.GID(unhex("ff12401b80010000 00000000ffffffff"))
	self  = Origin{GID: gidA, LID: 5, QPN: 0x77, QKey: 0xb1b, PKey: 0x8001}
	self6 = Origin{GID: gid6A, LID: 5, QPN: 0x77, QKey: 0xb1b, PKey: 0x8001}
)

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		panic(err)
	}
	return b
}

type fakeAH hca.AHSpec

func (a fakeAH) Spec() hca.AHSpec { return hca.AHSpec(a) }
func (fakeAH) Close() error       { return nil }

// newRecorder returns a recorder of everything.
func newRecorder(self *Origin, change func(*Config)) *Recorder {
	cfg := Config{Frames: true, Messages: true, In: true, Out: true, Origin: func() *Origin { return self }, Wake: func() {}}
	if change != nil {
		change(&cfg)
	}
	return NewRecorder(cfg)
}

var builder Builder // large, and reused as in a capture

// packets takes all records and returns their packets at a level.
func packets(t testing.TB, r *Recorder, l Level) (out [][]byte) {
	t.Helper()
	b := &builder
	for rec := r.Peek(); rec != nil; rec = r.Peek() {
		if rec.Kind == l.Kind() {
			err := b.Build(rec, l, func(p []byte) error { out = append(out, slices.Clone(p)); return nil })
			if err != nil {
				t.Fatal(err)
			}
		}
		r.Release()
	}
	return out
}

// withVirtio puts an empty virtio header in front of a frame.
func withVirtio(frame []byte) []byte { return append(make([]byte, vnet.HeaderLen), frame...) }

// area returns the memory of a receive that came along a path.
func area(src, dst string, tos, ttl uint8, id uint16, msg []byte) []byte {
	buf := make([]byte, hca.GRHLen, hca.GRHLen+len(msg))
	p := roce.Path{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), ID: id}
	roce.PutGRH(buf, &p, tos, ttl, roce.HeaderLen+len(msg)+roce.PadFor(len(msg))+roce.ICRCLen)
	return append(buf, msg...)
}

// received returns the completion of a receive.
func received(buf []byte) *hca.WC {
	return &hca.WC{Flags: hca.WCFlagGRH, ByteLen: uint32(len(buf)), SrcQPN: 0x1234, SLID: 9, SL: 3}
}

// tcp returns an IPoIB message with n bytes of TCP payload. Its checksum field holds the sum of
// the pseudo-header if partial is set, else the checksum.
func tcp(n int, partial bool) []byte {
	msg := make([]byte, 4+20+20+n)
	copy(msg, unhex("08000000 45000000 0007 4000 4006 0000 0a090001 0a090002 1389c350 00000064 00000001 5010 0200 0000 0000"))
	ip := msg[4:]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(ip[10:], ^checksum.Sum(ip[:20], 0))
	for i := range n {
		ip[40+i] = byte(i)
	}
	pseudo := checksum.Pseudo(ip[12:20], 6, len(ip)-20)
	if partial {
		binary.BigEndian.PutUint16(ip[36:], pseudo)
	} else {
		binary.BigEndian.PutUint16(ip[36:], ^checksum.Sum(ip[20:], pseudo))
	}
	return msg
}

func hexOf(b []byte) string { return hex.EncodeToString(b) }
