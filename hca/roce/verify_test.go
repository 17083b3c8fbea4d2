package roce_test

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca/roce"
)

func TestVerifyRealFrames(t *testing.T) {
	frames := rxeFrames(t)
	if len(frames) != 17 {
		t.Fatalf("%d frames, want 17", len(frames))
	}
	for i, f := range frames {
		known := f.path
		if m := new(roce.Verifier).Verify(&known, true, f.datagram); m != roce.MatchKnownID || known != f.path {
			t.Errorf("frame %d, id known: %v, path %v of %v", i, m, known, f.path)
		}
		want := roce.MatchSolved
		if !f.path.Src.Is4() {
			want = roce.MatchKnownID
		} else if f.path.ID < 64 {
			want = roce.MatchLowID
		}
		blind := f.path
		blind.ID = 0xbeef
		if m := new(roce.Verifier).Verify(&blind, false, f.datagram); m != want || blind != f.path {
			t.Errorf("frame %d, id unknown: %v, path %v; want %v, %v", i, m, blind, want, f.path)
		}
	}
}

func TestVerifySolvesEveryID(t *testing.T) {
	rng := newRand(1)
	for _, n := range []int{0, 1, 64, 1444, 4096} {
		f := synthetic(rng, path4, n)
		end := len(f.datagram) - roce.ICRCLen
		for id := range 1 << 16 {
			f.path.ID = uint16(id)
			roce.PutICRC(f.datagram[end:], roce.ICRC(&f.path, f.datagram[:end]))
			want := roce.MatchSolved
			if id < 64 {
				want = roce.MatchLowID
			}
			blind := path4
			if m := new(roce.Verifier).Verify(&blind, false, f.datagram); m != want || blind.ID != f.path.ID {
				t.Fatalf("length %d: %v, id %#x; want %v, %#x", n, m, blind.ID, want, id)
			}
		}
	}
}

func TestVerifyLengths(t *testing.T) {
	for _, p := range []roce.Path{path4, path6} {
		for _, n := range []int{0, 1, 4, 15, 65508, 70000} {
			if m := new(roce.Verifier).Verify(&p, false, make([]byte, n)); m != roce.NoMatch {
				t.Errorf("%d bytes from %v: %v, want no match", n, p.Src, m)
			}
		}
	}
}

// The longest and the shortest lengths use the ends of the tables of inverse powers.
func TestVerifyEnds(t *testing.T) {
	for _, n := range []int{16, 20, 24, 232, 236, 240, 65500, 65504} {
		path := path4
		path.ID = 0xfffe
		d := make([]byte, n)
		end := n - roce.ICRCLen
		roce.PutICRC(d[end:], roce.ICRC(&path, d[:end]))
		blind := path4
		if m := new(roce.Verifier).Verify(&blind, false, d); m != roce.MatchSolved || blind.ID != path.ID {
			t.Errorf("%d bytes: %v, id %#x, want solved and %#x", n, m, blind.ID, path.ID)
		}
	}
}

func TestVerifyIgnoresWhatRoutersChange(t *testing.T) {
	f := synthetic(newRand(2), path4, 100)
	for v := range 256 {
		f.datagram[4] = byte(v) // FECN, BECN, resv8a
		if m := new(roce.Verifier).Verify(&f.path, true, f.datagram); m != roce.MatchKnownID {
			t.Fatalf("resv8a %#x: %v, want a match", v, m)
		}
	}
}

// A wrong address, port, length or identification makes the ICRC wrong.
func TestVerifyCoversPath(t *testing.T) {
	for _, path := range []roce.Path{path4, path6} {
		f := synthetic(newRand(3), path, 100)
		for name, change := range map[string]func(*roce.Path){
			"src":  func(p *roce.Path) { p.Src = p.Src.Next() },
			"dst":  func(p *roce.Path) { p.Dst = p.Dst.Next() },
			"port": func(p *roce.Path) { p.SrcPort++ },
		} {
			p := f.path
			change(&p)
			if m := new(roce.Verifier).Verify(&p, false, f.datagram); m != roce.NoMatch {
				t.Errorf("%v, another %s: %v with id %#x", path.Src, name, m, p.ID)
			}
		}
	}
	f := synthetic(newRand(3), path4, 100)
	f.path.ID++
	if m := new(roce.Verifier).Verify(&f.path, true, f.datagram); m != roce.NoMatch {
		t.Errorf("another id: %v, want no match", m)
	}
}

// An IPv6 zone is local to the host, so the ICRC does not cover it.
func TestVerifyIgnoresZone(t *testing.T) {
	path := path6
	path.Src, path.Dst = netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2")
	f := synthetic(newRand(4), path, 64)
	f.path.Src, f.path.Dst = f.path.Src.WithZone("eth0"), f.path.Dst.WithZone("eth0")
	if m := new(roce.Verifier).Verify(&f.path, true, f.datagram); m != roce.MatchKnownID {
		t.Error(m)
	}
}

func TestVerifyTotal(t *testing.T) {
	mixed := roce.Path{Src: path4.Src, Dst: path6.Dst}
	for _, p := range []*roce.Path{{}, &mixed} {
		if m := new(roce.Verifier).Verify(p, false, make([]byte, 64)); m != roce.NoMatch {
			t.Errorf("%v: %v, want no match", p, m)
		}
	}
}

func TestSourceBehindNAT(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		inside := netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "inside")))
		rng := newRand(seed)
		path := path4
		path.Src = inside
		for range 2 {
			f := synthetic(rng, path, rapid.IntRange(0, 4096).Draw(t, "length"))
			got, ok := roce.SourceBehindNAT(&path4, f.datagram)
			if inside == path4.Src {
				if ok {
					t.Fatalf("source of a correct datagram: %v", got)
				}
				continue
			}
			if !ok || got != inside {
				t.Fatalf("got %v %v, want %v", got, ok, inside)
			}
		}
	})
}

// Damaged datagrams yield the same source only by chance.
func TestSourceBehindNATNeedsTwo(t *testing.T) {
	rng := newRand(5)
	seen := map[netip.Addr]bool{}
	for range 1000 {
		f := synthetic(rng, path4, 200)
		for i := range 8 {
			f.datagram[roce.HeaderLen+i] ^= byte(1 + rng.IntN(255))
		}
		got, ok := roce.SourceBehindNAT(&f.path, f.datagram)
		if !ok || seen[got] {
			t.Fatalf("source %v, %v, after %d others; want a new one each time", got, ok, len(seen))
		}
		seen[got] = true
	}
}

func TestSourceBehindNATRefuses(t *testing.T) {
	f := synthetic(newRand(6), path6, 64)
	flipICRC(f.datagram, 1)
	if a, ok := roce.SourceBehindNAT(&f.path, f.datagram); ok {
		t.Errorf("IPv6: %v, want no source", a)
	}
	if a, ok := roce.SourceBehindNAT(&path4, make([]byte, 15)); ok {
		t.Errorf("15 bytes: %v, want no source", a)
	}
	if a, ok := roce.SourceBehindNAT(&path4, make([]byte, 65508)); ok {
		t.Errorf("65508 bytes: %v, want no source", a)
	}
}

func TestMatchNames(t *testing.T) {
	seen := map[string]bool{}
	for m := roce.Match(0); m < roce.NumMatch; m++ {
		if s := m.String(); s == "" || s == "unknown" || seen[s] {
			t.Errorf("match %d is named %q, want a unique name", m, s)
		} else {
			seen[s] = true
		}
	}
	if s := roce.NumMatch.String(); s != "unknown" {
		t.Errorf("out of range: %q", s)
	}
}

// A Verifier decides like the function, whatever it was used for before: trains of several
// lengths and paths, with losses, damage and datagrams in between.
func TestVerifier(t *testing.T) {
	rng := newRand(12)
	var v roce.Verifier
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SampledFrom([]roce.Path{path4, path4, path6}).Draw(t, "path")
		n := rapid.SampledFrom([]int{8, 100, 1400}).Draw(t, "length")
		first := rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 70), rapid.IntRange(0, 65535)).Draw(t, "first")
		for k := range rapid.IntRange(1, 70).Draw(t, "datagrams") {
			if rapid.IntRange(0, 9).Draw(t, "lost") == 0 {
				continue
			}
			d := synthetic(rng, p, n).datagram
			end := len(d) - roce.ICRCLen
			p.ID = uint16(first + k)
			roce.PutICRC(d[end:], roce.ICRC(&p, d[:end]))
			if rapid.IntRange(0, 9).Draw(t, "damaged") == 0 {
				d[rapid.IntRange(0, len(d)-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			}
			known, got, want := rapid.Bool().Draw(t, "known"), p, p
			match := v.Verify(&got, known, d)
			if wantMatch := new(roce.Verifier).Verify(&want, known, d); match != wantMatch || got != want {
				t.Fatalf("identification %d: %v, %v, want %v, %v", p.ID, match, got, wantMatch, want)
			}
		}
	})
}
