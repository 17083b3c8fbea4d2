package roce_test

import (
	"bytes"
	"testing"

	"ipoibd/hca/roce"
)

// addFrames seeds a corpus with captured and synthetic frames, whole and truncated.
func addFrames(f *testing.F) {
	rng := newRand(10)
	frames := rxeFrames(f)
	for n := range 5 {
		frames = append(frames, synthetic(rng, path4, n))
	}
	for _, fr := range frames {
		f.Add(fr.datagram)
		f.Add(fr.datagram[:roce.HeaderLen])
	}
	f.Add([]byte(nil))
}

// FuzzUDSendParse checks that an accepted datagram encodes to the same bytes, except
// for reserved bits, and that its payload is at the right offset.
func FuzzUDSendParse(f *testing.F) {
	addFrames(f)
	f.Fuzz(func(t *testing.T, d []byte) {
		var p roce.UDSend
		err := p.Parse(d)
		if err != nil {
			if p.Payload != nil {
				t.Fatalf("the error %v comes with a payload", err)
			}
			return
		}
		if want := roce.HeaderLen + len(p.Payload) + int(p.Pad) + roce.ICRCLen; len(d) != want {
			t.Fatalf("the parts have %d bytes, the datagram %d", want, len(d))
		}
		header := make([]byte, roce.HeaderLen)
		p.BTH.Put(header)
		p.DETH.Put(header[roce.BTHLen:])
		want := append([]byte(nil), d[:roce.HeaderLen]...)
		want[4] &= 0xc0
		want[8] &= 0x80
		want[16] = 0
		if !bytes.Equal(header, want) {
			t.Fatalf("% x put back as % x", want, header)
		}
	})
}

// FuzzVerify checks that a datagram that verifies without its identification also
// verifies with the one found, and with no neighbouring one, and that the source that
// SourceBehindNAT returns always verifies.
func FuzzVerify(f *testing.F) {
	addFrames(f)
	f.Fuzz(func(t *testing.T, d []byte) {
		path := path4
		if new(roce.Verifier).Verify(&path, false, d) != roce.NoMatch {
			if m := new(roce.Verifier).Verify(&path, true, d); m != roce.MatchKnownID {
				t.Fatalf("id %#x, found, gives %v", path.ID, m)
			}
			path.ID++
			if m := new(roce.Verifier).Verify(&path, true, d); m != roce.NoMatch {
				t.Fatalf("id %#x gives %v too", path.ID, m)
			}
		}
		path = path4
		if src, ok := roce.SourceBehindNAT(&path, d); ok {
			path.Src = src
			if m := new(roce.Verifier).Verify(&path, true, d); m != roce.MatchKnownID {
				t.Fatalf("source %v, found, gives %v", src, m)
			}
		}
		path = path6
		if m := new(roce.Verifier).Verify(&path, false, d); m > roce.MatchKnownID {
			t.Fatalf("IPv6 gives %v without a known identification", m)
		}
	})
}
