package roce_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca/roce"
)

// The ICRC covers exactly these bytes before the datagram, and all of the datagram
// but one byte.
func TestICRCCoverage(t *testing.T) {
	body := append(sendHeader(0), "payload!"...)
	masked := append([]byte(nil), body...)
	masked[4] = 0xff
	v4, v6 := path4, path6
	v4.ID = 0x1234
	for _, tt := range []struct {
		path   roce.Path
		prefix string
	}{
		{
			v4, "ffffffffffffffff" + // LRH
				"45 ff 003c 1234 4000 ff 11 ffff c0000201 c0000202" + // 60 bytes
				"c123 12b7 0028 ffff", // 40 bytes
		},
		{
			v6, "ffffffffffffffff" +
				"6fffffff 0028 11 ff 20010db8000000000000000000000001 20010db8000000000000000000000002" +
				"c123 12b7 0028 ffff",
		},
	} {
		want := crc32.ChecksumIEEE(append(unhex(t, tt.prefix), masked...))
		if got := roce.ICRC(&tt.path, body); got != want {
			t.Errorf("%v: %#08x, want %#08x", tt.path.Src, got, want)
		}
	}
}

func TestICRCOfRealFrame(t *testing.T) {
	f := rxeFrames(t)[0]
	end := len(f.datagram) - roce.ICRCLen
	icrc := roce.ICRC(&f.path, f.datagram[:end])
	if icrc != 0x0c6f524f { // 4f 52 6f 0c on the wire
		t.Errorf("ICRC %#08x, want 0x0c6f524f", icrc)
	}
	got := make([]byte, roce.ICRCLen)
	roce.PutICRC(got, icrc)
	if string(got) != "\x4f\x52\x6f\x0c" {
		t.Errorf("put as % x, want 4f 52 6f 0c", got)
	}
}

// A Sealer writes the ICRCs that the function returns, whatever it was used for before, and changes nothing else.
func TestSealer(t *testing.T) {
	rng := newRand(11)
	var s roce.Sealer
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SampledFrom([]roce.Path{path4, path6}).Draw(t, "path")
		datagram := synthetic(rng, p, rapid.SampledFrom([]int{0, 5, 64, 1400, 1401}).Draw(t, "length")).datagram
		body := datagram[:len(datagram)-roce.ICRCLen]
		p.ID = uint16(rapid.OneOf(rapid.IntRange(0, 66), rapid.IntRange(0, 65535)).Draw(t, "identification"))
		p.SrcPort += uint16(rapid.IntRange(0, 1).Draw(t, "source port"))
		if rapid.Bool().Draw(t, "other addresses") {
			p.Src, p.Dst = p.Dst, p.Src
		}
		body[rapid.IntRange(0, roce.BTHLen-1).Draw(t, "byte of the BTH")] ^= 0x80
		before, want := bytes.Clone(body), roce.ICRC(&p, body)
		s.Seal(&p, datagram)
		if got := binary.LittleEndian.Uint32(datagram[len(body):]); got != want || !bytes.Equal(body, before) {
			t.Fatalf("ICRC %#08x of %x, want %#08x of %x", got, body, want, before)
		}
	})
}
