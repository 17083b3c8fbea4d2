package roce_test

import (
	"bytes"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/hca/roce"
)

func TestPutGRHBytes(t *testing.T) {
	v4 := path4
	v4.ID = 0x14ba
	for _, tt := range []struct {
		path roce.Path
		want string
	}{
		{
			v4, "0000000000000000000000000000000000000000" +
				"45 b8 0074 14ba 4000 3f 11 a203 c0000201 c0000202",
		},
		{
			path6, "6b800000 0060 11 3f 20010db8000000000000000000000001" +
				"20010db8000000000000000000000002",
		},
	} {
		got := bytes.Repeat([]byte{0xa5}, hca.GRHLen+1)
		roce.PutGRH(got, &tt.path, 0xb8, 63, 88)
		if want := append(unhex(t, tt.want), 0xa5); !bytes.Equal(got, want) {
			t.Errorf("%v:\n% x, want\n% x", tt.path.Src, got, want)
		}
	}
}

// The area of a captured frame is its IP header as on the wire, except for the IPv6
// flow label.
func TestPutGRHOfRealFrames(t *testing.T) {
	for i, f := range rxeFrames(t) {
		got := make([]byte, hca.GRHLen)
		tos, ttl := f.ipHeader[1], f.ipHeader[8]
		if f.path.Src.Is6() {
			tos, ttl = f.ipHeader[0]<<4|f.ipHeader[1]>>4, f.ipHeader[7]
			f.ipHeader[1] &= 0xf0
			clear(f.ipHeader[2:4])
		}
		roce.PutGRH(got, &f.path, tos, ttl, len(f.datagram))
		if !bytes.Equal(got[hca.GRHLen-len(f.ipHeader):], f.ipHeader) {
			t.Errorf("frame %d: % x, want % x", i, got, f.ipHeader)
		}
	}
}

func TestGRHRoundTrip(t *testing.T) {
	octets := func(n int) *rapid.Generator[[]byte] { return rapid.SliceOfN(rapid.Byte(), n, n) }
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{4, 16}).Draw(t, "family")
		var path roce.Path
		path.Src, _ = netip.AddrFromSlice(octets(n).Draw(t, "src"))
		path.Dst, _ = netip.AddrFromSlice(octets(n).Draw(t, "dst"))
		path.ID = rapid.Uint16().Draw(t, "id")
		network := hca.NetworkIPv6
		if n == 4 {
			network = hca.NetworkIPv4
		}
		area := make([]byte, hca.GRHLen)
		roce.PutGRH(area, &path, rapid.Byte().Draw(t, "tos"), rapid.Byte().Draw(t, "ttl"),
			rapid.IntRange(24, 4200).Draw(t, "length"))
		sgid, dgid, err := hca.ParseGRH(area, network)
		if err != nil || sgid != hca.GIDFromAddr(path.Src) || dgid != hca.GIDFromAddr(path.Dst) {
			t.Fatalf("%v -> %v, %v; want %v -> %v", sgid, dgid, err, path.Src, path.Dst)
		}
	})
}
